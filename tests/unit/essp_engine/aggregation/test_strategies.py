"""The strategies: against loops that follow their definitions, and for what must hold for any scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from essp_common.artifacts.figures import top_k
from essp_common.artifacts.scores import ClipScores
from essp_common.tensors.packed import pack, unpack
from essp_engine.aggregation import registry
from essp_engine.aggregation.attention import fitted_query
from essp_engine.aggregation.linear import in_parts
from tests.unit.essp_engine.aggregation.scored_clips import any_clips, one_telling_clip, scored_clips

OF_SCORES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("average", {}),
    ("product", {}),
    ("best", {}),
    ("weighted", {}),
    ("weighted_product", {}),
    ("max", {}),
    ("top_k", {"k": 2, "rule": "product"}),
    ("top_k", {"weights": "fitted"}),
    ("linear", {"parts": 3}),
    ("attention", {"weights": "fitted", "rule": "product"}),
)
OF_FEATURES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("feature_linear", {"weights": "fitted"}),
    ("fisher_vector", {"pca": 4, "centres": 2, "rule": "product"}),
    ("vlad", {"pca": 4, "centres": 3}),
    ("bag_of_words", {"pca": 4, "centres": 3, "weights": "fitted", "rule": "product"}),
    ("compact_bilinear", {"size": 16}),
    ("lstm", {"pca": 4, "hidden": 3, "steps": 5, "weights": "fitted"}),
)
STRATEGIES = OF_SCORES + OF_FEATURES
CLOSE = 1e-12
"""Scores are added in double precision, some hundred of them."""
STORED = 8 * 2.0**-24
"""A clip's scores, at most 8, are stored in single precision, so they sum to 1 only as nearly as this; strategies that
make them sum to 1 again differ by that from those that do not."""


def clips_of(part: ClipScores) -> list[np.ndarray]:
    """`(T, C)` of each video."""
    return [part.clips[a:b].astype(np.float64) for a, b in zip(part.first[:-1], part.first[1:], strict=True)]


def alone(name: str, part: ClipScores, **params: Any) -> np.ndarray:
    """A strategy on one stream, fitted to these very videos."""
    strategy = registry.create(name, params)
    found: np.ndarray = strategy.predict({"rgb": part}, strategy.fit({"rgb": part})).probabilities
    return found


def top1(part: ClipScores, scores: np.ndarray) -> float:
    return top_k(part.means.class_id, scores, 1)


@pytest.mark.parametrize(("name", "k"), [("max", 1), ("top_k", 1), ("top_k", 3), ("top_k", 100)])
def test_the_highest_scores_are_those_of_sorting(name: str, k: int) -> None:
    part = any_clips(30, 5, seed=1)
    expected = []
    for clips in clips_of(part):
        row = [float(np.mean(sorted(column, reverse=True)[:k])) for column in clips.T.tolist()]
        expected.append([value / sum(row) for value in row])
    params = {} if name == "max" else {"k": k}
    np.testing.assert_allclose(alone(name, part, **params), expected, rtol=CLOSE)


def test_all_clips_as_the_highest_are_the_average() -> None:
    part = any_clips(30, 5, seed=2)
    np.testing.assert_allclose(alone("top_k", part, k=7), alone("average", part), rtol=STORED)


@pytest.mark.parametrize("parts", [1, 3, 10])
def test_a_part_of_a_video_has_what_lies_in_it(parts: int) -> None:
    """Against the mean over moments that are so dense that each lies in one clip and one part."""
    part = any_clips(12, 4, seed=3)
    grid = parts * 2520
    for video, clips in enumerate(clips_of(part)):
        seen = clips[np.arange(grid) * len(clips) // grid]
        expected = seen.reshape(parts, -1, 4).mean(axis=1)
        np.testing.assert_allclose(in_parts(part, parts)[:, video], expected, rtol=STORED)


def test_linear_weighting_of_one_part_is_the_weighted_mean() -> None:
    parts = {"rgb": any_clips(40, 6, seed=4), "flow": any_clips(40, 6, seed=5)}
    linear, weighted = registry.create("linear", {"parts": 1}), registry.create("weighted", {})
    a, b = linear.fit(parts), weighted.fit(parts)
    assert linear.shares(a) == pytest.approx(weighted.shares(b))
    found, expected = linear.predict(parts, a).probabilities, weighted.predict(parts, b).probabilities
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_linear_weighting_finds_when_a_video_tells() -> None:
    """The last third shows the class, the rest other classes; some videos are long, some short."""
    random = np.random.Generator(np.random.Philox(6))
    labels = np.arange(80) % 4
    clips = []
    for label in labels.tolist():
        shown = [int(c) for c in random.integers(0, 4, 2)] + [label]
        clips.append(np.repeat(0.1 + 0.6 * np.eye(4)[shown], int(random.integers(1, 4)), axis=0))
    part = scored_clips(clips, labels.tolist())
    strategy = registry.create("linear", {"parts": 3})
    state = strategy.fit({"rgb": part})
    assert state["rgb/parts"] == pytest.approx([0, 0, 1], abs=0.02)
    assert top1(part, strategy.predict({"rgb": part}, state).probabilities) == 1
    assert top1(part, alone("average", part)) < 0.9


def test_attention_is_the_optimum_of_its_definition() -> None:
    """Against an independent optimizer, on a loss that is written as loops."""
    part = one_telling_clip(40, seed=7, classes=5, clips=6)
    penalty = 1e-3
    seen, given_ = [], []
    for clips, label in zip(clips_of(part), part.means.class_id.tolist(), strict=True):
        rows = []
        for clip in clips:
            entropy = -sum(p * np.log(p) for p in clip)
            first, second = sorted(clip, reverse=True)[:2]
            mean = clips.mean(axis=0)
            cosine = clip @ mean / np.linalg.norm(clip) / np.linalg.norm(mean)
            rows.append([1 - entropy / np.log(5), first - second, cosine])
        seen.append(np.array(rows))
        given_.append(clips[:, label])

    def loss(query: np.ndarray) -> float:
        total = 0.0
        for rows, own in zip(seen, given_, strict=True):
            odds = np.exp(rows @ query)
            total -= float(np.log(odds @ own / odds.sum()))
        return total / len(seen) + penalty * float(query @ query)

    best = minimize(loss, np.zeros(3), method="BFGS")
    found = fitted_query(part, penalty)
    assert loss(found) <= best.fun + 1e-8
    assert loss(found) < loss(np.zeros(3)), "which is the average"
    expected = [softmax_mean(rows @ found, clips) for rows, clips in zip(seen, clips_of(part), strict=True)]
    np.testing.assert_allclose(alone("attention", part, penalty=penalty), expected, rtol=1e-6)


def softmax_mean(logits: np.ndarray, clips: np.ndarray) -> np.ndarray:
    odds = np.exp(logits)
    mean: np.ndarray = odds @ clips / odds.sum()
    return mean


def test_one_telling_clip_in_twenty_is_found() -> None:
    """On videos that nothing was fitted to."""
    known, asked = one_telling_clip(200, seed=8), one_telling_clip(1000, seed=9)

    def reached(name: str, **params: Any) -> float:
        strategy = registry.create(name, params)
        return top1(asked, strategy.predict({"rgb": asked}, strategy.fit({"rgb": known})).probabilities)

    assert reached("average") <= 0.70
    assert reached("top_k", k=1) >= 0.95
    assert reached("max") >= 0.95
    assert reached("attention") >= 0.95


def test_attention_without_anything_to_tell_clips_apart_is_the_average() -> None:
    part = scored_clips([np.full((3, 4), 0.25), np.full((2, 4), 0.25)], [0, 1])
    np.testing.assert_allclose(alone("attention", part), 0.25)
    single = scored_clips([np.ones((2, 1))], [0])
    np.testing.assert_allclose(alone("attention", single), 1)


cases = st.tuples(st.sampled_from(STRATEGIES), st.integers(2, 12), st.integers(2, 6), st.integers(0, 2**32))


@given(cases)
def test_what_holds_for_any_scores(case: tuple[tuple[str, dict[str, Any]], int, int, int]) -> None:
    (name, params), videos, classes, seed = case
    parts = {"rgb": any_clips(videos, classes, seed), "flow": any_clips(videos, classes, seed + 1)}
    strategy = registry.create(name, params)
    state = strategy.fit(parts)
    found = strategy.predict(parts, state)

    assert sum(strategy.shares(state).values()) == pytest.approx(1)
    assert found.probabilities.min() >= 0
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1)

    again = strategy.fit(parts)
    assert pack(again) == pack(state), "nothing is drawn"
    restored = strategy.predict(parts, unpack(pack(state)))
    assert np.array_equal(restored.probabilities, found.probabilities), "a state survives storage bit for bit"

    half = np.arange(0, videos, 2)
    own = strategy.predict({trainer: part.at(half).unlabelled() for trainer, part in parts.items()}, state)
    assert own.video_id == tuple(found.video_id[row] for row in half)
    np.testing.assert_allclose(own.probabilities, found.probabilities[half], rtol=1e-9)


@pytest.mark.parametrize(("name", "params"), STRATEGIES)
def test_a_stream_that_could_not_score_a_video_leaves_it_to_the_others(name: str, params: dict[str, Any]) -> None:
    parts = {"rgb": any_clips(20, 4, 10), "flow": any_clips(20, 4, 11)}
    strategy = registry.create(name, params)
    state = strategy.fit(parts)
    counting = [trainer for trainer, share in strategy.shares(state).items() if share > 0]
    kept = counting[0]
    rest = {trainer: part if trainer == kept else part.at(np.arange(19)) for trainer, part in parts.items()}
    found = strategy.predict(rest, state)
    assert len(found) == 20
    last = strategy.predict({kept: parts[kept].at(np.array([19]))}, state)
    np.testing.assert_allclose(found.probabilities[19], last.probabilities[0], rtol=1e-9)


def backwards(part: ClipScores) -> ClipScores:
    """The clips of each video in the opposite order."""
    rows = np.concatenate([np.arange(a, b)[::-1] for a, b in zip(part.first[:-1], part.first[1:], strict=True)])
    assert part.features is not None
    return replace(part, clips=part.clips[rows], features=part.features[rows])


@pytest.mark.parametrize(("name", "params"), STRATEGIES)
def test_the_order_of_clips_makes_a_difference_where_a_strategy_says_so(name: str, params: dict[str, Any]) -> None:
    part = any_clips(20, 4, 14)
    strategy = registry.create(name, params)
    state = strategy.fit({"rgb": part})
    forth, back = (strategy.predict({"rgb": each}, state).probabilities for each in (part, backwards(part)))
    assert np.allclose(forth, back, rtol=1e-9) == (strategy.io == "random")


@pytest.mark.parametrize(("name", "params"), OF_SCORES)
def test_of_a_video_of_one_clip_its_score_remains(name: str, params: dict[str, Any]) -> None:
    """As the predictor asks about places in time, where each clip is a video."""
    strategy = registry.create(name, params)
    state = strategy.fit({"rgb": any_clips(20, 4, 12)})
    one = any_clips(9, 4, 13, most_clips=1)
    np.testing.assert_allclose(
        strategy.predict({"rgb": one}, state).probabilities, one.means.probabilities, rtol=1e-6, atol=1e-12
    )
