"""The parts of docs/papers/oneaccess.md: "OneAccess: Concurrent Data Access Layer for Analytics"."""

from __future__ import annotations

from benchmarks.papers.oneaccess import building, epochs, over_memory, samples, sharing, step_times
from benchmarks.papers.study import Part

_ALL = (
    step_times.CIFAR_PART,
    step_times.LARGE_PART,
    building.PART,
    samples.PART,
    epochs.CIFAR_PART,
    sharing.PART,
    sharing.ERROR_PART,
    epochs.LARGE_PART,
    over_memory.PART,
    building.SIZE_PART,
)
PARTS: dict[str, Part] = {part.name: part for part in _ALL}
