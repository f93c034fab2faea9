"""What a model is asked with is checked: a feature of another kind gets no score, nor do scores of other videos."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import essp
from essp_common.errors import ConfigError
from tests.harness.predictor_bench import model_at

FEATURE = np.random.default_rng(1).integers(0, 256, (2, 48, 64, 3), np.uint8)
SCORES = np.random.default_rng(2).dirichlet((1, 1, 1), (4, 5))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> essp.Model:
    return essp.load_model(model_at(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(
    "feature",
    [
        None,
        "a.mp4",
        FEATURE.tolist(),
        FEATURE[0],
        FEATURE[None],
        FEATURE[..., :1],  # it would be taken for each of the colours
        FEATURE[:0],
        FEATURE[:, :0],
        FEATURE.astype(np.int64),  # only bytes are normalised
        FEATURE.astype(np.float64),
    ],
)
def test_what_is_no_feature_of_the_network_gets_no_score(model: essp.Model, feature: Any) -> None:
    for ask in (model.streams["rgb"].score, model.streams["rgb"].embed):
        with pytest.raises(ConfigError, match=r"feature: .*rgb takes rgb .* shape \(T, H, W, 3\)"):
            ask(feature)


def test_a_feature_need_not_be_contiguous(model: essp.Model) -> None:
    mirrored = FEATURE[:, :, ::-1]
    assert np.array_equal(model.streams["rgb"].score(mirrored), model.streams["rgb"].score(mirrored.copy()))


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (None, "scores: None is not a mapping"),
        ({"rgb": SCORES}, "the scores of flow are missing"),
        ({"rgb": SCORES, "flow": SCORES[:1]}, "different numbers of videos: rgb 4, flow 1"),
        ({"rgb": SCORES, "flow": SCORES[..., :2]}, r"the scores of flow have the shape \(4, 5, 2\)"),
        ({"rgb": SCORES, "flow": SCORES[None]}, r"the scores of flow have the shape \(1, 4, 5, 3\)"),
        ({"rgb": SCORES, "flow": SCORES[:, :0]}, r"the scores of flow have the shape \(4, 0, 3\)"),
        ({"rgb": SCORES, "flow": 0.5}, r"the scores of flow have the shape \(\)"),
        ({"rgb": SCORES, "flow": "x"}, "the scores of flow: 'x' is not an array of numbers"),
    ],
)
def test_scores_that_do_not_go_together_are_refused(model: essp.Model, scores: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model.fuse(scores)


def test_another_process_can_have_the_model(model: essp.Model) -> None:
    again = pickle.loads(pickle.dumps(model))  # noqa: S301  our own
    scores = {"rgb": SCORES, "flow": SCORES[::-1]}
    assert np.array_equal(again.fuse(scores), model.fuse(scores))
    assert np.array_equal(again.streams["rgb"].score(FEATURE), model.streams["rgb"].score(FEATURE))
