"""A training with mixup and CutMix, step by step against loops over the same clips; on several ranks; resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.nn import functional

from essp_common.artifacts import checkpoint
from essp_common.artifacts.manifest import MODEL_FILE, Manifest
from essp_common.pb.v1.messages_pb2 import Control
from essp_engine.features.registry import layout_of
from essp_engine.learning.augment import training_view
from essp_engine.learning.mixing import blend_of
from essp_engine.learning.models import build
from essp_engine.learning.randomness import seed_of
from tests.harness.rounding import TOLERANCE, distance
from tests.harness.training_jobs import (
    CLASSES,
    Running,
    Stage,
    clip_frames,
    clip_ref,
    files_of,
    final_weights,
    job_spec,
    phase_plans,
    train,
)
from tests.lanes import often
from tests.unit.essp_trainer.test_ranks import SKIPPED, apart

BOTH = {"mixup": 0.4, "cutmix": 1.0}


def mixing_job(path: Path, feature: str = "rgb", augment: dict[str, float] | None = None, **options: Any) -> Stage:
    """Well-conditioned, as the jobs of `test_ranks.py` are."""
    blends = BOTH if augment is None else augment
    spec = job_spec(path, feature=feature, augment={"crop": 32, **blends}, optimizer={"lr": 0.01}, **options)
    return Stage(spec, phase_plans(2))


def state_after(stage: Stage, step: int) -> Manifest:
    [name] = [each for each in checkpoint.steps(stage.store, "one") if each == step]
    return checkpoint.read(stage.store, "one", name)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("augment", often([BOTH, {"mixup": 0.4}, {"cutmix": 1.0}], 1))
def test_each_step_is_that_of_the_papers(tmp_path: Path, augment: dict[str, float]) -> None:
    """With smoothing and weights of classes, and a clip left out."""
    stage = mixing_job(
        tmp_path, "flow", augment, dropout=0, label_smoothing=0.1, class_weights={"left": 2.0}, checkpoint={"keep": 9}
    )
    plan, left_out = stage.plans[0], 2
    train(stage, skipped=[(0, left_out)])
    found = safetensors.torch.load(files_of(stage.store, state_after(stage, plan.clips))[MODEL_FILE])

    spec, layout = stage.spec.trainers["one"], layout_of("flow")
    description = checkpoint.read(stage.store, "one", plan.clips).model
    model = build(description, seed_of("weights", 0)).train()
    rates = spec.optimizer
    optimizer = torch.optim.SGD(
        model.parameters(), lr=rates.lr, momentum=rates.momentum, weight_decay=rates.weight_decay
    )
    weights = torch.tensor([2.0, 1.0, 1.0])
    right = 0
    for begin in range(0, plan.clips, spec.batch_size):
        indices = [i for i in range(begin, min(begin + spec.batch_size, plan.clips)) if i != left_out]
        refs = [clip_ref(plan, index) for index in indices]
        views = [training_view(clip_frames(ref, "flow"), spec.augment, layout, 0, ref.epoch, ref.index) for ref in refs]
        exact = (torch.from_numpy(np.stack(views)).to(model.mean.dtype) - model.mean) / model.std
        blend = blend_of(spec.augment, 0, plan.epoch, begin)
        assert blend is not None
        mixed, soft = torch.empty_like(exact), torch.zeros(len(refs), len(CLASSES))
        for row, ref in enumerate(refs):
            other = len(refs) - 1 - row
            if blend.rectangle is None:
                mixed[row] = blend.share * exact[row] + (1 - blend.share) * exact[other]
            else:
                top, bottom, left, right_ = blend.rectangle
                mixed[row] = exact[row]
                mixed[row, :, top:bottom, left:right_] = exact[other, :, top:bottom, left:right_]
            soft[row, ref.class_id] += blend.share
            soft[row, refs[other].class_id] += 1 - blend.share
        logits = model(mixed).logits
        loss = functional.cross_entropy(logits, soft, weights, reduction="sum", label_smoothing=0.1) / len(refs)
        right += int((logits.argmax(dim=1) == soft.argmax(dim=1)).sum())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), rates.clip_grad_norm)
        optimizer.step()
    assert distance(found, {name: tensor for name, tensor in model.state_dict().items() if name in found}) < TOLERANCE
    [report] = [r for r in stage.reports("phase_report") if r.purpose == plan.purpose and r.epoch == 0]
    assert report.metrics["top1"] == pytest.approx(right / (plan.clips - 1))


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(("ranks", "batch_size"), often([(3, 4), (2, 4), (3, 2)], 1))
def test_any_number_of_ranks_blends_the_same_clips(tmp_path: Path, ranks: int, batch_size: int) -> None:
    """Also where a rank has no clip of a batch, as some are left out."""
    stages = [mixing_job(tmp_path / str(count), batch_size=batch_size) for count in (1, ranks)]
    for stage, count in zip(stages, (1, ranks), strict=True):
        train(stage, ranks=count, skipped=SKIPPED)
    assert apart(*stages) < TOLERANCE


def test_it_resumes_with_the_same_blends(tmp_path: Path) -> None:
    whole = mixing_job(tmp_path / "whole", checkpoint={"every": 4})
    train(whole)
    parted = mixing_job(tmp_path / "parted", checkpoint={"every": 4})
    parted.command(Control.START)
    parted.feed([at for at in parted.every_position() if at < (0, 6)])
    with Running(parted):
        parted.wait_for_trained(4)
    train(parted, [at for at in parted.every_position() if at >= (0, 6)])
    assert final_weights(parted) == final_weights(whole)
