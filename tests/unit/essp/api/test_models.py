"""What a model is asked with is checked: a feature of another kind gets no score, nor do scores of other videos."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import essp
from essp_common.errors import ConfigCode
from tests.harness.predictor_bench import model_at
from tests.harness.refused import refused

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
        with refused("feature", "type"):
            ask(feature)


def test_a_feature_need_not_be_contiguous(model: essp.Model) -> None:
    mirrored = FEATURE[:, :, ::-1]
    assert np.array_equal(model.streams["rgb"].score(mirrored), model.streams["rgb"].score(mirrored.copy()))


@pytest.mark.parametrize(
    ("scores", "field", "code"),
    [
        (None, "scores", "type"),
        ({"rgb": SCORES}, "scores", "missing"),
        ({"rgb": SCORES, "flow": SCORES[:1]}, "scores", "conflict"),
        ({"rgb": SCORES, "flow": SCORES[..., :2]}, "scores.flow", "type"),
        ({"rgb": SCORES, "flow": SCORES[None]}, "scores.flow", "type"),
        ({"rgb": SCORES, "flow": SCORES[:, :0]}, "scores.flow", "type"),
        ({"rgb": SCORES, "flow": 0.5}, "scores.flow", "type"),
        ({"rgb": SCORES, "flow": "x"}, "scores.flow", "type"),
    ],
)
def test_scores_that_do_not_go_together_are_refused(
    model: essp.Model, scores: Any, field: str, code: ConfigCode
) -> None:
    with refused(field, code):
        model.fuse(scores)


def test_another_process_can_have_the_model(model: essp.Model) -> None:
    again = pickle.loads(pickle.dumps(model))  # noqa: S301  our own
    scores = {"rgb": SCORES, "flow": SCORES[::-1]}
    assert np.array_equal(again.fuse(scores), model.fuse(scores))
    assert np.array_equal(again.streams["rgb"].score(FEATURE), model.streams["rgb"].score(FEATURE))
