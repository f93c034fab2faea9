"""A classifier of local descriptors: an encoder and a linear layer, in the role of a network's convolutions.

    (B, T, H, W, C) ─▶ rows of C numbers, without facts and padding ─▶ encoder ─▶ one vector a clip ─▶ linear ─▶ logits

It is built, loaded and called like a network (`models.py`), so evaluation, fusion and prediction treat both alike. It
computes vectors with NumPy, in double precision, clip by clip: the score of a clip does not depend on other clips of
the batch. Everything learned is in its buffers and its last layer, in single precision; before learning they are zero,
and all classes have the same score.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from essp_common.artifacts.manifest import ModelDescription
from essp_engine.encoders.encoder import Encoder, length, shapes
from essp_engine.encoders.rows import descriptors_of
from essp_engine.learning.scores import Scores


class DescriptorClassifier(nn.Module):
    """An encoder with its linear classifier."""

    def __init__(self, description: ModelDescription) -> None:
        """Raises `ValueError` for the description of a network."""
        super().__init__()
        if description.encoder is None:
            raise ValueError(f"{description.name} is a network")
        spec, facts = description.encoder, description.layout.facts
        self.channels = description.channels
        """Numbers in a row, including its facts."""
        self._kind = description.name
        self._facts = facts
        self._arrays = shapes(self._kind, self.channels - facts, spec.pca, spec.centres)
        for name, shape in self._arrays.items():
            self.register_buffer(name, torch.zeros(shape))
        self.head = nn.Linear(length(self._kind, spec.pca, spec.centres), len(description.classes))
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)
        self.requires_grad_(False)

    @property
    def device(self) -> torch.device:
        """The device of its last layer."""
        return self.head.weight.device

    @property
    def has_learned(self) -> bool:
        """Whether its encoder has been learned."""
        return bool(self.get_buffer("pca_axes").any())

    @property
    def encoder(self) -> Encoder:
        """The learned encoder."""
        return Encoder.of(self._kind, {name: self.get_buffer(name).cpu().numpy() for name in self._arrays})

    def learn(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Load the state of a learned encoder (`Encoder.arrays`)."""
        for name in self._arrays:
            self.get_buffer(name).copy_(torch.from_numpy(arrays[name]))

    def descriptors(self, clips: Tensor) -> list[NDArray[Any]]:
        """`(n, C - facts)` for each of the `(B, T, H, W, C)` clips."""
        return [descriptors_of(clip, self._facts) for clip in clips.cpu().numpy()]

    def forward(self, x_BTHWC: Tensor) -> Scores:  # noqa: N803
        """Score a batch of clips, which may be empty."""
        encoder = self.encoder
        vectors = [encoder(rows).astype(np.float32) for rows in self.descriptors(x_BTHWC)]
        stacked = np.stack(vectors) if vectors else np.zeros((0, self.head.in_features), np.float32)
        return Scores(self.head(torch.from_numpy(stacked).to(self.device)), None)
