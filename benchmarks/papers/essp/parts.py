"""The parts of docs/papers/essp.md: "Elastic Streaming Sequential Data Processing System", LSVC 2017."""

from __future__ import annotations

from benchmarks.papers.essp import extracting, folds, hand_over, per_frame, scaling, shares, storage, stream_costs
from benchmarks.papers.study import Part

_ALL = (
    extracting.PART,
    storage.PART,
    folds.PART,
    stream_costs.PART,
    per_frame.PART,
    scaling.TABLE5_PART,
    scaling.SCALING_PART,
    shares.PART,
    hand_over.NODES_PART,
    hand_over.PART,
)
PARTS: dict[str, Part] = {part.name: part for part in _ALL}
