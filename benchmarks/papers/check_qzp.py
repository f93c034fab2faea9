"""The parts of docs/papers/check-qzp.md: "Check-QZP", Applied Sciences, 2024."""

from __future__ import annotations

from benchmarks.papers import checkpoint_stages, checkpoint_training, checkpoint_waits
from benchmarks.papers.study import Part

_ALL = (
    checkpoint_waits.PART,
    checkpoint_stages.PART,
    checkpoint_training.PART,
    checkpoint_training.BYTES_PART,
)
PARTS: dict[str, Part] = {part.name: part for part in _ALL}
