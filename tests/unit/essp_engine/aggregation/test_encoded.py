"""Strategies that learn from features: the classifier against scikit-learn, each on features that it explains."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from essp_common.artifacts.scores import ClipScores
from essp_common.tensors.packed import pack
from essp_engine.aggregation import registry
from essp_engine.encoders.classifier import fitted_classifier
from tests.unit.essp_engine.aggregation.scored_clips import reached, with_features

OF_FEATURES = ("feature_linear", "fisher_vector", "vlad", "bag_of_words", "compact_bilinear")
CLIPS = 12


@pytest.mark.parametrize(("videos", "width"), [(60, 5), (20, 50)])
def test_the_classifier_is_that_of_scikit_learn(videos: int, width: int) -> None:
    random = np.random.Generator(np.random.Philox(videos))
    vectors, labels = random.normal(0, 1, (videos, width)), np.arange(videos, dtype=np.int32) % 3
    vectors[np.arange(videos), labels] += 1
    penalty = 0.05
    other = LogisticRegression(C=1 / (penalty * videos), tol=1e-10, max_iter=10_000).fit(vectors, labels)
    found = fitted_classifier(vectors, labels, 3, penalty)
    np.testing.assert_allclose(found(vectors), other.predict_proba(vectors), atol=1e-4)
    np.testing.assert_allclose(found.weights, other.coef_.T, atol=1e-3)


def by_mean(videos: int, seed: int) -> ClipScores:
    """The mean of the features tells the class."""
    random = np.random.Generator(np.random.Philox(seed))
    labels = np.arange(videos) % 3
    features = [np.eye(8)[label] + random.normal(0, 0.5, (CLIPS, 8)) for label in labels.tolist()]
    return with_features(features, labels.tolist())


def by_spread(videos: int, seed: int) -> ClipScores:
    """The mean is the same for all; which numbers vary tells the class. Each varies by another amount, so principal
    components are these numbers."""
    random = np.random.Generator(np.random.Philox(seed))
    labels = np.arange(videos) % 3
    spread = 0.2 + np.diag([2.8, 2.0, 1.4, 0, 0, 0, 0, 0])
    features = [spread[label] * random.choice([-1.0, 1.0], (CLIPS, 8)) for label in labels.tolist()]
    return with_features(features, labels.tolist())


@pytest.mark.parametrize("name", OF_FEATURES)
def test_each_learns_from_features_what_scores_do_not_tell(name: str) -> None:
    known, asked = by_mean(90, seed=1), by_mean(120, seed=2)
    centres = {"fisher_vector": 6, "vlad": 2, "bag_of_words": 6}
    params = {"pca": 8, "centres": centres[name]} if name in centres else {}
    assert reached("average", known, asked) < 0.5
    assert reached(name, known, asked, **params) >= 0.85


@pytest.mark.parametrize("name", ["fisher_vector", "compact_bilinear"])
def test_second_order_encodings_see_what_the_mean_hides(name: str) -> None:
    known, asked = by_spread(90, seed=3), by_spread(120, seed=4)
    params = {"pca": 8, "centres": 1} if name == "fisher_vector" else {}
    assert reached("feature_linear", known, asked) <= 0.55
    assert reached(name, known, asked, **params) >= 0.95


@pytest.mark.parametrize("name", OF_FEATURES)
def test_equal_features_give_equal_states(name: str) -> None:
    part = by_mean(12, seed=5)
    strategy = registry.create(name, {})
    assert pack(strategy.fit({"a": part})) == pack(strategy.fit({"a": part}))
