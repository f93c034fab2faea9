"""How well the segments found by a model match labelled ones: mean average precision.

As ActivityNet defines it (Caba Heilbron et al., "ActivityNet: A Large-Scale Video Benchmark for Human Activity
Understanding", CVPR 2015, and its evaluation toolkit): for each class, found segments are taken in descending order of
score. A segment is right if it overlaps a labelled segment of its class and video by at least the threshold, and no
segment with a higher score has matched that one; among several, the one with the largest overlap is matched. Overlap is
intersection over union in time. The average precision is the area under the precision-recall curve, with precision
interpolated as the maximum at any higher recall. The mean is over the classes that have labels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stretch:
    """One class in one part of a video, in seconds or in frames."""

    video: str
    class_name: str
    begin: float
    end: float
    """Exclusive."""
    score: float = 1.0
    """The model's confidence; 1 for labels."""


@dataclass(frozen=True)
class ClassResult:
    """One class."""

    class_name: str
    labelled: int
    found: int
    precision: Numbers
    """`(thresholds,)` average precision at each threshold, in 0..1."""


@dataclass(frozen=True)
class Evaluation:
    """All labelled classes, by name."""

    overlaps: tuple[float, ...]
    classes: tuple[ClassResult, ...]

    @cached_property
    def mean(self) -> Numbers:
        """`(thresholds,)` mean average precision at each threshold, in 0..1."""
        return np.asarray(np.mean([one.precision for one in self.classes], axis=0))

    @property
    def average(self) -> float:
        """The mean of `mean`, by which ActivityNet ranks."""
        return float(self.mean.mean())


def evaluate(found: Iterable[Stretch], labelled: Iterable[Stretch], overlaps: Sequence[float]) -> Evaluation:
    """Compare found segments with labelled ones. `overlaps`: thresholds in 0..1.

    Found segments of a class without any label are ignored; in a video without labels of their class they are wrong.
    With equal scores, the earlier segment ranks first. Raises `ValueError` if nothing was labelled.
    """
    wanted: dict[str, list[Stretch]] = defaultdict(list)
    for stretch in labelled:
        wanted[stretch.class_name].append(stretch)
    if not wanted:
        raise ValueError("nothing was labelled")
    given: dict[str, list[Stretch]] = defaultdict(list)
    for stretch in found:
        given[stretch.class_name].append(stretch)
    classes = []
    for name, truth in sorted(wanted.items()):
        ranked = sorted(given[name], key=lambda one: -one.score)
        right = _right(ranked, truth, overlaps)
        precision = np.array([average_precision(each, len(truth)) for each in right])
        classes.append(ClassResult(name, len(truth), len(ranked), precision))
    return Evaluation(tuple(overlaps), tuple(classes))


def average_precision(right: NDArray[np.bool_], labelled: int) -> float:
    """The average precision of one class at one threshold. `right`: `(N,)` whether each found segment is right, highest
    score first. `labelled`: the number of labelled segments."""
    hits = np.cumsum(right)
    precision = hits / np.arange(1, len(right) + 1)
    best_from_here = np.maximum.accumulate(precision[::-1])[::-1]
    return float(best_from_here[right].sum() / labelled)


def _right(ranked: Sequence[Stretch], truth: Sequence[Stretch], overlaps: Sequence[float]) -> NDArray[np.bool_]:
    """`(thresholds, N)`: whether each found segment is right. All are of one class."""
    right = np.zeros((len(overlaps), len(ranked)), np.bool_)
    places: dict[str, list[int]] = defaultdict(list)
    for place, stretch in enumerate(truth):
        places[stretch.video].append(place)
    ends = np.array([(stretch.begin, stretch.end) for stretch in truth])
    taken = np.zeros((len(overlaps), len(truth)), np.bool_)
    for number, stretch in enumerate(ranked):
        here = places.get(stretch.video)
        if here is None:
            continue
        shared = _overlaps(stretch, ends[here])
        nearest = np.argsort(-shared, kind="stable")
        for row, threshold in enumerate(overlaps):
            free = [place for place in nearest if shared[place] >= threshold and not taken[row, here[place]]]
            if free:
                taken[row, here[free[0]]] = right[row, number] = True
    return right


def _overlaps(stretch: Stretch, ends: Numbers) -> Numbers:
    """`(N,)` intersection over union with segments that begin and end at `ends`, `(N, 2)`."""
    common = np.minimum(stretch.end, ends[:, 1]) - np.maximum(stretch.begin, ends[:, 0])
    common = np.maximum(common, 0.0)
    either = (stretch.end - stretch.begin) + (ends[:, 1] - ends[:, 0]) - common
    return np.asarray(common / either)
