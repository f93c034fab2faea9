"""Late fusion: chooses, on the validation split, the strategy that combines the scores of several streams into one.

The strategies live in `essp_engine.aggregation`. The criterion is log loss under cross-validation, because a fitted
strategy always does slightly better on the videos that it was fitted to, and one more correct video may be chance.
Videos that are too alike, such as those cut from one recording, stay on the same side of the split (`groups.py`). All
functions are pure and use no random numbers: equal scores give an equal choice.

The result of a candidate depends only on the scores, so each may be tried in a separate process (`search.py`).
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
"""Tolerance for the sum of single-precision probabilities, for any number of classes."""

Floats = NDArray[np.float64]
Groups = Mapping[str, int | str]
"""Video id -> a key that videos too alike share. A video without an entry forms its own group."""
NO_GROUPS: Groups = MappingProxyType({})


@dataclass(frozen=True)
class Aligned:
    """The scores of several trainers, restricted to the videos that all of them scored."""

    parts: dict[str, ClipScores]
    """Trainer -> scores, with the same videos in the same order."""
    left_out: tuple[str, ...]
    """Videos that some trainer did not score, because no clip of theirs could be decoded."""
    groups: NDArray[np.intp]
    """(V,) group numbers, starting at 0; equal for videos that are too alike to learn from one and judge by another."""

    @property
    def classes(self) -> NDArray[np.int32]:
        """(V,) class of each video."""
        return labels_of(self.parts)

    @property
    def truth(self) -> Labels:
        """(V,) classes, or (V, C) labels if each label is learned independently."""
        return truth_of(self.parts)


@dataclass(frozen=True)
class Fitted:
    """A candidate fitted to all validation videos, with the evidence."""

    aggregator: Aggregator
    state: State
    evidence: Strategy


@dataclass(frozen=True)
class Trial:
    """The result of one candidate."""

    losses: Floats | None
    """`(V,)` log loss of each video after learning from others; None if all videos belong to one group."""
    state: State
    """What it learned from all videos."""
    weights: dict[str, float]
    """Trainer -> its share of the fused score."""
    validation: Figures
    """Figures on the videos that it was fitted to."""


Try = Callable[[Sequence[Candidate], Aligned], Sequence[Trial]]
"""Tries candidates; returns their results in the same order."""


def in_turn(candidates: Sequence[Candidate], scores: Aligned) -> list[Trial]:
    """Try the candidates one after the other in this process."""
    return [tried(scores, one.aggregator) for one in candidates]


def tried(scores: Aligned, aggregator: Aggregator) -> Trial:
    """Try one strategy. Raises `ValueError` if its output is not a probability distribution."""
    losses = held_out_losses(scores, aggregator) if scores.groups.any() else None
    state = aggregator.fit(scores.parts)
    fused = _probabilities(aggregator, scores.parts, state, sum_to_1=scores.truth.ndim == 1)
    return Trial(losses, state, aggregator.shares(state), figures(scores.truth, fused))


def align(parts: Mapping[str, ClipScores], groups: Groups = NO_GROUPS) -> Aligned:
    """Keep the labelled videos that every trainer scored.

    `groups`: which of them are too alike. Raises `ValueError` if no video is left, or if the trainers disagree on
    classes or labels.
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
    """The best candidate on the validation scores, and the evidence for all that were tried.

    The best one has the lowest log loss on videos that it was not fitted to: each fifth of the videos is scored after
    learning from the other four, and all videos of a group fall into the same fifth. The first candidate wins a tie,
    and also wins if there is only one group or video. The winner then learns from all videos.
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

    Products of probabilities are overconfident, and means are underconfident. Neither affects the decisions, so each
    strategy is compared at its best-fitting sharpness, which is also found on the other videos. Labels are fused only
    by means, and compared as they are.
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
    """Yield the held-out mask of each fifth of the videos; if there are fewer than five groups, one mask per group.

    Each fifth gets its share of every class, provided that each group has one class and groups are of similar size.
    """
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
    """`(V, C)` probabilities for the videos of aligned parts. Raises `ValueError` if they are not valid
    probabilities."""
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
    """Standard error of the mean difference with clustered observations: only different groups are independent (Cameron
    & Miller, "A practitioner's guide to cluster-robust inference", 2015)."""
    sums = np.bincount(groups, differences - differences.mean())
    count = len(sums)
    return float(np.sqrt((sums**2).sum() * count / (count - 1)) / len(differences))


def _comparable(loss: float) -> float:
    """Round, so that differences of floating-point rounding do not decide."""
    return round(float(loss), 6)


def evaluate(parts: Mapping[str, ClipScores], fuse: Fuse) -> Evaluation:
    """Figures of each trainer, and of their fusion, on one split."""
    scores = align(parts)
    fused: VideoScores = fuse(scores.parts)
    return Evaluation(
        videos=len(scores.truth),
        left_out=len(scores.left_out),
        members={name: figures(scores.truth, part.means.probabilities) for name, part in scores.parts.items()},
        fused=figures(scores.truth, fused.probabilities),
    )
