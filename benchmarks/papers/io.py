"""The parts of docs/papers/io.md: "Characterizing Deep-Learning I/O Workloads in TensorFlow", 2018."""

from __future__ import annotations

from benchmarks.papers import io_reading, io_training, io_writing
from benchmarks.papers.study import Part

_ALL = (
    io_reading.PART,
    io_reading.OBJECTS_PART,
    io_reading.MACHINES_PART,
    io_training.PREFETCH_PART,
    io_training.BATCHES_PART,
    io_training.READ_PART,
    io_writing.WRITING_PART,
    io_writing.DEVICES_PART,
    io_writing.WRITTEN_PART,
)
PARTS: dict[str, Part] = {part.name: part for part in _ALL}
