"""Models of four classes as jobs describe them, clips for them, and a network of one's own."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from essp_common.artifacts.manifest import ModelDescription
from essp_engine.features.registry import layout_of
from essp_engine.learning.models import Classifier, build
from essp_engine.learning.network import Network
from essp_engine.learning.networks import NETWORKS, network


def description(name: str, feature: str = "rgb", channels: int = 3, dropout: float = 0.5) -> ModelDescription:
    return ModelDescription(
        name=name,
        feature=feature,
        layout=layout_of(feature),
        channels=channels,
        classes=("a", "b", "c", "d"),
        dropout=dropout,
        crop=64,
        evaluation_scale=0.875,
    )


def clips(count: int, channels: int, frames: int = 1, side: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, frames, side, side, channels), dtype=torch.uint8, generator=generator)


def stem(model: Classifier, name: str) -> torch.Tensor:
    return model.backbone.get_parameter(f"{network(name).stem}.weight")


def of_clips(name: str, frames: int, dropout: float = 0.5) -> ModelDescription:
    return description(name, dropout=dropout).model_copy(update={"frames": frames})


class Dropping(torch.nn.Module):
    """A network of one's own with this layer in its middle."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, stride=4)
        self.layer = layer
        self.again = layer
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.again(self.layer(self.stem(x))).mean((2, 3)))
        return scores


def own(monkeypatch: pytest.MonkeyPatch, layer: torch.nn.Module) -> Classifier:
    entry = Network(lambda: Dropping(layer), "stem", "head")
    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", entry)
    return build(description("small", dropout=0.25), seed=0).train()
