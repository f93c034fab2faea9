"""Late fusion: which strategy makes one score of those of several streams, chosen on the validation split.

The strategies are those of `essp_engine.aggregation`. The choice goes by log loss under cross-validation, since what is
fitted always does a little better on the videos that it was fitted to, and one right video more may be chance. Videos
that are too alike, such as those of one recording, are learned from or judged by together (`groups.py`). All
functions are pure and use no random numbers: equal scores give an equal choice.

What comes of a candidate depends on nothing but the scores, so each may be tried in a process of its own (`search.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from essp_common.artifacts.figures import Figures, Labels, figures, log_losses
from essp_common.artifacts.fused_model import Evaluation, Strategy
from essp_common.artifacts.scores import ClipScores, VideoScores
from essp_engine.aggregation import weights
from essp_engine.aggregation.candidates import Candidate
from essp_engine.aggregation.fused import Fuse
from essp_engine.aggregation.port import Aggregator, Parts, State, labels_of, truth_of

_FOLDS = 5
_SUM_ERROR = 1e-3
"""Of probabilities in single precision, however many classes there are."""

Floats = NDArray[np.float64]
Groups = Mapping[str, int | str]
"""Video id -> what is equal for videos that are too alike. One that is not there stands for itself."""
NO_GROUPS: Groups = MappingProxyType({})


@dataclass(frozen=True)
class Aligned:
    """The scores of several trainers for the videos that all of them scored."""

    parts: dict[str, ClipScores]
    """Trainer -> scores, of the same videos in the same order."""
    left_out: tuple[str, ...]
    """Videos that a trainer did not score, because none of their clips could be decoded."""
    groups: NDArray[np.intp]
    """(V,) from 0 on: equal for videos that are too alike to learn from one and judge by another."""

    @property
    def classes(self) -> NDArray[np.int32]:
        """(V,)"""
        return labels_of(self.parts)

    @property
    def truth(self) -> Labels:
        """(V,) classes, or (V, C) labels, where each is learned by itself."""
        return truth_of(self.parts)


@dataclass(frozen=True)
class Fitted:
    """A candidate that has learned from all validation videos, with the evidence."""

    aggregator: Aggregator
    state: State
    evidence: Strategy


@dataclass(frozen=True)
class Trial:
    """What came of one candidate."""

    losses: Floats | None
    """`(V,)` log loss of each video after learning from others; None: all videos are too alike, or there is one."""
    state: State
    """What it has learned from all videos."""
    weights: dict[str, float]
    """Trainer -> its share."""
    validation: Figures
    """On these very videos."""


Try = Callable[[Sequence[Candidate], Aligned], Sequence[Trial]]
"""What came of each candidate, in their order."""


def in_turn(candidates: Sequence[Candidate], scores: Aligned) -> list[Trial]:
    """Try one candidate after the other, here."""
    return [tried(scores, one.aggregator) for one in candidates]


def tried(scores: Aligned, aggregator: Aggregator) -> Trial:
    """Try one strategy. Raises `ValueError` if it gives no probabilities."""
    losses = held_out_losses(scores, aggregator) if scores.groups.any() else None
    state = aggregator.fit(scores.parts)
    fused = _probabilities(aggregator, scores.parts, state, sum_to_1=scores.truth.ndim == 1)
    return Trial(losses, state, aggregator.shares(state), figures(scores.truth, fused))


def align(parts: Mapping[str, ClipScores], groups: Groups = NO_GROUPS) -> Aligned:
    """Keep the videos that every trainer scored and whose label is known.

    `groups`: which of them are too alike. Raises `ValueError` if none is left, or if the trainers disagree on classes
    or labels.
    """
    names = tuple(parts)
    means = {name: part.means for name, part in parts.items()}
    labelled = [{v for v, c in zip(m.video_id, m.class_id, strict=True) if c >= 0} for m in means.values()]
    common = sorted(labelled[0].intersection(*labelled[1:]))
    if not common:
        raise ValueError(f"there is no video that all of {', '.join(names)} scored")
    chosen = {name: part.select(common) for name, part in parts.items()}
    first = chosen[names[0]].means
    for name, part in chosen.items():
        if part.means.classes != first.classes or not np.array_equal(part.means.truth, first.truth):
            raise ValueError(f"trainers {names[0]} and {name} disagree on the classes of the same videos")
    number: dict[int | str, int] = {}
    numbers = [number.setdefault(groups.get(video, video), len(number)) for video in common]
    everything = set().union(*(part.video_id for part in means.values()))
    return Aligned(chosen, tuple(sorted(everything.difference(common))), np.array(numbers, np.intp))


def try_candidates(
    candidates: Sequence[Candidate],
    parts: Mapping[str, ClipScores],
    attempt: Try = in_turn,
    groups: Groups = NO_GROUPS,
) -> tuple[Fitted, list[Strategy]]:
    """The best candidate on the validation scores, and the evidence of all that were tried.

    The best is the one with the lowest log loss on videos that it was not fitted to: each fifth of the videos is scored
    after learning from the other four, with all videos of a group in one fifth. Of equal ones the first is chosen, and
    so it is if there is one group or one video only. The chosen one then learns from all videos.
    """
    scores = align(parts, groups)
    trials = attempt(candidates, scores)
    means = [0.0 if trial.losses is None else _comparable(trial.losses.mean()) for trial in trials]
    chosen = int(np.argmin(means))
    evidence = [
        _evidence(one, trial, trials[chosen], scores.groups) for one, trial in zip(candidates, trials, strict=True)
    ]
    return Fitted(candidates[chosen].aggregator, trials[chosen].state, evidence[chosen]), evidence


def held_out_losses(scores: Aligned, aggregator: Aggregator) -> Floats:
    """`(V,)` log loss of each video after learning from others.

    Sums of products are too sure of themselves, means too little. That says nothing about their decisions, so each
    strategy is compared at the sharpness that fits best, which is found on the other videos, too. Labels are fused by
    means alone, which are compared as they are.
    """
    truth = scores.truth
    asked = {name: part.unlabelled() for name, part in scores.parts.items()}
    losses = np.empty(len(truth))
    predicted: dict[bytes, Floats] = {}
    for held_out in _folds(scores):
        others = np.flatnonzero(~held_out)
        state = aggregator.fit({name: part.at(others) for name, part in scores.parts.items()})
        key = _bytes_of(state)
        if key not in predicted:  # a strategy that learns nothing predicts the same each time
            predicted[key] = _probabilities(aggregator, asked, state, sum_to_1=truth.ndim == 1)
        found = predicted[key]
        answers = found[held_out]
        if truth.ndim == 1:
            answers = weights.sharpened(answers, weights.sharpness(scores.classes[others], found[others]))
        losses[held_out] = log_losses(truth[held_out], answers)
    return losses


def _folds(scores: Aligned) -> Iterator[NDArray[np.bool_]]:
    """The videos in fifths (each group for itself, if there are fewer), of which each has its share of every class, as
    far as groups have one class each and are of a size."""
    _, first = np.unique(scores.groups, return_index=True)
    folds = min(_FOLDS, len(first))
    fold = np.empty(len(first), dtype=np.int64)
    fold[np.argsort(scores.classes[first], kind="stable")] = np.arange(len(first)) % folds
    return (fold[scores.groups] == number for number in range(folds))


def _evidence(candidate: Candidate, trial: Trial, chosen: Trial, groups: NDArray[np.intp]) -> Strategy:
    return Strategy(
        name=candidate.name,
        params=candidate.params,
        rule=candidate.aggregator.rule,
        weights=trial.weights,
        validation=trial.validation,
        held_out_log_loss=None if trial.losses is None else float(trial.losses.mean()),
        uncertainty=None
        if trial.losses is None or chosen.losses is None
        else _standard_error(trial.losses - chosen.losses, groups),
    )


def _probabilities(aggregator: Aggregator, parts: Parts, state: State, *, sum_to_1: bool) -> Floats:
    """`(V, C)` of the videos of aligned parts. Raises `ValueError` for what are no probabilities of these videos."""
    expected = next(iter(parts.values())).means
    found = aggregator.predict(parts, state)
    values = found.probabilities
    if found.video_id != expected.video_id or values.shape != expected.probabilities.shape:
        raise ValueError(f"strategy {aggregator.name} does not give one score for each video and class")
    if not sum_to_1:
        return values
    if not (np.isfinite(values).all() and (values >= 0).all() and (abs(values.sum(axis=1) - 1) < _SUM_ERROR).all()):
        raise ValueError(f"strategy {aggregator.name} gives scores that are not probabilities: they must sum to 1")
    return values


def _bytes_of(state: State) -> bytes:
    return b"".join(name.encode() + b"=" + np.ascontiguousarray(state[name]).tobytes() for name in sorted(state))


def _standard_error(differences: Floats, groups: NDArray[np.intp]) -> float:
    """Of their mean, where only those of different groups are independent: that of clustered observations (Cameron &
    Miller, "A practitioner's guide to cluster-robust inference", 2015)."""
    sums = np.bincount(groups, differences - differences.mean())
    count = len(sums)
    return float(np.sqrt((sums**2).sum() * count / (count - 1)) / len(differences))


def _comparable(loss: float) -> float:
    """Differences that only come from rounding do not decide."""
    return round(float(loss), 6)


def evaluate(parts: Mapping[str, ClipScores], fuse: Fuse) -> Evaluation:
    """Figures of each trainer and of their fusion on one split."""
    scores = align(parts)
    fused: VideoScores = fuse(scores.parts)
    return Evaluation(
        videos=len(scores.truth),
        left_out=len(scores.left_out),
        members={name: figures(scores.truth, part.means.probabilities) for name, part in scores.parts.items()},
        fused=figures(scores.truth, fused.probabilities),
    )
