"""The figures of a classifier, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from essp_common.artifacts.figures import NAMES, average_precision, confusion, figures, log_loss, named, share_interval


def probabilities(videos: int, classes: int, seed: int) -> np.ndarray:
    raw = np.random.Generator(np.random.Philox(seed)).random((videos, classes)) ** 3 + 1e-6
    shares: np.ndarray = raw / raw.sum(axis=1, keepdims=True)
    return shares


@given(st.tuples(st.integers(6, 60), st.integers(6, 9), st.integers(0, 2**32)))
def test_figures_are_those_of_scikit_learn(case: tuple[int, int, int]) -> None:
    videos, classes, seed = case
    scores = probabilities(videos, classes, seed)
    labels = np.random.Generator(np.random.Philox(seed + 1)).integers(0, classes, videos)
    found = figures(labels, scores)
    ids = list(range(classes))
    present = np.unique(labels)
    expected_ap = [sk.average_precision_score(labels == c, scores[:, c]) for c in present]
    assert found == {
        "top1": pytest.approx(sk.accuracy_score(labels, scores.argmax(1))),
        "top5": pytest.approx(sk.top_k_accuracy_score(labels, scores, k=5, labels=ids)),
        "mean_class": pytest.approx(np.mean(sk.recall_score(labels, scores.argmax(1), labels=present, average=None))),
        "mAP": pytest.approx(np.mean(expected_ap)),
        "log_loss": pytest.approx(sk.log_loss(labels, scores, labels=ids)),
    }
    assert np.array_equal(confusion(labels, scores), sk.confusion_matrix(labels, scores.argmax(1), labels=ids))


def test_of_five_classes_there_is_no_top_5_that_would_always_be_1() -> None:
    labels = np.arange(12)
    assert named([figures(labels % 6, probabilities(12, 6, 0))]) == NAMES
    few = figures(labels % 5, probabilities(12, 5, 0))
    assert named([few]) == {name: shown for name, shown in NAMES.items() if name != "top5"}
    assert "top5" not in figures(labels[:, None] % 5 == np.arange(5), probabilities(12, 5, 0))
    assert list(named([few, {"top5": 1.0}])) == list(NAMES)


@given(st.tuples(st.integers(6, 60), st.integers(6, 9), st.integers(0, 2**32)))
def test_figures_of_labels_are_those_of_scikit_learn(case: tuple[int, int, int]) -> None:
    videos, classes, seed = case
    random = np.random.Generator(np.random.Philox(seed))
    scores, labels = random.random((videos, classes)), random.random((videos, classes)) < 0.3
    labels[0, 0] = True
    found = figures(labels, scores)
    present = labels.any(axis=0)
    best = np.argsort(-scores, axis=1)
    assert found == {
        "top1": pytest.approx(np.mean([own[order[0]] for own, order in zip(labels, best, strict=True)])),
        "top5": pytest.approx(np.mean([own[order[:5]].any() for own, order in zip(labels, best, strict=True)])),
        "mAP": pytest.approx(sk.average_precision_score(labels[:, present], scores[:, present], average="macro")),
        "log_loss": pytest.approx(
            np.mean([sk.log_loss(labels[:, c], scores[:, c], labels=[False, True]) for c in range(classes)])
        ),
    }


def test_nothing_is_precise_about_labels_that_nobody_has() -> None:
    assert figures(np.zeros((2, 3), np.bool_), np.full((2, 3), 0.5))["mAP"] == 0.0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=30))
def test_average_precision_treats_equal_scores_as_one_step(rows: list[tuple[bool, int]]) -> None:
    relevant = np.array([r for r, _ in rows])
    relevant[0] = True
    scores = np.array([s for _, s in rows], dtype=float)
    expected = sk.average_precision_score(relevant, scores)
    assert average_precision(relevant, scores) == pytest.approx(expected)


def test_no_scores_have_no_figures() -> None:
    with pytest.raises(ValueError, match="no scores"):
        figures(np.zeros(0, dtype=int), np.zeros((0, 3)))


def test_a_probability_of_zero_gives_a_finite_loss() -> None:
    assert log_loss(np.array([1]), np.array([[1.0, 0.0]])) == pytest.approx(-np.log(1e-12))


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (29, 29, 0.8830, 1.0)],
)
def test_intervals_of_shares_are_those_of_newcombe(right: int, count: int, low: float, high: float) -> None:
    """Statistics in Medicine 17 (1998), table I: the score method without continuity correction."""
    assert share_interval(right / count, count) == pytest.approx((low, high), abs=6e-5)
