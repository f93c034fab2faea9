"""Translates published weights: tensor names of timm, Hugging Face and training frameworks into the names used here,
which are torchvision's.

Only names and shapes change, never values. Weights are translated only if both libraries compute the same function, up
to rounding. Others keep their names, and loading them reports that they do not fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from torch import Tensor

Rules = tuple[tuple[str, Callable[[re.Match[str]], str]], ...]
"""Patterns for prefixes of names, and their replacements."""

_WRAPPERS = ("module.", "_orig_mod.", "backbone.", "timm_model.", "model.")
"""Prefixes of all names of a network inside another one: DistributedDataParallel, torch.compile, a trainer's model
here, Hugging Face's wrapper of timm, LightningModule."""

_BLOCK = r"(?:resnet\.)?encoder\.stages\.(\d+)\.layers\.(\d+)"
_EMBEDDER = r"(?:resnet\.)?embedder\.embedder"


def _block(match: re.Match[str]) -> str:
    return f"layer{int(match[1]) + 1}.{match[2]}"


_RESNET: Rules = (
    (rf"{_EMBEDDER}\.convolution\.", lambda _: "conv1."),
    (rf"{_EMBEDDER}\.normalization\.", lambda _: "bn1."),
    (rf"{_BLOCK}\.shortcut\.convolution\.", lambda match: f"{_block(match)}.downsample.0."),
    (rf"{_BLOCK}\.shortcut\.normalization\.", lambda match: f"{_block(match)}.downsample.1."),
    (rf"{_BLOCK}\.layer\.(\d+)\.convolution\.", lambda match: f"{_block(match)}.conv{int(match[3]) + 1}."),
    (rf"{_BLOCK}\.layer\.(\d+)\.normalization\.", lambda match: f"{_block(match)}.bn{int(match[3]) + 1}."),
    (r"classifier\.1\.", lambda _: "fc."),
)
"""`ResNetModel` and `ResNetForImageClassification` of transformers."""
_VGG: Rules = (
    (r"pre_logits\.fc1\.", lambda _: "classifier.0."),
    (r"pre_logits\.fc2\.", lambda _: "classifier.3."),
    (r"head\.fc\.", lambda _: "classifier.6."),
)
"""timm's VGG, whose first two linear layers are convolutions over their whole input."""


class Layout(NamedTuple):
    """A layout whose names differ from torchvision's."""

    name: str
    mark: str
    """A text that occurs in names of no other layout."""
    rules: Rules
    linear: tuple[str, ...] = ()
    """Layers that are convolutions there and linear here."""


_LAYOUTS = (
    Layout("Hugging Face", "embedder.embedder.", _RESNET),
    Layout("timm", "pre_logits.fc", _VGG, ("classifier.0.weight", "classifier.3.weight")),
)


class Named(NamedTuple):
    """Weights under the names of the network."""

    tensors: Mapping[str, Tensor]
    layout: str
    """The original layout; empty if the names were already the network's."""


def named_as(own: Collection[str], weights: Mapping[str, Tensor]) -> Named:
    """The weights under the tensor names `own` of a network, as far as the layout is known."""
    weights = _unwrapped(own, weights)
    for layout in _LAYOUTS:
        if any(layout.mark in name for name in weights) and not any(layout.mark in name for name in own):
            return Named(dict(_turned(name, tensor, layout) for name, tensor in weights.items()), layout.name)
    return Named(weights, "")


def _unwrapped(own: Collection[str], weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    while weights and not any(name in own for name in weights):
        wrapper = next((w for w in _WRAPPERS if all(name.startswith(w) for name in weights)), None)
        if wrapper is None:
            break
        weights = {name.removeprefix(wrapper): tensor for name, tensor in weights.items()}
    return weights


def _turned(name: str, tensor: Tensor, layout: Layout) -> tuple[str, Tensor]:
    for pattern, begin in layout.rules:
        match = re.match(pattern, name)
        if match is not None:
            name = begin(match) + name[match.end() :]
            return name, tensor.flatten(1) if name in layout.linear else tensor
    return name, tensor
