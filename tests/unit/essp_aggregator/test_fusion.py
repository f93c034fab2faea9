"""Fusion: against brute force, and for what must hold for any scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from essp_aggregator import fusion
from essp_common.artifacts.scores import VideoScores

RNG = np.random.Generator(np.random.Philox(7))


def video_scores(probabilities: np.ndarray, labels: np.ndarray, videos: list[str] | None = None) -> VideoScores:
    classes = tuple(f"class{i}" for i in range(probabilities.shape[1]))
    names = videos or [f"v{i:03d}" for i in range(len(labels))]
    return VideoScores(tuple(names), labels.astype(np.int32), probabilities, classes)


def probabilities(videos: int, classes: int, seed: int) -> np.ndarray:
    raw = np.random.Generator(np.random.Philox(seed)).random((videos, classes)) ** 3 + 1e-6
    shares: np.ndarray = raw / raw.sum(axis=1, keepdims=True)
    return shares


cases = st.tuples(st.integers(6, 60), st.integers(6, 9), st.integers(0, 2**32))


@pytest.mark.parametrize(("streams", "divisions", "points"), [(1, 20, 1), (2, 20, 21), (3, 20, 231), (4, 4, 35)])
def test_grid_covers_the_simplex_once(streams: int, divisions: int, points: int) -> None:
    grid = [tuple(w) for w in fusion.simplex_grid(streams, divisions)]
    assert len(grid) == len(set(grid)) == points
    assert all(sum(w) == pytest.approx(1) and min(w) >= 0 for w in grid)


@pytest.mark.parametrize("streams", [1, 2, 3, 5, 8, 20])
def test_grid_stays_small(streams: int) -> None:
    divisions = fusion.grid_divisions(streams)
    assert sum(1 for _ in fusion.simplex_grid(streams, divisions)) <= 2000


@given(st.integers(1, 4), cases)
@settings(max_examples=25)
def test_weights_are_a_point_of_the_simplex_that_no_grid_point_beats(streams: int, case: tuple[int, int, int]) -> None:
    """By brute force, for the mean."""
    videos, classes, seed = case
    labels = np.random.Generator(np.random.Philox(seed)).integers(0, classes, videos)
    parts = {f"t{i}": video_scores(probabilities(videos, classes, seed + i), labels) for i in range(streams)}
    aligned = fusion.align(parts)

    def quality(weights: np.ndarray) -> tuple[float, float]:
        mixed = sum(w * part.probabilities for w, part in zip(weights, parts.values(), strict=True))
        correct = sum(int(np.argmax(row)) == label for row, label in zip(mixed, labels, strict=True))
        return correct / videos, -float(np.mean([-np.log(row[c]) for row, c in zip(mixed, labels, strict=True)]))

    weights = fusion.searched(aligned, "mean")
    assert weights.sum() == pytest.approx(1)
    assert weights.min() >= 0
    top1, loss = quality(weights)
    best_top1, best_loss = max(
        quality(w) for w in fusion.simplex_grid(streams, min(10, fusion.grid_divisions(streams)))
    )
    assert top1 >= best_top1 - 1e-12
    if top1 == best_top1:
        assert loss >= best_loss - 1e-9
    assert np.array_equal(weights, fusion.searched(aligned, "mean")), "the same scores, the same weights"


def test_a_stream_that_knows_nothing_gets_little_weight() -> None:
    labels = np.arange(60) % 6
    good = 0.1 + 0.5 * np.eye(6)[labels] * RNG.random((60, 1))
    good /= good.sum(axis=1, keepdims=True)
    noise = probabilities(60, 6, 3)
    best, tried = fusion.try_strategies(
        ("average", "weighted"), {"good": video_scores(good, labels), "noise": video_scores(noise, labels)}
    )
    assert best.name == "weighted"
    assert best.weights["good"] > 0.8
    assert [s.name for s in tried] == ["average", "weighted"]
    assert best.validation["top1"] >= tried[0].validation["top1"]


def test_streams_that_complement_each_other_fuse_to_more_than_either() -> None:
    """One stream knows the texture, the other the motion; the class is the pair."""
    labels = np.arange(80) % 4
    texture = np.stack([np.where(np.arange(4) // 2 == label // 2, 0.5, 0.0) for label in labels])
    motion = np.stack([np.where(np.arange(4) % 2 == label % 2, 0.5, 0.0) for label in labels])
    parts = {"rgb": video_scores(texture, labels), "flow": video_scores(motion, labels)}
    best, _ = fusion.try_strategies(("average", "weighted"), parts)
    result = fusion.evaluate(parts, best.weights, best.rule)
    assert result.fused["top1"] == 1
    assert result.members["rgb"]["top1"] == result.members["flow"]["top1"] == 0.5


def test_halves_of_the_answer_that_are_not_equally_sure_need_the_product() -> None:
    """A stream that guesses between classes it cannot distinguish must not outvote the stream that knows."""
    random = np.random.Generator(np.random.Philox(11))
    labels = np.arange(120) % 12

    def stream(known: np.ndarray) -> VideoScores:
        odds = np.where(known, random.gamma(4.0, size=known.shape), 0.02)
        return video_scores(odds / odds.sum(axis=1, keepdims=True), labels)

    classes = np.arange(12)
    parts = {
        "rgb": stream(classes[None] // 4 == labels[:, None] // 4),
        "flow": stream(classes[None] % 4 == labels[:, None] % 4),
    }
    best, (mean, product) = fusion.try_strategies(("weighted", "product"), parts)
    assert best == product
    assert (best.rule, best.weights) == ("product", {"rgb": 0.5, "flow": 0.5})
    assert product.validation["top1"] == 1
    assert mean.validation["top1"] < 0.9


def test_the_weighted_product_is_never_worse_than_the_plain_one() -> None:
    labels = np.arange(40) % 5
    parts = {name: video_scores(probabilities(40, 5, seed), labels) for seed, name in enumerate("abc")}
    _, (plain, weighted) = fusion.try_strategies(("product", "weighted_product"), parts)
    quality = [(s.validation["top1"], -s.validation["log_loss"]) for s in (plain, weighted)]
    assert quality[1] >= quality[0]


def test_the_first_named_of_equal_strategies_wins() -> None:
    labels = np.arange(12) % 3
    part = video_scores(probabilities(12, 3, 1), labels)
    best, _ = fusion.try_strategies(("average", "weighted"), {"only": part})
    assert best.name == "average"
    assert best.weights == {"only": 1.0}


def test_a_gain_that_may_be_chance_does_not_beat_the_average() -> None:
    """Two streams that are equally good: the weights that fit these very videos best are an accident."""
    labels = np.arange(40) % 4
    noise = np.random.Generator(np.random.Philox(5))
    parts = {}
    for name in ("a", "b"):
        sure = np.eye(4)[labels] * 3 + noise.normal(0, 0.3, (40, 4))
        odds = np.exp(sure)
        parts[name] = video_scores(odds / odds.sum(axis=1, keepdims=True), labels)
    best, (average, weighted) = fusion.try_strategies(("average", "weighted"), parts)
    assert average.validation["top1"] == weighted.validation["top1"] == 1
    assert weighted.validation["log_loss"] < average.validation["log_loss"]
    assert best == average


def test_only_videos_that_all_have_scored_count() -> None:
    labels = np.array([0, 1, 2])
    rgb = video_scores(np.eye(3), labels, ["a", "b", "c"])
    flow = video_scores(np.eye(3)[[1, 2, 0]], np.array([1, 2, 0]), ["b", "c", "d"])
    aligned = fusion.align({"rgb": rgb, "flow": flow})
    assert aligned.labels.tolist() == [1, 2]
    assert aligned.left_out == ("a", "d")
    result = fusion.evaluate({"rgb": rgb, "flow": flow}, {"rgb": 0.5, "flow": 0.5}, "mean")
    assert (result.videos, result.left_out, result.fused["top1"]) == (2, 2, 1.0)


def test_nothing_in_common_is_an_error() -> None:
    rgb = video_scores(np.eye(2), np.array([0, 1]), ["a", "b"])
    flow = video_scores(np.eye(2), np.array([0, 1]), ["c", "d"])
    with pytest.raises(ValueError, match="no video that all of rgb, flow"):
        fusion.align({"rgb": rgb, "flow": flow})


def test_trainers_that_disagree_on_labels_are_not_fused() -> None:
    rgb = video_scores(np.eye(2), np.array([0, 1]), ["a", "b"])
    flow = video_scores(np.eye(2), np.array([1, 0]), ["a", "b"])
    with pytest.raises(ValueError, match="disagree"):
        fusion.align({"rgb": rgb, "flow": flow})
