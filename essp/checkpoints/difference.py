"""Compares two checkpoints: how far each tensor of the weights has moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from essp_common.artifacts.manifest import Manifest
from essp_common.objects.port import ObjectStore
from essp_engine.learning.models import weights_of


@dataclass(frozen=True, slots=True)
class Moved:
    """The change of one tensor of the weights."""

    name: str
    shape: tuple[int, ...]
    relative: float
    """Norm of the change relative to the previous norm; infinite if that was zero."""
    largest: float
    """Largest change of a value."""
    equal: float
    """Share of values that are unchanged."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How the second of two sets of weights differs from the first."""

    moved: tuple[Moved, ...]
    """Tensors with the same shape in both sets. The tensor that moved furthest comes first."""
    missing: tuple[str, ...]
    added: tuple[str, ...]
    reshaped: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether all values are equal."""
        return all(each.equal == 1 for each in self.moved) and not (self.missing or self.added or self.reshaped)


def difference(store: ObjectStore, first: Manifest, second: Manifest, code: Sequence[str] = ()) -> Difference:
    """Compare the weights used for evaluation. `code`: packages that define its network (`ESSP_CODE`).

    Raises `BadCheckpoint` if files are incomplete, and `ConfigError` if the network is not installed.
    """
    one, other = (weights_of(store, each, code) for each in (first, second))
    both = [name for name in one if name in other]
    alike = [name for name in both if one[name].shape == other[name].shape]
    moved = [_moved(name, one[name], other[name]) for name in alike]
    return Difference(
        tuple(sorted(moved, key=lambda each: each.relative, reverse=True)),
        missing=tuple(name for name in one if name not in other),
        added=tuple(name for name in other if name not in one),
        reshaped=tuple(name for name in both if name not in alike),
    )


def _moved(name: str, one: torch.Tensor, other: torch.Tensor) -> Moved:
    before, after = one.double(), other.double()
    change = after - before
    norm, moved = float(before.norm()), float(change.norm())
    return Moved(
        name,
        tuple(one.shape),
        relative=moved / norm if norm else (0.0 if not moved else float("inf")),
        largest=float(change.abs().max()) if change.numel() else 0.0,
        equal=float((before == after).double().mean()) if change.numel() else 1.0,
    )
