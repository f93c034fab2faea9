"""Score tables survive storage bit for bit; averaging by video does not depend on the order of clips."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.artifacts import scores
from essp_common.artifacts.clip_features import release_features
from essp_common.artifacts.scores import Rule, ScoreTable, VideoScores
from essp_common.cache.memory import MemoryCache
from essp_common.errors import NotFound, PermanentError
from essp_common.objects.directory import DirectoryStore


def table(rows: int, classes: int, seed: int) -> ScoreTable:
    random = np.random.Generator(np.random.Philox(seed))
    videos = random.integers(0, max(1, rows // 3), rows)
    return ScoreTable(
        video_id=tuple(f"clips/ü{v}.avi#0-{v}" for v in videos),
        class_id=(videos % classes).astype(np.int32),
        clip_index=np.arange(rows, dtype=np.int64),
        probabilities=random.random((rows, classes), dtype=np.float32),
        classes=tuple(f"class {i}" for i in range(classes)),
    )


def shuffled(original: ScoreTable, seed: int) -> ScoreTable:
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(original))
    return ScoreTable(
        video_id=tuple(original.video_id[i] for i in order),
        class_id=original.class_id[order],
        clip_index=original.clip_index[order],
        probabilities=original.probabilities[order],
        classes=original.classes,
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DirectoryStore:
    return DirectoryStore.from_url(f"file://{tmp_path_factory.mktemp('scores')}")


@given(rows=st.integers(0, 40), classes=st.integers(1, 7), seed=st.integers(0, 2**32))
def test_a_table_survives_storage(store: DirectoryStore, rows: int, classes: int, seed: int) -> None:
    original = table(rows, classes, seed)
    scores.write(store, "trainers/rgb/scores/test-0000.parquet", original)
    found = scores.read(store, "trainers/rgb/scores/test-0000.parquet")
    assert (found.video_id, found.classes) == (original.video_id, original.classes)
    for name in ("class_id", "clip_index", "probabilities"):
        expected, actual = getattr(original, name), getattr(found, name)
        assert actual.dtype == expected.dtype
        assert np.array_equal(actual, expected)


@given(rows=st.integers(0, 40), classes=st.integers(1, 7), seed=st.integers(0, 2**32))
def test_labels_survive_storage_and_follow_their_clips(
    store: DirectoryStore, rows: int, classes: int, seed: int
) -> None:
    """Also through parts that are joined, and to the videos of the clips, of which each has the same ones."""
    original = table(rows, classes, seed)
    of_video = np.random.Generator(np.random.Philox(seed)).random((max(1, rows), classes)) < 0.4
    number = [int(video.rpartition("-")[2]) for video in original.video_id]
    labelled = replace(original, labels=of_video[number].reshape(rows, classes))
    scores.write(store, "labelled", labelled)
    found = scores.read(store, "labelled")
    assert found.labels is not None
    assert np.array_equal(found.truth, of_video[number].reshape(rows, classes))
    halves = [found.at(np.flatnonzero(np.arange(rows) % 2 == half)) for half in (1, 0)]
    assert np.array_equal(scores.joined(halves).truth, found.truth)
    if not rows:
        return
    videos = scores.by_video(found)
    fused = scores.fuse({"a": videos, "b": videos}, {"a": 0.5, "b": 0.5}, "mean")
    for each in (videos, fused):
        assert [row.tolist() for row in each.truth] == [
            of_video[int(name.rpartition("-")[2])].tolist() for name in each.video_id
        ]
        best = each.probabilities.argmax(axis=1)
        assert each.right.tolist() == [bool(own[c]) for own, c in zip(each.truth, best, strict=True)]


def test_equal_tables_are_equal_bytes(store: DirectoryStore) -> None:
    scores.write(store, "a", table(20, 3, 5))
    scores.write(store, "b", table(20, 3, 5))
    assert store.get("a") == store.get("b")


def test_what_is_no_score_table_is_refused(store: DirectoryStore) -> None:
    store.put("bad", b"PAR1 but no more")
    with pytest.raises(PermanentError, match="not a score table"):
        scores.read(store, "bad")
    with pytest.raises(NotFound):
        scores.read(store, "absent")


def test_shapes_have_to_fit() -> None:
    with pytest.raises(ValueError, match="not \\(1, 3\\)"):
        ScoreTable(("a",), np.zeros(1, np.int32), np.zeros(1, np.int64), np.zeros((1, 2), np.float32), ("x", "y", "z"))
    with pytest.raises(ValueError, match="one entry a row"):
        ScoreTable(("a",), np.zeros(2, np.int32), np.zeros(1, np.int64), np.zeros((1, 1), np.float32), ("x",))


@given(rows=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_by_video_is_the_mean_of_the_clips_in_any_order(rows: int, seed: int) -> None:
    original = table(rows, 4, seed)
    found = scores.by_video(original)
    assert list(found.video_id) == sorted(set(original.video_id))
    for video, label, row in zip(found.video_id, found.class_id, found.probabilities, strict=True):
        mine = [i for i, v in enumerate(original.video_id) if v == video]
        assert label == original.class_id[mine[0]]
        assert row == pytest.approx(original.probabilities[mine].astype(np.float64).mean(axis=0))
    again = scores.by_video(shuffled(original, seed))
    assert np.array_equal(again.probabilities, found.probabilities)
    assert np.array_equal(again.class_id, found.class_id)


def test_one_long_name_does_not_lengthen_the_others() -> None:
    original = table(2000, 2, 0)
    named = replace(original, video_id=("x" * 4000, *original.video_id[1:]))
    tracemalloc.start()
    try:
        assert len(scores.by_video(named)) == len(scores.clips_by_video(named))
        release_features(MemoryCache(), "job", "rgb", "test", named)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_class_ids_are_of_the_classes_or_beside_labels_of_the_catalog(store: DirectoryStore) -> None:
    """A job that learns labels may have a catalog of more classes than these."""
    strange = replace(table(4, 2, 0), class_id=np.array([-1, 0, 1, 7], np.int32))
    scores.write(store, "strange", strange)
    with pytest.raises(PermanentError, match="class_id is not one of 2 classes"):
        scores.read(store, "strange")
    labelled = replace(strange, labels=np.zeros((4, 2), np.bool_))
    scores.write(store, "labelled", labelled)
    assert np.array_equal(scores.read(store, "labelled").class_id, labelled.class_id)
    scores.write(store, "odd", replace(labelled, class_id=np.array([-2, 0, 1, 7], np.int32)))
    with pytest.raises(PermanentError, match="class_id is not one of 2 classes"):
        scores.read(store, "odd")


def of(videos: str, rows: list[list[float]]) -> VideoScores:
    return VideoScores(tuple(videos), np.zeros(len(videos), np.int32), np.array(rows), ("x", "y"))


def test_fusing_takes_the_weighted_mean_and_fills_gaps_with_the_others() -> None:
    rgb, flow = of("ab", [[1.0, 0.0], [0.6, 0.4]]), of("bc", [[0.0, 1.0], [0.2, 0.8]])
    fused = scores.fuse({"rgb": rgb, "flow": flow}, {"rgb": 0.75, "flow": 0.25}, "mean")
    assert fused.video_id == ("a", "b", "c")
    assert fused.probabilities == pytest.approx(np.array([[1.0, 0.0], [0.45, 0.55], [0.2, 0.8]]))


@pytest.mark.parametrize("rule", ["mean", "product"])
def test_a_model_of_no_weight_has_no_say(rule: Rule) -> None:
    rgb, flow = of("a", [[1.0, 0.0]]), of("ab", [[0.0, 1.0], [0.0, 1.0]])
    fused = scores.fuse({"rgb": rgb, "flow": flow}, {"rgb": 1.0, "flow": 0.0}, rule)
    assert fused.video_id == ("a",)
    assert fused.probabilities == pytest.approx(np.array([[1.0, 0.0]]), abs=2e-4)
    with pytest.raises(ValueError, match="no weight"):
        scores.fuse({"rgb": rgb}, {"rgb": 0.0}, rule)


def test_a_product_of_equal_weights_is_the_product_of_the_scores() -> None:
    rgb, flow = of("ab", [[0.6, 0.4], [0.9, 0.1]]), of("b", [[0.3, 0.7]])
    fused = scores.fuse({"rgb": rgb, "flow": flow}, {"rgb": 0.5, "flow": 0.5}, "product")
    assert fused.probabilities[0] == pytest.approx([0.6, 0.4]), "one model alone keeps its scores"
    assert fused.probabilities[1] == pytest.approx(np.array([0.27, 0.07]) / 0.34)


def test_in_a_product_nobody_has_a_veto() -> None:
    sure, others = of("a", [[0.0, 1.0]]), of("a", [[0.999, 0.001]])
    parts = {"sure": sure, "one": others, "two": others}
    fused = scores.fuse(parts, dict.fromkeys(parts, 1 / 3), "product")
    assert fused.probabilities[0, 0] > 0.9


@given(st.integers(1, 4), st.integers(0, 2**32))
def test_fused_scores_are_probabilities_by_any_rule_and_continuous_in_the_weights(models: int, seed: int) -> None:
    random = np.random.Generator(np.random.Philox(seed))
    stacked = random.dirichlet(np.ones(5), (models, 7))
    weights = random.dirichlet(np.ones(models))[:, None]
    rules: tuple[Rule, ...] = ("mean", "product")
    for rule in rules:
        mixed = scores.mix(stacked, weights, rule)
        assert mixed.sum(axis=1) == pytest.approx(np.ones(7))
        assert mixed.min() >= 0
        nudged = weights + 1e-9 * np.linspace(-1, 1, models)[:, None]
        assert scores.mix(stacked, nudged / nudged.sum(), rule) == pytest.approx(mixed, abs=1e-6)


def test_models_of_other_classes_are_not_fused() -> None:
    other = VideoScores(("a",), np.zeros(1, np.int32), np.ones((1, 2)), ("y", "z"))
    with pytest.raises(ValueError, match="other classes"):
        scores.fuse({"rgb": of("a", [[1.0, 0.0]]), "flow": other}, {"rgb": 0.5, "flow": 0.5}, "mean")


def test_selecting_keeps_the_asked_order() -> None:
    chosen = of("abc", [[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]]).select(["c", "a"])
    assert chosen.video_id == ("c", "a")
    assert chosen.probabilities[:, 0].tolist() == [0.3, 0.1]
