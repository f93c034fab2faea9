"""Of two processes of one trainer, the one that was taken over leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from essp_common.artifacts import checkpoint_writer, layout
from essp_common.artifacts.scores import ScoreTable
from essp_common.errors import Fenced
from essp_common.pb.v1.messages_pb2 import Control, PhasePlan
from essp_trainer.checkpoints.checkpoint_store import CheckpointStore
from tests.harness.training_jobs import Running, Stage, final_weights, job_spec, phase_plans
from tests.lanes import often

pytestmark = pytest.mark.slow


def test_who_was_overtaken_by_a_later_run_leaves(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(7)])
    with Running(stage) as running:
        stage.wait_for_trained(1)
        checkpoint_writer.claim(stage.store, "one", fence=8)
    assert isinstance(running.error, Fenced)


@pytest.mark.parametrize("ranks", often([2, 1], 1))
def test_of_two_processes_of_one_trainer_the_earlier_leaves(tmp_path: Path, whole: Stage, ranks: int) -> None:
    """A node was lost and replaced, and came back. The job does not fail of it, and the later process finishes."""
    stage = Stage(job_spec(tmp_path, checkpoint={"every": 4}), phase_plans(2))
    stage.command(Control.START)
    stage.feed(stage.every_position()[:4])
    with Running(stage, ranks, owner_check_s=0.01) as first:
        stage.wait_for("checkpoint")
        with Running(stage, ranks) as second:
            first.join()
            assert isinstance(first.error, Fenced)
            assert "another process (w, incarnation 3, fence 7) has taken trainer one over" in str(first.error)
            stage.feed(stage.every_position()[4:])
            second.join()
    assert second.error is None
    assert stage.reports("failed") == []
    if ranks == 1:
        assert final_weights(stage) == final_weights(whole)


def test_what_breaks_a_process_that_was_taken_over_is_not_the_fault_of_the_job(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path, feature="heat"), phase_plans(2))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(4)], frames=np.zeros((1, 20, 20, 4), np.float32))
    with Running(stage) as running:
        stage.wait_for_trained(1)
        checkpoint_writer.claim(stage.store, "one", fence=7)
        stage.feed([(0, i) for i in range(4, 8)], frames=np.full((1, 20, 20, 4), np.nan, np.float32))
        running.join()
    assert isinstance(running.error, Fenced)
    assert stage.reports("failed") == []


def test_a_process_that_was_frozen_leaves_the_scores_of_the_next_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is thawed when it has evaluated, and has not written what that came to."""
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    write, of_next = CheckpointStore.write_scores, layout.scores("one", "validation", 0)

    def frozen(store: CheckpointStore, plan: PhasePlan, table: ScoreTable) -> None:
        checkpoint_writer.claim(stage.store, "one", fence=7)
        stage.store.put(of_next, b"newer")
        write(store, plan, table)

    monkeypatch.setattr(CheckpointStore, "write_scores", frozen)
    stage.command(Control.START)
    stage.feed(stage.every_position()[:16])
    with Running(stage) as running:
        running.join()
    assert isinstance(running.error, Fenced)
    assert stage.store.get(of_next) == b"newer"
    assert stage.reports("failed") == []
    assert stage.reports("trouble") == []
