"""Each network of clips is trained by a trainer: one step on the smallest clip that it takes, also on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from essp_common.artifacts import checkpoint, layout, scores
from essp_common.artifacts.manifest import Manifest, ModelDescription
from essp_common.job.feature_layout import COLOURS
from essp_common.job.network_limits import limits_of
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import Control
from essp_engine.learning.models import Classifier, build, restore
from essp_engine.learning.networks import NETWORKS, network
from essp_engine.learning.normalisation import take_any_batch
from essp_engine.learning.randomness import Share, seed_of
from essp_engine.learning.torchvision_compat import torchvision
from essp_trainer.distributed.ranks import SingleRank
from tests.harness.rounding import TOLERANCE, distance
from tests.harness.small_networks import small_mvit
from tests.harness.training_jobs import Running, Stage, phase_plans
from tests.lanes import often

pytestmark = [pytest.mark.slow, pytest.mark.lane("promises")]

EVERYDAY = ("r3d_18", "mvit_v2_s")
"""A network of convolutions, and one of transformers."""
OF_CLIPS = sorted((name for name, entry in NETWORKS.items() if entry.clips), key=lambda name: name not in EVERYDAY)
each_network = pytest.mark.parametrize("name", often(OF_CLIPS, len(EVERYDAY)))


@pytest.fixture(autouse=True)
def fewer_places(monkeypatch: pytest.MonkeyPatch) -> None:
    small_mvit(monkeypatch)


def trained(path: Path, model: str, ranks: int = 1) -> Stage:
    """One step on one clip of the least size, and an evaluation. Nothing but its gradient moves a weight."""
    limits = limits_of(model)
    assert limits.clip_frames is not None
    frames, side = limits.clip_frames[0], limits.least_side
    own = {
        "stream": "s",
        "model": model,
        "threads": 1,
        "augment": {"crop": side, "scales": [1.0], "evaluation_scale": 1.0, "flip": False},
        "optimizer": {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0},
        "checkpoint": {"parallel": "off", "codec": "none", "delta": False, "planes": False},
    }
    spec = JobSpec.model_validate(
        {
            "name": "tiny",
            "output": path.as_uri(),
            "epochs": 1,
            "clip": {"frames": frames},
            "streams": {"s": {"feature": "rgb", "params": {"frames": frames}}},
            "trainers": {"one": own},
        }
    )
    stage = Stage(spec, phase_plans(1, train=1, validation=1, test=0))
    stage.command(Control.START)
    shown = np.random.default_rng(1).integers(0, 256, (frames, side, side, 3), dtype=np.uint8)
    stage.feed(stage.every_position(), frames=shown)
    with Running(stage, ranks) as running:
        running.join()
    assert not running.errors
    return stage


def model_of(stage: Stage) -> tuple[Manifest, Classifier]:
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    model = restore(stage.store, manifest)
    assert isinstance(model, Classifier)
    return manifest, model


@each_network
def test_one_step_moves_all_layers_and_what_they_have_become_scores_clips(tmp_path: Path, name: str) -> None:
    stage = trained(tmp_path, name)
    manifest, model = model_of(stage)
    assert manifest.updates == 1
    before = dict(build(manifest.model, seed_of("weights", 0)).named_parameters())
    moved = [key for key, tensor in model.named_parameters() if not torch.equal(tensor, before[key])]
    assert f"backbone.{network(name).stem}.weight" in moved
    assert any(key.startswith(f"backbone.{network(name).head}.") for key in moved)
    assert len(moved) >= 0.9 * len(before), "stochastic depth leaves out a branch or two of a single clip"
    table = scores.read(stage.store, layout.scores("one", "validation", 0))
    assert table.probabilities.sum(axis=1) == pytest.approx([1.0])


@each_network
def test_a_rank_without_a_clip_has_gradients_of_zero_for_all_layers(name: str) -> None:
    """Ranks add up the gradients that there are, so they have to be the same ones."""
    limits = limits_of(name)
    assert limits.clip_frames is not None
    description = ModelDescription(
        name=name, feature="rgb", layout=COLOURS, channels=3, classes=("a", "b"), dropout=0.5, crop=limits.least_side,
        evaluation_scale=1.0, frames=limits.clip_frames[0],
    )  # fmt: skip
    model = build(description, seed=0).train()
    take_any_batch(model, SingleRank())
    model.dropout.reseed(1, Share(2, ()))
    shape = (0, limits.clip_frames[0], limits.least_side, limits.least_side, 3)
    model(torch.zeros(shape, dtype=torch.uint8)).logits.sum().backward()
    gradients = {key: tensor.grad for key, tensor in model.named_parameters()}
    assert [key for key, gradient in gradients.items() if gradient is None or gradient.any()] == []


@pytest.mark.usefixtures("double_precision")
def test_two_ranks_take_the_step_of_one_although_one_of_them_has_no_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the network that torchvision's own `forward` does not let see nothing; four of its blocks."""
    make = torchvision.models.video.mvit._mvit

    def shorter(block_setting: list[Any], **given: Any) -> torch.nn.Module:
        made: torch.nn.Module = make(block_setting=block_setting[:4], **given)
        return made

    monkeypatch.setattr(torchvision.models.video.mvit, "_mvit", shorter)
    (_, one), (_, two) = (model_of(trained(tmp_path / str(ranks), "mvit_v2_s", ranks)) for ranks in (1, 2))
    assert distance(two.state_dict(), one.state_dict()) < TOLERANCE
