"""The parts of docs/papers/check-qzp.md: "Check-QZP", Applied Sciences, 2024."""

from __future__ import annotations

from benchmarks.papers.check_qzp import stages, training, waits
from benchmarks.papers.study import Part

_ALL = (
    waits.PART,
    stages.PART,
    training.PART,
    training.BYTES_PART,
)
PARTS: dict[str, Part] = {part.name: part for part in _ALL}
