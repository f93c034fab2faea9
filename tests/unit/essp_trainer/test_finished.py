"""A training that has come to its end: what starts it again, and what more epochs make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from essp_common.artifacts import checkpoint
from essp_common.artifacts.checkpoint_files import BadCheckpoint
from essp_common.artifacts.manifest import MODEL_FILE
from essp_common.pb.v1.messages_pb2 import Control
from essp_trainer.assignment import purpose_name
from tests.harness.training_jobs import (
    Running,
    Stage,
    files_of,
    final_weights,
    finished,
    job_spec,
    last_training_state,
    phase_plans,
    train,
)
from tests.lanes import often

pytestmark = pytest.mark.slow


def test_a_finished_training_only_says_so_again(tmp_path: Path) -> None:
    stage = finished(tmp_path)
    before = checkpoint.read_latest(stage.store, "one")
    again = Stage(stage.spec, stage.plans)
    again.command(Control.START)
    with Running(again) as running:
        running.join()
    assert running.error is None
    [ready] = again.reports("checkpoint")
    assert ready.final
    assert checkpoint.read_latest(stage.store, "one") == before


@pytest.mark.parametrize(("keep", "clips"), often([(1, {"train": 5, "test": 12}), (2, {}), (1, {"test": 0})], 1))
def test_a_finished_training_that_gets_more_epochs_equals_one_that_had_them(
    tmp_path: Path, keep: int, clips: dict[str, int]
) -> None:
    """To the bit, with the step schedule; also where the final checkpoint has a higher step than those after it."""
    rates = {"lr": 0.05, "steps": [1, 3], "warmup": 0.5}
    options: dict[str, Any] = {"checkpoint": {"keep": keep, "every": 4}, "ema": 0.9, "optimizer": rates}
    train(Stage(job_spec(tmp_path / "parts", **options), phase_plans(2, **clips)))
    longer = Stage(job_spec(tmp_path / "parts", epochs=4, **options), phase_plans(4, **clips), fence=8)
    train(longer)
    whole = Stage(job_spec(tmp_path / "whole", epochs=4, **options), phase_plans(4, **clips))
    train(whole)
    assert final_weights(longer) == final_weights(whole)
    assert last_training_state(longer) == last_training_state(whole)
    ends = [checkpoint.read_latest(stage.store, "one") for stage in (longer, whole)]
    assert len({end.digest for end in ends if end is not None}) == 1
    assert [[(r.purpose, r.epoch) for r in end.history] for end in ends if end is not None] == [
        [(purpose_name(plan.purpose), plan.epoch) for plan in whole.plans]
    ] * 2


def test_what_fewer_epochs_came_to_stays_until_more_have_come_to_an_end(tmp_path: Path) -> None:
    first = finished(tmp_path)
    end = checkpoint.read_latest(first.store, "one")
    assert end is not None
    kept = {name: first.store.get(name) for name in (*end.scores.values(), end.key)}
    longer = Stage(job_spec(tmp_path, epochs=4, checkpoint={"keep": 1}), phase_plans(4), fence=8)
    longer.command(Control.START)
    longer.feed(position for position in longer.every_position() if position[0] < 8)
    with Running(longer):
        longer.wait_for("phase_report", 5)  # validation 1, train 2, ..., validation 3
    verify = files_of(longer.store, end)
    assert verify.keys() == {MODEL_FILE}
    assert {name: longer.store.get(name) for name in kept} == kept
    longer.feed(position for position in longer.every_position() if position[0] == 8)
    train(longer, [])
    assert all(longer.store.get(name) == kept[name] for name in end.scores.values())
    with pytest.raises(BadCheckpoint):
        files_of(longer.store, end)
