"""Changes of a running job: when a trainer takes them, and that what resumes takes the same steps again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from essp_common.artifacts import checkpoint
from essp_common.artifacts.manifest import Manifest
from essp_common.job.changes import Place, concerns
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import Change, Control
from tests.harness.training_jobs import ClipPosition, Running, Stage, job_spec, last_training_state, phase_plans, train
from tests.lanes import often

pytestmark = pytest.mark.slow

LR = 0.05
LOWER = LR * 0.1


def change(number: int, trainer: str = "one", **fields: Any) -> Change:
    """Of these fields of an optimizer."""
    values = {f"trainers.{trainer}.optimizer.{name}": json.dumps(value) for name, value in fields.items()}
    return Change(number=number, fields=values, before=dict.fromkeys(values, "null"))


def taken(stage: Stage) -> list[tuple[int, Place]]:
    return [(report.number, Place.of(report.place)) for report in stage.reports("change_taken")]


def latest(stage: Stage) -> Manifest:
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    return manifest


def changed_after(stage: Stage, clips: int, *changes: Change, ranks: int = 1) -> Stage:
    """Train the whole job, whose changes come when so many clips of the first epoch are trained."""
    positions = stage.every_position()
    stage.command(Control.START)
    stage.feed(positions[:clips])
    with Running(stage, ranks) as running:
        stage.wait_for_trained(clips)
        stage.changes += changes
        stage.command(Control.RESUME)
        stage.wait_for("change_taken", sum(concerns(each.fields, "one") for each in changes))
        stage.feed(positions[clips:])
        running.join()
    assert running.error is None
    return stage


def scheduled(path: Path, **optimizer: Any) -> Stage:
    """The job whose own schedule does the same."""
    stage = Stage(job_spec(path, optimizer={"lr": LR, "unit": "updates", **optimizer}), phase_plans(2))
    train(stage)
    return stage


@pytest.mark.parametrize(("clips", "update"), often([(10, 3), (4, 1), (8, 2)], 1))
def test_a_change_counts_from_the_next_update_on(tmp_path: Path, clips: int, update: int) -> None:
    """Also from the beginning of the next epoch, where the present one is over: here while it is evaluated."""
    stage = changed_after(Stage(job_spec(tmp_path / "a"), phase_plans(2)), clips, change(1, lr=LOWER))
    assert taken(stage) == [(1, Place(1, 0) if clips == 10 else Place(0, clips))]
    assert last_training_state(stage) == last_training_state(scheduled(tmp_path / "b", steps=[update]))
    assert last_training_state(stage) != last_training_state(scheduled(tmp_path / "c"))


def test_the_ranks_of_a_training_take_a_change_together(tmp_path: Path) -> None:
    stage = changed_after(Stage(job_spec(tmp_path / "a"), phase_plans(2)), 4, change(1, lr=LOWER), ranks=2)
    assert taken(stage) == [(1, Place(0, 4))], "rank 0 alone says so"
    other = Stage(job_spec(tmp_path / "b", optimizer={"lr": LR, "unit": "updates", "steps": [1]}), phase_plans(2))
    train(other, ranks=2)
    assert last_training_state(stage) == last_training_state(other)


def test_a_schedule_can_be_changed_and_the_last_word_counts(tmp_path: Path) -> None:
    """And what concerns other trainers changes nothing here."""
    changes = [
        change(1, lr=1.0, steps=[2]),
        change(2, "other", lr=3.0),
        change(3, lr=LR, unit="updates", steps=[2, 4], gamma=0.5),
    ]
    stage = changed_after(Stage(job_spec(tmp_path / "a"), phase_plans(2)), 4, *changes)
    assert taken(stage) == [(1, Place(0, 4)), (3, Place(0, 4))]
    assert [(c.number, c.place) for c in latest(stage).changes] == taken(stage)
    assert last_training_state(stage) == last_training_state(scheduled(tmp_path / "b", steps=[2, 4], gamma=0.5))
    reports = [r.metrics["lr"] for r in stage.reports("phase_report") if "lr" in r.metrics]
    assert reports == [LR, LR / 2]


def resumed(folder: Path, fence: int, changes: list[Change], last: ClipPosition | None = None) -> Stage:
    """Another process trains from the newest checkpoint on: up to a clip, where it saves and leaves, or to the end."""
    stage = Stage(job_spec(folder), phase_plans(2), fence=fence, changes=changes)
    found = checkpoint.read_latest(stage.store, "one")
    start = Position(0, 0) if found is None else found.position
    fed = [p for p in stage.every_position() if p >= start and (last is None or p <= last)]
    stage.command(Control.START)
    stage.feed(fed)
    with Running(stage) as running:
        if last is None:
            running.join()
        else:
            stage.wait_for_trained(len(fed))
    assert running.error is None
    return stage


def test_a_training_that_resumes_from_before_or_after_a_change_equals_one_that_went_on(tmp_path: Path) -> None:
    """The master knows the place; it is not that of the checkpoint, nor that at which the new process hears of it."""
    whole = changed_after(Stage(job_spec(tmp_path / "whole"), phase_plans(2)), 8, change(1, lr=LOWER))
    known = change(1, lr=LOWER)
    known.places["one"].CopyFrom(Place(0, 8).message())
    resumed(tmp_path / "parts", 7, [], (0, 3))
    assert latest(resumed(tmp_path / "parts", 8, [known], (0, 7))).changes[0].place == Place(0, 8), "before the place"
    stage = resumed(tmp_path / "parts", 9, [], (2, 3))
    assert [c.place for c in latest(stage).changes] == [Place(0, 8)], "a checkpoint needs no master to remember"
    last = resumed(tmp_path / "parts", 10, [known])
    assert taken(last) == []
    assert last_training_state(last) == last_training_state(whole)
    assert [c.place for c in latest(last).changes] == [Place(0, 8)]


def test_a_change_that_nobody_has_kept_the_place_of_is_taken_where_the_training_resumes(tmp_path: Path) -> None:
    """It was killed before it said so, and before it saved: the weights are lost that knew of another place."""
    first = resumed(tmp_path / "parts", 7, [], (0, 3))
    shutil.copytree(tmp_path / "parts", tmp_path / "kept")
    resumed(tmp_path / "parts", 8, [change(1, lr=LOWER)], (0, 7))
    shutil.rmtree(tmp_path / "parts")
    shutil.move(tmp_path / "kept", tmp_path / "parts")
    assert latest(first).changes == ()
    stage = resumed(tmp_path / "parts", 9, [change(1, lr=LOWER)])
    assert taken(stage) == [(1, Place(0, 4))]
    assert last_training_state(stage) == last_training_state(scheduled(tmp_path / "b", steps=[1]))
