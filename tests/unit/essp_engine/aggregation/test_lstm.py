"""The recurrent network, and the strategy on videos that differ in the order of their clips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from essp_common.artifacts.scores import ClipScores
from essp_engine.aggregation import lstm, registry
from essp_engine.aggregation.lstm import fitted_lstm, probabilities
from tests.lanes import often
from tests.unit.essp_engine.aggregation.scored_clips import reached, softmax, with_features

WIDTH, CELLS, CLASSES = 5, 7, 3


def in_order(videos: int, seed: int) -> ClipScores:
    """Clips that show A and then clips that show B are class 0, the other way round class 1; lengths differ. No clip
    tells more alone than another, so scores are noise."""
    random = np.random.Generator(np.random.Philox(seed))
    labels = (np.arange(videos) % 2).tolist()
    features = []
    for label in labels:
        half = int(random.integers(3, 7))
        shown = np.repeat(np.eye(8)[[label, 1 - label]], half, axis=0)
        features.append(shown + random.normal(0, 0.3, shown.shape))
    scores = [softmax(random.normal(0, 1, (len(own), 2))) for own in features]
    return with_features(features, labels, scores)


@pytest.fixture(scope="module")
def known() -> ClipScores:
    return in_order(80, seed=2)


@pytest.fixture(scope="module")
def asked() -> ClipScores:
    """So many that being right for 55 % of them is no chance: more than four standard errors above one half."""
    return in_order(2000, seed=3)


POOLING: dict[str, dict[str, Any]] = {
    "average": {},
    "attention": {},
    "fisher_vector": {"pca": 8, "centres": 4},
    "compact_bilinear": {"size": 64},
    "max": {},
    "top_k": {},
    "linear": {},
    "feature_linear": {},
    "vlad": {"pca": 8, "centres": 4},
    "bag_of_words": {"pca": 8, "centres": 4},
}


@pytest.mark.parametrize("name", often(POOLING, 4))
def test_what_pools_clips_guesses_whether_a_came_before_b(name: str, known: ClipScores, asked: ClipScores) -> None:
    assert 0.45 <= reached(name, known, asked, **POOLING[name]) <= 0.55


def test_the_recurrent_network_tells_whether_a_came_before_b(known: ClipScores, asked: ClipScores) -> None:
    assert reached("lstm", known, asked, hidden=8, pca=8, steps=40) >= 0.95


def test_videos_with_one_clip_and_features_without_any_spread_are_learned_from() -> None:
    part = with_features([np.ones((1, 4))] * 6, [0, 1, 2] * 2)
    strategy = registry.create("lstm", {"steps": 3})
    scores = strategy.predict({"rgb": part}, strategy.fit({"rgb": part})).probabilities
    np.testing.assert_allclose(scores.sum(axis=1), 1)


def test_the_loss_goes_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether all sequences are in memory together, or five at a time."""
    random = np.random.Generator(np.random.Philox(4))
    sequences = [
        random.normal(label, 1, (length, WIDTH)) for label, length in zip((0, 1, 2) * 4, (3, 1, 4, 2) * 3, strict=True)
    ]
    labels = np.array((0, 1, 2) * 4, dtype=np.int32)

    def loss_after(steps: int) -> float:
        state = fitted_lstm(sequences, labels, CLASSES, cells=CELLS, penalty=0.01, steps=steps)
        own = probabilities(state, sequences)[np.arange(len(labels)), labels]
        weights = sum(float((array**2).sum()) for name, array in state.items() if "weight" in name)
        return float(-np.log(own).mean() + 0.01 / 2 * weights)

    whole = [loss_after(steps) for steps in (1, 3, 9)]
    assert whole[0] > whole[1] > whole[2]
    monkeypatch.setattr(lstm, "_AT_ONCE", 5)
    assert loss_after(9) == pytest.approx(whole[2], rel=1e-3)
