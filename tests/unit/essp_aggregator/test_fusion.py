"""Fusion: against brute force, and for what must hold for any scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import softmax

from essp_aggregator import fusion
from essp_common.artifacts.figures import figures, log_loss
from essp_common.artifacts.fused_model import Evaluation, Strategy
from essp_common.artifacts.scores import ClipScores, Rule, VideoScores, fuse, mix
from essp_common.errors import ConfigError
from essp_common.job.spec import AggregationSpec, StrategySpec
from essp_engine.aggregation import registry, weights
from essp_engine.aggregation.candidates import Candidate, candidates
from essp_engine.aggregation.means import Average
from essp_engine.aggregation.port import Parts, State, StrategyParams
from tests.unit.essp_engine.aggregation.scored_clips import one_telling_clip, scored_clips

RNG = np.random.Generator(np.random.Philox(7))


def scored(probabilities: np.ndarray, labels: np.ndarray, videos: list[str] | None = None) -> ClipScores:
    """Scores of videos of one clip."""
    classes = tuple(f"class{i}" for i in range(probabilities.shape[1]))
    names = videos or [f"v{i:03d}" for i in range(len(labels))]
    means = VideoScores(tuple(names), labels.astype(np.int32), probabilities, classes)
    return ClipScores(means, probabilities, np.arange(len(names) + 1))


def try_strategies(names: Sequence[str], parts: Mapping[str, ClipScores]) -> tuple[Strategy, list[Strategy]]:
    """The evidence of the chosen one and of all, of strategies without parameters."""
    spec = AggregationSpec(strategies=tuple(StrategySpec(name=name) for name in names))
    best, tried = fusion.try_candidates(candidates(spec), parts)
    return best.evidence, tried


def evaluate(parts: Mapping[str, ClipScores], by: Mapping[str, float], rule: Rule | None) -> Evaluation:
    """The figures of a rule."""
    assert rule is not None
    return fusion.evaluate(parts, lambda aligned: fuse({n: p.means for n, p in aligned.items()}, by, rule))


def probabilities(videos: int, classes: int, seed: int) -> np.ndarray:
    raw = np.random.Generator(np.random.Philox(seed)).random((videos, classes)) ** 3 + 1e-6
    shares: np.ndarray = raw / raw.sum(axis=1, keepdims=True)
    return shares


cases = st.tuples(st.integers(6, 60), st.integers(6, 9), st.integers(0, 2**32))


def test_labels_are_fused_by_means_and_judged_label_by_label() -> None:
    """No score of one label says anything of the others, and none has to sum to 1."""
    random = np.random.Generator(np.random.Philox(3))
    truth = random.random((40, 3)) < 0.4
    parts = {}
    for name, noise in (("good", 0.2), ("poor", 0.45)):
        given = np.clip(np.where(truth, 0.9, 0.1) + random.normal(0, noise, truth.shape), 0.01, 0.99)
        part = scored(given, np.zeros(40, np.int32))
        parts[name] = replace(part, means=replace(part.means, labels=truth))
    spec = AggregationSpec(strategies=tuple(StrategySpec(name=name) for name in ("average", "best")))
    best, tried = fusion.try_candidates(candidates(spec, "labels"), parts)
    losses = {one.name: one.held_out_log_loss for one in tried}
    own = {name: part.means.probabilities for name, part in parts.items()}
    assert losses == {
        "average": pytest.approx(log_loss(truth, (own["good"] + own["poor"]) / 2)),
        "best": pytest.approx(log_loss(truth, own["good"])),
    }
    assert best.evidence.name == min(losses, key=lambda name: losses[name] or 0)
    with pytest.raises(ConfigError, match=r"strategies\.0: product computes scores that sum to 1"):
        candidates(AggregationSpec(strategies=(StrategySpec(name="product"),)), "labels")
    other = replace(parts["poor"], means=replace(parts["poor"].means, labels=~truth))
    with pytest.raises(ValueError, match="disagree on the classes"):
        fusion.align({"good": parts["good"], "poor": other})


@given(st.integers(1, 3), cases)
def test_no_other_weights_of_a_mean_have_a_lower_log_loss(streams: int, case: tuple[int, int, int]) -> None:
    """By brute force."""
    videos, classes, seed = case
    labels = np.random.Generator(np.random.Philox(seed)).integers(0, classes, videos).astype(np.int32)
    scores = np.stack([probabilities(videos, classes, seed + i) for i in range(streams)])

    def loss(tried: np.ndarray) -> float:
        return log_loss(labels, mix(scores, tried[:, None], "mean"))

    found = weights.of_a_mean(labels, scores)
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0
    assert loss(found) <= min(loss(np.array(w) / 8) for w in product(range(9), repeat=streams) if sum(w) == 8) + 2e-6


@given(cases)
def test_exponents_are_those_of_an_independent_optimiser(case: tuple[int, int, int]) -> None:
    videos, classes, seed = case
    labels = np.random.Generator(np.random.Philox(seed)).integers(0, classes, videos)
    logs_NVC = np.log(np.stack([probabilities(videos, classes, seed + i) for i in range(2)]))

    def loss(exponents: np.ndarray) -> float:
        return float(log_loss(labels, softmax(np.tensordot(exponents, logs_NVC, 1), axis=1)))

    found = weights.fitted_exponents(labels.astype(np.int32), logs_NVC)
    best = minimize(loss, [0.5, 0.5], bounds=[(0, 20), (0, 20)], method="L-BFGS-B")
    assert loss(found) <= best.fun + 1e-6


def test_a_stream_that_knows_nothing_gets_little_weight() -> None:
    labels = np.arange(60) % 6
    good = 0.1 + 0.5 * np.eye(6)[labels] * RNG.random((60, 1))
    good /= good.sum(axis=1, keepdims=True)
    noise = probabilities(60, 6, 3)
    best, tried = try_strategies(
        ("average", "weighted"), {"good": scored(good, labels), "noise": scored(noise, labels)}
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
    parts = {"rgb": scored(texture, labels), "flow": scored(motion, labels)}
    best, _ = try_strategies(("average", "weighted"), parts)
    result = evaluate(parts, best.weights, best.rule)
    assert result.fused["top1"] == 1
    assert result.members["rgb"]["top1"] == result.members["flow"]["top1"] == 0.5


def test_halves_of_the_answer_that_are_not_equally_sure_need_the_product() -> None:
    """A stream that guesses between classes it cannot distinguish must not outvote the stream that knows."""
    random = np.random.Generator(np.random.Philox(11))
    labels = np.arange(120) % 12

    def stream(known: np.ndarray) -> ClipScores:
        odds = np.where(known, random.gamma(4.0, size=known.shape), 0.02)
        return scored(odds / odds.sum(axis=1, keepdims=True), labels)

    classes = np.arange(12)
    parts = {
        "rgb": stream(classes[None] // 4 == labels[:, None] // 4),
        "flow": stream(classes[None] % 4 == labels[:, None] % 4),
    }
    best, (mean, product) = try_strategies(("weighted", "product"), parts)
    assert best == product
    assert (best.rule, best.weights) == ("product", {"rgb": 0.5, "flow": 0.5})
    assert product.validation["top1"] == 1
    assert mean.validation["top1"] < 0.9


def test_the_best_stream_decides_alone_where_the_others_only_guess() -> None:
    labels = np.arange(200) % 4
    noise = np.random.Generator(np.random.Philox(3))
    parts = {}
    for name, skill in (("good", 4.0), ("wrong", -1.0)):
        odds = np.exp(skill * np.eye(4)[labels] + noise.normal(0, 1, (200, 4)))
        parts[name] = scored(odds / odds.sum(axis=1, keepdims=True), labels)
    best, tried = try_strategies(("average", "product", "best"), parts)
    assert (best.name, best.weights) == ("best", {"good": 1.0, "wrong": 0.0})
    assert best.held_out_log_loss == min(s.held_out_log_loss for s in tried if s.held_out_log_loss is not None)


def test_the_first_named_of_equal_strategies_wins() -> None:
    labels = np.arange(12) % 3
    part = scored(probabilities(12, 3, 1), labels)
    best, _ = try_strategies(("average", "weighted"), {"only": part})
    assert best.name == "average"
    assert best.weights == {"only": 1.0}


def test_weights_that_fit_these_very_videos_better_do_not_win_by_that() -> None:
    """Four streams that are equally good and few videos: which weights fit best is an accident."""
    labels = np.arange(24) % 4
    noise = np.random.Generator(np.random.Philox(5))
    parts = {}
    for name in "abcd":
        odds = np.exp(np.eye(4)[labels] + noise.normal(0, 1, (24, 4)))
        parts[name] = scored(odds / odds.sum(axis=1, keepdims=True), labels)
    best, (product, weighted) = try_strategies(("product", "weighted_product"), parts)
    assert max(weighted.weights.values()) > 0.3
    assert best == product
    assert (weighted.held_out_log_loss or 0) > (product.held_out_log_loss or 0)


def test_one_right_video_more_does_not_decide() -> None:
    """Weights that were fitted to few videos have one of them more right, and fewer of others."""

    def streams(videos: int, seed: int) -> dict[str, ClipScores]:
        labels = np.arange(videos) % 4
        noise = np.random.Generator(np.random.Philox(seed)).normal(0, 1, (4, videos, 4))
        return {name: scored(softmax(1.2 * np.eye(4)[labels] + noise[n], -1), labels) for n, name in enumerate("abcd")}

    best, (product, weighted) = try_strategies(("product", "weighted_product"), streams(24, 0))
    assert round(24 * (weighted.validation["top1"] - product.validation["top1"])) == 1
    assert best == product
    others = streams(4000, 1)
    fixed, fitted = (evaluate(others, tried.weights, tried.rule).fused["top1"] for tried in (product, weighted))
    assert fixed > fitted


def test_no_video_is_scored_with_weights_that_were_fitted_to_it() -> None:
    """A stream that knows exactly one video, otherwise sure and wrong, is of no use for that video either."""
    labels = np.arange(10) % 2
    sound = np.where(np.eye(2)[labels] == 1, 0.7, 0.3)
    lucky = np.where(np.eye(2)[labels] == 1, 0.01, 0.99)
    lucky[4] = lucky[4][::-1]
    scores = fusion.align({"sound": scored(sound, labels), "lucky": scored(lucky, labels)})
    losses = fusion.held_out_losses(scores, registry.create("weighted_product", {}))
    assert losses == pytest.approx(np.full(10, losses[0]), abs=1e-3)


def test_what_is_learned_by_heart_is_of_no_use() -> None:
    """A strategy that knows the labels of the videos that it has seen, and guesses elsewhere."""

    class Memory(Average):
        name = "memory"

        def fit(self, parts: Parts) -> State:
            means = next(iter(parts.values())).means
            return {video: np.array([label]) for video, label in zip(means.video_id, means.class_id, strict=True)}

        def predict(self, parts: Parts, state: State) -> VideoScores:
            found = super().predict(parts, {"a/weight": np.ones(1)})
            assert (found.class_id == -1).all(), "labels are not told"
            known = [np.eye(4)[int(state[v][0])] if v in state else np.full(4, 0.25) for v in found.video_id]
            return replace(found, probabilities=np.stack(known))

    labels = np.arange(20) % 4
    losses = fusion.held_out_losses(
        fusion.align({"a": scored(probabilities(20, 4, 1), labels)}), Memory(StrategyParams())
    )
    assert losses == pytest.approx(np.full(20, np.log(4)))


def recordings(groups: int, seed: int) -> tuple[ClipScores, dict[str, int]]:
    """Ten classes with so many recordings each, of which there are five videos that look nearly the same. Features tell
    the recording well and the class a little; scores are right about every other video. With the recording of each
    video."""
    kinds = np.random.Generator(np.random.Philox(9)).normal(size=(10, 32))
    random = np.random.Generator(np.random.Philox(seed))
    labels = np.repeat(np.arange(10), 5 * groups)
    looks = np.repeat(random.normal(0, 3, (10 * groups, 32)), 5, axis=0)
    features = 0.7 * kinds[labels] + looks + random.normal(0, 0.3, looks.shape)
    part = scored(softmax(1.5 * np.eye(10)[labels] + random.normal(0, 1, (len(labels), 10)), axis=1), labels)
    recording = dict(zip(part.means.video_id, (np.arange(len(labels)) // 5).tolist(), strict=True))
    return replace(part, features=features.astype(np.float16)), recording


def test_recordings_that_are_known_by_heart_do_not_choose_a_strategy() -> None:
    """A classifier of features is right about other videos of the recordings that it has seen, and about no others."""
    part, recording = recordings(6, 1)
    fresh, _ = recordings(15, 2)
    names = tuple(StrategySpec(name=name) for name in ("average", "feature_linear"))
    wanted = candidates(AggregationSpec(features=True, strategies=names))
    (apart, _), (together, _) = (
        fusion.try_candidates(wanted, {"a": part}, groups=groups) for groups in ({}, recording)
    )
    assert (apart.evidence.name, together.evidence.name) == ("feature_linear", "average")
    worse, better = (
        figures(fresh.means.class_id, found.aggregator.predict({"a": fresh}, found.state).probabilities)
        for found in (apart, together)
    )
    assert better["log_loss"] < worse["log_loss"]
    assert better["top1"] > 2 * worse["top1"]


@given(st.lists(st.integers(0, 6), min_size=2, max_size=40), st.integers(0, 2**32))
def test_no_video_is_judged_by_what_was_learned_from_its_group(drawn: list[int], seed: int) -> None:
    """And each is judged once, if there is another group to learn from."""
    labels = np.random.Generator(np.random.Philox(seed)).integers(0, 3, len(drawn))
    names = [f"v{number:03d}" for number in range(len(drawn))]
    group = {name: number for name, number in zip(names, drawn, strict=True) if number}  # 0: stands for itself
    learned: list[set[str]] = []
    judged: list[str] = []

    class Watched(Average):
        def fit(self, parts: Parts) -> State:
            means = next(iter(parts.values())).means
            learned.append(set(means.video_id))
            return {**super().fit(parts), "turn": np.array([len(learned)])}

    scores = fusion.align({"a": scored(probabilities(len(drawn), 3, seed), labels, names)}, group)
    trial = fusion.tried(scores, Watched(StrategyParams()))
    if len({group.get(name, name) for name in names}) == 1:
        assert trial.losses is None
        return
    *folds, everything = learned
    assert everything == set(names)
    assert len(folds) == min(5, len({group.get(name, name) for name in names}))
    for fold in folds:
        held_out = everything - fold
        judged += sorted(held_out)
        assert not {group[name] for name in fold if name in group} & {group[n] for n in held_out if n in group}
    assert sorted(judged) == names


def test_the_uncertainty_of_copies_is_that_of_the_videos() -> None:
    """What is there three times is no more evidence than once, if it is known to be the same."""
    labels = np.arange(30) % 3
    own = {name: (probabilities(30, 3, seed) + 0.2 * np.eye(3)[labels]) / 1.2 for seed, name in enumerate(("a", "b"))}
    wanted = candidates(AggregationSpec(strategies=(StrategySpec(name="average"), StrategySpec(name="product"))))

    def uncertainty(copies: int) -> list[float | None]:
        names = [f"v{number // copies:03d}-{number % copies}" for number in range(30 * copies)]
        parts = {k: scored(v.repeat(copies, axis=0), labels.repeat(copies), names) for k, v in own.items()}
        groups = {name: int(name[1:4]) for name in names}
        return [one.uncertainty for one in fusion.try_candidates(wanted, parts, groups=groups)[1]]

    assert max(found or 0 for found in uncertainty(1)) > 0
    assert uncertainty(3) == pytest.approx(uncertainty(1))


def test_one_group_gives_no_evidence() -> None:
    labels = np.array([0, 1])
    part = scored(np.eye(2), labels)
    names = tuple(StrategySpec(name=name) for name in ("product", "best"))
    groups = dict.fromkeys(part.means.video_id, 3)
    best, _ = fusion.try_candidates(candidates(AggregationSpec(strategies=names)), {"a": part}, groups=groups)
    assert (best.evidence.name, best.evidence.held_out_log_loss) == ("product", None)


def test_one_video_gives_no_evidence() -> None:
    part = scored(np.array([[0.2, 0.8]]), np.array([1]))
    best, tried = try_strategies(("product", "best"), {"a": part, "b": part})
    assert (best.name, best.held_out_log_loss, tried[1].uncertainty) == ("product", None, None)


def test_only_videos_that_all_have_scored_count() -> None:
    labels = np.array([0, 1, 2])
    rgb = scored(np.eye(3), labels, ["a", "b", "c"])
    flow = scored(np.eye(3)[[1, 2, 0]], np.array([1, 2, 0]), ["b", "c", "d"])
    aligned = fusion.align({"rgb": rgb, "flow": flow})
    assert aligned.classes.tolist() == [1, 2]
    assert aligned.left_out == ("a", "d")
    result = evaluate({"rgb": rgb, "flow": flow}, {"rgb": 0.5, "flow": 0.5}, "mean")
    assert (result.videos, result.left_out, result.fused["top1"]) == (2, 2, 1.0)


def test_nothing_in_common_is_an_error() -> None:
    rgb = scored(np.eye(2), np.array([0, 1]), ["a", "b"])
    flow = scored(np.eye(2), np.array([0, 1]), ["c", "d"])
    with pytest.raises(ValueError, match="no video that all of rgb, flow"):
        fusion.align({"rgb": rgb, "flow": flow})


def test_trainers_that_disagree_on_labels_are_not_fused() -> None:
    rgb = scored(np.eye(2), np.array([0, 1]), ["a", "b"])
    flow = scored(np.eye(2), np.array([1, 0]), ["a", "b"])
    with pytest.raises(ValueError, match="disagree"):
        fusion.align({"rgb": rgb, "flow": flow})


GRID = AggregationSpec.model_validate(
    {
        "strategies": [
            *("average", "product", "best", "weighted", "weighted_product"),
            {"name": "top_k", "k": [1, 3], "rule": ["mean", "product"], "weights": ["equal", "fitted"]},
            {"name": "linear", "parts": [2, 5]},
            {"name": "attention", "weights": ["equal", "fitted"]},
        ]
    }
)


@pytest.mark.parametrize("seed", range(2))
def test_a_wide_search_among_useless_streams_costs_no_more_than_noise(seed: int) -> None:
    """One stream is good and three know nothing; few videos choose from 17 candidates, and other videos judge."""

    def streams(videos: int, seed: int) -> dict[str, ClipScores]:
        random = np.random.Generator(np.random.Philox(seed))
        labels = np.arange(videos) % 5
        skills = {"good": 1.2, "a": 0.0, "b": 0.0, "c": 0.0}
        return {
            name: scored_clips(list(softmax(skill * np.eye(5)[labels][:, None] + noise, -1)), labels.tolist())
            for (name, skill), noise in zip(skills.items(), random.normal(0, 1, (4, videos, 8, 5)), strict=True)
        }

    best, tried = fusion.try_candidates(candidates(GRID), streams(60, seed))
    assert len(tried) == 17
    judged = fusion.evaluate(streams(400, seed + 100), lambda parts: best.aggregator.predict(parts, best.state))
    alone = judged.members["good"]["top1"]
    noise = np.sqrt(alone * (1 - alone) / 60)  # what the videos that choose can tell apart
    assert judged.fused["top1"] >= alone - noise
    assert tried[0].validation["top1"] < alone - 2 * noise, "which is the plain average"


def test_the_search_finds_the_strategy_that_the_videos_need() -> None:
    parts = {"rgb": one_telling_clip(60, 1), "flow": one_telling_clip(60, 2)}
    grid = AggregationSpec.model_validate(
        {"strategies": ["average", "weighted_product", {"name": "top_k", "k": [1, 20]}]}
    )
    best, tried = fusion.try_candidates(candidates(grid), parts)
    assert best.evidence.label == "top_k k=1"
    assert best.evidence == tried[2]
    judged = fusion.evaluate(
        {"rgb": one_telling_clip(300, 3), "flow": one_telling_clip(300, 4)},
        lambda aligned: best.aggregator.predict(aligned, best.state),
    )
    assert judged.fused["top1"] >= 0.95
    assert judged.members["rgb"]["top1"] <= 0.75


def test_a_strategy_that_gives_no_probabilities_is_named() -> None:
    class Loud(Average):
        name = "loud"

        def predict(self, parts: Parts, state: State) -> VideoScores:
            found = super().predict(parts, state)
            return replace(found, probabilities=2 * found.probabilities)

    with pytest.raises(ValueError, match="strategy loud gives scores that are not probabilities"):
        fusion.try_candidates([Candidate("loud", {}, Loud(StrategyParams()))], {"a": one_telling_clip(10, 1)})
