"""The features of clips: what the last layer reads, in the cache for the aggregator alone, and made again when lost."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from essp_common.artifacts import checkpoint, layout, scores
from essp_common.artifacts.clip_features import FeaturesLost, release_features, with_features
from essp_common.artifacts.scores import ScoreTable
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import EMBED, Control, PhasePlan
from essp_engine.learning.models import Classifier, restore
from tests.harness.training_jobs import Running, Stage, job_spec, phase_plans, train

HALF = 2.0**-10
"""Features are stored in half precision."""


def stage(path: Path) -> Stage:
    spec = job_spec(path)
    asking = spec.model_copy(update={"aggregation": spec.aggregation.model_copy(update={"features": True})})
    before = phase_plans(2)
    return Stage(asking, (*before[:-1], PhasePlan(purpose=EMBED, epoch=0, clips=6), before[-1]))


def kept(of: Stage, purpose: str) -> ScoreTable:
    table = scores.read(of.store, layout.scores("one", purpose, 1))
    assert table.features is None, "the output has scores alone"
    return with_features(of.cache, "tiny", "one", purpose, table)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    found = stage(tmp_path_factory.mktemp("embedded"))
    train(found)
    return found


@pytest.mark.parametrize("purpose", ["embed", "test"])
def test_the_last_layer_makes_the_scores_of_the_features(trained: Stage, purpose: str) -> None:
    """The networks score each frame, and a linear layer of the mean feature is the mean of the frames' logits."""
    table = kept(trained, purpose)
    manifest = checkpoint.read_latest(trained.store, "one")
    assert manifest is not None
    assert manifest.best is not None
    best = restore(trained.store, checkpoint.read(trained.store, "one", manifest.best.step)).eval()
    assert isinstance(best, Classifier)
    assert table.features is not None
    assert table.features.shape == (6, 128)
    with torch.inference_mode():
        head = best.backbone.get_submodule("17")
        expected = head(torch.from_numpy(table.features.astype(np.float32))).softmax(dim=1).numpy()
    np.testing.assert_allclose(table.probabilities, expected, atol=8 * HALF)
    assert np.abs(table.features).max() > 100 * HALF, "features of zeros would tell nothing"


def test_who_leaves_after_the_features_were_made_makes_them_again(tmp_path: Path) -> None:
    """They lie in a cache, which may be gone with the process."""
    own = stage(tmp_path)
    own.command(Control.START)
    fed = own.every_position()[:-2]
    own.feed(fed)
    with Running(own) as running:
        own.wait_for_trained(len(fed))
    assert running.error is None
    manifest = checkpoint.read_latest(own.store, "one")
    assert manifest is not None
    assert manifest.position <= Position(4, 0), "EMBED"


def test_the_scores_of_the_best_weights_are_those_of_their_validation(trained: Stage) -> None:
    manifest = checkpoint.read_latest(trained.store, "one")
    assert manifest is not None
    assert set(manifest.scores) == {"validation", "embed", "test"}
    assert [(r.purpose, r.epoch) for r in manifest.history][-2:] == [("embed", 0), ("test", 0)]


def test_only_the_aggregator_frees_them(trained: Stage, tmp_path: Path) -> None:
    own = stage(tmp_path)
    train(own)
    videos = 3 + 3
    assert own.cache.usage().keys == videos, "two clips a video, one value for both"
    table = kept(own, "embed")
    release_features(own.cache, "tiny", "one", "embed", table)
    assert own.cache.usage().keys == videos / 2
    with pytest.raises(FeaturesLost, match=r"features that trainer one gave of the embed clips .* epoch more"):
        with_features(own.cache, "tiny", "one", "embed", table)


def test_features_survive_the_way_between_ranks(trained: Stage) -> None:
    table = kept(trained, "embed")
    assert table.features is not None
    halves = [
        dataclasses.replace(
            table,
            video_id=table.video_id[half],
            class_id=table.class_id[half],
            clip_index=table.clip_index[half],
            probabilities=table.probabilities[half],
            features=table.features[half],
        )
        for half in (slice(0, None, 2), slice(1, None, 2))
    ]
    none = dataclasses.replace(
        halves[0],
        video_id=(),
        class_id=table.class_id[:0],
        clip_index=table.clip_index[:0],
        probabilities=table.probabilities[:0],
        features=np.zeros((0, 0), np.float16),
    )
    joined = scores.joined([scores.unpacked(scores.packed(part)) for part in (none, *halves)])
    assert joined.features is not None
    np.testing.assert_array_equal(joined.features, table.features)
    by_video = scores.clips_by_video(joined)
    assert by_video.features is not None
    np.testing.assert_array_equal(by_video.at(np.array([1])).features, table.features[2:4])
