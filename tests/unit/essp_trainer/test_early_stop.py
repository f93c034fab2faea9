"""A trainer that stops early: what it says, what it leaves behind, and that nothing that interrupts it matters."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from essp_common.artifacts import checkpoint
from essp_common.artifacts.manifest import Manifest
from essp_common.errors import TransientError
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import TRAIN, Control
from essp_common.runtime import failpoints
from tests.harness.training_jobs import Running, Stage, final_weights, job_spec, phase_plans, train
from tests.lanes import often

EPOCHS = 5


def stage_of(path: Path, patience: int = 2, test: int = 6) -> Stage:
    """A training at such a rate that the loss of each validation is the largest that there is: none is better than the
    first."""
    spec = job_spec(path, EPOCHS, stop={"patience": patience}, optimizer={"lr": 1.0}, batch_size=5)
    return Stage(spec, phase_plans(EPOCHS, test=test))


def final_of(stage: Stage) -> Manifest:
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.final
    return manifest


def ends(stage: Stage) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """The phases of its history, and what the best epoch and the digest of the clips are."""
    manifest = final_of(stage)
    return [(record.purpose, record.epoch) for record in manifest.history], {manifest.digest: manifest.epoch}


@pytest.mark.parametrize("ranks", often([2, 1], 1))
def test_it_trains_no_further_and_does_what_follows_all_epochs(tmp_path: Path, ranks: int) -> None:
    stage = stage_of(tmp_path)
    train(stage, ranks=ranks)
    [stopped] = stage.reports("stopped")
    last = stopped.epoch
    assert (last, stopped.best) == (2, 0)
    assert Position.of(stopped.position) == Position(2 * (last + 1), 0)
    phases, _ = ends(stage)
    trained = [(purpose, epoch) for epoch in range(last + 1) for purpose in ("train", "validation")]
    assert phases == [*trained, ("test", 0)]
    assert final_of(stage).epoch == stopped.best
    assert stage.cache.usage().keys == 0, "what came for the other epochs is freed"
    dropped = [
        number for number, said in enumerate(stage.seen) if said.trained.purpose == TRAIN and said.trained.epoch > last
    ]
    assert dropped
    assert min(dropped) > [said.WhichOneof("event") for said in stage.seen].index("stopped"), "or they count as trained"
    assert [ready.position for ready in stage.reports("checkpoint")][-2] == stopped.position, "training could go on"


def test_with_less_patience_it_stops_where_it_is_within_an_epoch(tmp_path: Path) -> None:
    """Nothing of the epoch that it leaves is among the figures of what follows."""
    stage = stage_of(tmp_path, patience=EPOCHS)
    stage.command(Control.START)
    fed = [position for position in stage.every_position() if position < (6, 5)]
    stage.feed(fed)
    with Running(stage):
        stage.wait_for_trained(len(fed))
    before = checkpoint.read_latest(stage.store, "one")
    assert before is not None
    assert (before.position, bool(before.running)) == (Position(6, 5), True)
    again = stage_of(tmp_path)
    train(again, [position for position in again.every_position() if position[0] == 2 * EPOCHS])
    assert len(again.reports("stopped")) == 1
    assert final_of(again).running == {}


def test_any_number_of_ranks_stops_at_the_same_epoch(tmp_path: Path) -> None:
    found = []
    for ranks in (1, 2):
        stage = stage_of(tmp_path / str(ranks))
        train(stage, ranks=ranks)
        assert stage.reports("stopped")
        found.append(ends(stage))
    assert found[0] == found[1]


def test_without_a_phase_after_the_epochs_it_is_over_at_once(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, test=0)
    train(stage)
    assert len(stage.reports("stopped")) == 1
    assert final_of(stage).position == Position(2 * EPOCHS, 0)


@pytest.mark.parametrize(
    "point", often(["trainer.saved", "trainer.committed", "trainer.scored", "trainer.announced"], 1)
)
def test_it_may_die_anywhere_around_the_stop(tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process finds the training where the first left it, and comes to the same end."""
    whole = stage_of(tmp_path / "whole")
    train(whole)
    assert whole.reports("stopped")
    deaths = 0
    for number in itertools.count(1):
        stage = stage_of(tmp_path / f"{point}-{number}")
        points = failpoints.Failpoints(f"{point}:{number}:raise")
        with monkeypatch.context() as patched:
            patched.setattr("essp_trainer.session.failpoint", points.hit)
            patched.setattr("essp_trainer.checkpoints.checkpointer.failpoint", points.hit)
            try:
                train(stage)
                break  # it is not there so often
            except TransientError:
                deaths += 1
        again = Stage(stage.spec, stage.plans)
        train(again)
        assert ends(again) == ends(whole), number
        assert final_weights(again) == final_weights(whole), number
    assert deaths > 3


def test_drained_after_the_stop_it_says_so_again_and_ends_the_same(tmp_path: Path) -> None:
    whole = stage_of(tmp_path / "whole")
    train(whole)
    parted = stage_of(tmp_path / "parted")
    epochs = [position for position in parted.every_position() if position < (2 * EPOCHS, 0)]
    parted.command(Control.START)
    parted.feed(epochs)
    with Running(parted):
        parted.wait_for("stopped")
    saved = checkpoint.read_latest(parted.store, "one")
    assert saved is not None
    assert not saved.final
    parted.feed([position for position in parted.every_position() if position >= (2 * EPOCHS, 0)])
    with Running(parted) as running:
        running.join()
    assert running.error is None
    assert len(parted.reports("stopped")) == 2
    assert ends(parted) == ends(whole)
    assert final_weights(parted) == final_weights(whole)
