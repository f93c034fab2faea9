"""The parts of docs/papers/io.md: "Characterizing Deep-Learning I/O Workloads in TensorFlow", 2018."""

from __future__ import annotations

from benchmarks.papers.io import reading, training, writing
from benchmarks.papers.study import Part

_ALL = (
    reading.PART,
    reading.OBJECTS_PART,
    reading.MACHINES_PART,
    training.PREFETCH_PART,
    training.BATCHES_PART,
    training.READ_PART,
    writing.WRITING_PART,
    writing.DEVICES_PART,
    writing.WRITTEN_PART,
)
PARTS: dict[str, Part] = {part.name: part for part in _ALL}
