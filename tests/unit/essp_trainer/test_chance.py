"""A training that learns nothing is warned of, and one that diverges ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from essp_common.artifacts import checkpoint
from essp_common.pb.v1.messages_pb2 import (
    DIVERGED,
    TRAIN,
    Control,
    JobSnapshot,
)
from essp_trainer.assignment import Assignment
from essp_trainer.model.chance import no_better_than_chance
from essp_trainer.model.step_result import Diverged
from tests.harness.training_jobs import (
    CLASSES,
    Running,
    Stage,
    job_spec,
    phase_plans,
    train,
)


def test_a_loss_that_is_not_finite_touches_no_parameter(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path, feature="heat"), phase_plans(2))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(4)], frames=np.zeros((1, 20, 20, 4), np.float32))
    stage.feed([(0, i) for i in range(4, 8)], frames=np.full((1, 20, 20, 4), np.nan, np.float32))
    with Running(stage) as running:
        running.join()
    assert isinstance(running.error, Diverged)
    [failed] = stage.wait_for("failed")
    assert failed.failed.kind == DIVERGED
    assert "lower optimizer.lr" in failed.failed.reason
    assert [list(report.indices) for report in stage.reports("trained")] == [[0, 1, 2, 3]]
    assert checkpoint.read_latest(stage.store, "one") is None


@pytest.mark.parametrize(("lr", "warned"), [(0.01, False), (30.0, True)])
def test_an_epoch_that_is_worse_than_guessing_is_warned_of(tmp_path: Path, lr: float, warned: bool) -> None:
    stage = Stage(job_spec(tmp_path, 6, optimizer={"lr": lr}, ema=0.0), phase_plans(6))
    train(stage)
    losses = [r.metrics["loss"] for r in stage.reports("phase_report") if r.purpose == TRAIN]
    troubles = [trouble.reason for trouble in stage.reports("trouble")]
    assert warned == any(loss > 1.1 * np.log(3) for loss in losses[5:]), "before that it is too early to say"
    assert bool(troubles) == warned
    for reason in troubles:
        assert "well above 1.1, the loss of guessing among 3 classes" in reason
        assert f"lower optimizer.lr ({lr:g})" in reason


@pytest.mark.parametrize(
    ("model", "loss", "warned"),
    [("small", 1.2, False), ("small", 1.22, True), ("inception_v3", 1.68, False), ("inception_v3", 1.7, True)],
)
def test_guessing_among_three_classes_costs_their_logarithm(
    tmp_path: Path, model: str, loss: float, warned: bool
) -> None:
    """1.099, and a tenth more; the second classifier of inception_v3 adds 0.4 of it."""
    stage = Stage(job_spec(tmp_path, model=model, partial_bn=True, batch_size=1), phase_plans(2))
    snapshot = JobSnapshot(
        spec_json=stage.spec.model_dump_json(), classes=CLASSES, layouts={"s": "{}"}, phases=phase_plans(2)
    )
    said = no_better_than_chance(Assignment.of(Control(job="tiny", snapshot=snapshot), "one"), loss, 1)
    assert bool(said) == warned
    assert not warned or "set partial_bn: false" in said


def test_random_weights_are_no_divergence(tmp_path: Path) -> None:
    """Of a tiny job the first epoch is a few steps, and what it begins with is above chance as often as below."""
    stage = Stage(job_spec(tmp_path, batch_size=4), phase_plans(7))
    snapshot = JobSnapshot(
        spec_json=stage.spec.model_dump_json(), classes=CLASSES, layouts={"s": "{}"}, phases=phase_plans(7)
    )
    assignment = Assignment.of(Control(job="tiny", snapshot=snapshot), "one")
    said = [bool(no_better_than_chance(assignment, 2.0, epoch)) for epoch in range(7)]
    assert said == [False] * 5 + [True] * 2, "three updates an epoch: the sixth has the sixteenth"
