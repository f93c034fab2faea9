"""The parts of docs/papers/essp.md: "Elastic Streaming Sequential Data Processing System", LSVC 2017."""

from __future__ import annotations

from benchmarks.papers import extracting
from benchmarks.papers.study import Part

_ALL = (extracting.PART,)
PARTS: dict[str, Part] = {part.name: part for part in _ALL}
