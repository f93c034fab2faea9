"""More epochs for a job that runs: its trainers save, leave the run, and go on in the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_common.artifacts import checkpoint
from essp_common.artifacts.manifest import Manifest
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import Control
from essp_trainer.checkpoints.checkpointer import Unsaved
from essp_trainer.distributed.ranks import RankLost
from essp_trainer.session import Session
from tests.harness.training_jobs import (
    Running,
    Stage,
    final_weights,
    job_spec,
    last_training_state,
    phase_plans,
    train,
)
from tests.lanes import often

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The job with three epochs from the start."""
    return with_three(tmp_path_factory.mktemp("whole"), 1)


def with_three(path: Path, ranks: int) -> Stage:
    stage = Stage(job_spec(path, epochs=3), phase_plans(3))
    train(stage, ranks=ranks)
    return stage


def begun(path: Path, clips: int = 8) -> Stage:
    """A job of two epochs, of which so many clips are there."""
    stage = Stage(job_spec(path, epochs=2), phase_plans(2))
    stage.command(Control.START)
    stage.feed(stage.every_position()[:clips])
    return stage


def latest(stage: Stage) -> Manifest:
    manifest = checkpoint.read_latest(stage.store, "one", stage.spec.epochs)
    assert manifest is not None
    return manifest


def start_longer(stage: Stage, start: Position | None = None) -> None:
    """The next run of the job, with three epochs; the clips from where the trainer resumes on."""
    stage.spec = stage.spec.model_copy(update={"epochs": 3})
    stage.plans, stage.fence = phase_plans(3), 8
    begin = latest(stage).position if start is None else start
    stage.command(Control.START)
    stage.feed((position for position in stage.every_position() if position >= begin), fence=8)


@pytest.mark.parametrize("ranks", often([2, 1], 1))
def test_a_trainer_goes_on_in_the_next_run(tmp_path: Path, ranks: int) -> None:
    stage = begun(tmp_path / "parts")
    with Running(stage, ranks) as running:
        stage.wait_for_trained(8)
        stage.command(Control.RESUME, epochs=3)
        [left] = stage.wait_for("left", 1)
        assert (left.left.trainer, latest(stage).position) == ("one", Position(0, 8))
        start_longer(stage)
        running.join()
    assert running.error is None
    whole = with_three(tmp_path / "whole", ranks)
    assert (final_weights(stage) == final_weights(whole)) is True
    assert (last_training_state(stage) == last_training_state(whole)) is True


def test_a_trainer_that_only_hears_of_the_next_run_saves_and_goes_on_in_it(tmp_path: Path, whole: Stage) -> None:
    """Also one that was stopped and started again so quickly that it has seen no stop."""
    stage = begun(tmp_path)
    with Running(stage) as running:
        stage.wait_for_trained(8)
        start_longer(stage, Position(0, 8))
        running.join()
    assert running.error is None
    assert stage.reports("left") == []
    assert (final_weights(stage) == final_weights(whole)) is True


def test_a_trainer_that_is_done_stays_if_asked_to(tmp_path: Path, whole: Stage) -> None:
    stage = begun(tmp_path, 1000)
    with Running(stage, stays=True) as running:
        stage.wait_for_final(1)
        stage.command(Control.RESUME, epochs=3)
        stage.wait_for("left", 1)
        start_longer(stage)
        stage.wait_for_final(2)
        stage.command(Control.COMPLETE)
        running.join()
    assert running.error is None
    assert not running.trainers[0].interrupted
    assert (final_weights(stage) == final_weights(whole)) is True


@pytest.mark.parametrize("begins", [True, False])
def test_a_stop_ends_one_that_waits_for_the_next_run(tmp_path: Path, begins: bool) -> None:
    """It says again that it has left when another master asks. One that has just come was in no run: it stays."""
    stage = begun(tmp_path)
    if not begins:
        stage.command(Control.PAUSE, epochs=3)
    with Running(stage) as running:
        if begins:
            stage.wait_for_trained(8)
            stage.command(Control.PAUSE, epochs=3)
        stage.wait_for("left", 1)
        stage.fence = 8
        stage.command(Control.PAUSE, epochs=4)
        stage.wait_for("left", 2)
        stage.command(Control.STOP)
        if begins:
            running.join()
            assert not running.trainers[0].interrupted
    assert running.error is None
    assert [progress.fence for progress in stage.seen if progress.HasField("left")] == [7, 8]


def test_ranks_that_wait_for_the_next_run_notice_that_one_has_left(tmp_path: Path) -> None:
    stage = begun(tmp_path)
    with Running(stage, 2) as running:
        stage.wait_for_trained(8)
        stage.command(Control.RESUME, epochs=3)
        stage.wait_for("left", 1)
        running.trainers[1].drain()
        running.join(rank=1)
        start_longer(stage)
        running.join()
    assert {rank: type(error) for rank, error in running.errors.items()} == {0: RankLost}


def test_one_that_could_not_save_goes_on_from_its_last_checkpoint(
    tmp_path: Path, whole: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = begun(tmp_path)
    with Running(stage) as running:
        stage.wait_for_trained(8)
        with monkeypatch.context() as patched:
            patched.setattr(Session, "run", _unsaved)
            # It leaves the session that runs, and that of the next run at once.
            stage.command(Control.RESUME, epochs=3)
            stage.wait_for("left", 1)
        start_longer(stage)
        running.join()
    assert running.error is None
    assert (final_weights(stage) == final_weights(whole)) is True


def _unsaved(session: Session) -> None:
    raise Unsaved("left without saving a checkpoint")
