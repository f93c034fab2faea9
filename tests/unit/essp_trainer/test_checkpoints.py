"""What trainers save, when, and what of it becomes final."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from essp_common.artifacts import checkpoint, layout
from essp_common.artifacts.manifest import MODEL_FILE
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import Control
from essp_engine.intake.ordered import Delivery, PhaseEnd
from essp_engine.loading.device_feed import DeviceFeed
from essp_trainer.checkpoints import interval
from essp_trainer.model.step_result import Diverged
from tests.harness.checkpoints import manifests
from tests.harness.training_jobs import (
    Running,
    Stage,
    final_weights,
    finished,
    job_spec,
    last_training_state,
    phase_plans,
    train,
)
from tests.harness.troubled_stores import Slow
from tests.lanes import often

pytestmark = pytest.mark.slow


def test_of_clips_since_the_last_checkpoint_only_their_places_are_kept(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(1, train=204))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(200)])
    of_others = [each for each in gc.get_objects() if type(each) is Delivery]  # of tests before this one
    with Running(stage) as running:
        stage.wait_for_trained(200)
        gc.collect()
        held = sum(type(each) is Delivery for each in gc.get_objects()) - len(of_others)
    assert running.error is None
    assert held <= 2 * 4, "what is in hand: a batch, and one that is released"
    assert stage.bus.backlog("essp.clips", "trainer.one.tiny") == 0


def ruined_at_the_end(folder: Path, **options: Any) -> Stage:
    """A training whose second epoch shows only black frames, which ruin what the first has taught."""
    stage = Stage(job_spec(folder, checkpoint={"keep": 1}, **options), phase_plans(2, train=40))
    stage.command(Control.START)
    stage.feed(position for position in stage.every_position() if position[0] != 2)
    stage.feed([(2, i) for i in range(40)], frames=np.zeros((3, 20, 20, 3), np.uint8))
    with Running(stage) as running:
        running.join()
    assert running.error is None
    return stage


def test_the_best_validation_is_kept_tested_and_made_final(tmp_path: Path) -> None:
    stage = ruined_at_the_end(tmp_path / "two")
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.best is not None
    assert manifest.best.epoch == manifest.epoch == 0
    assert manifest.updates == checkpoint.read(stage.store, "one", manifest.best.step).updates
    assert checkpoint.steps(stage.store, "one") == [40, 86, manifest.step], "the best, the last to go on from, the end"
    assert manifest.scores["validation"] == layout.scores("one", "validation", 0)

    only = Stage(job_spec(tmp_path / "one", epochs=1), phase_plans(1, train=40))
    train(only)
    assert final_weights(stage) == final_weights(only)
    assert stage.store.get(manifest.scores["test"]) == only.store.get(layout.scores("one", "test", 0))


def test_the_last_epoch_is_made_final_where_a_job_asks_for_it(tmp_path: Path) -> None:
    manifest = checkpoint.read_latest(ruined_at_the_end(tmp_path, choose="last").store, "one")
    assert manifest is not None
    assert manifest.best is not None
    assert manifest.best.epoch == manifest.epoch == 1
    assert manifest.scores["validation"] == layout.scores("one", "validation", 1)


def test_checkpoints_within_an_epoch(tmp_path: Path) -> None:
    stage = finished(tmp_path, checkpoint={"every": 4, "keep": 20})
    assert checkpoint.steps(stage.store, "one") == [4, 8, 10, 20, 24, 26, 39]


def test_checkpoints_within_an_epoch_as_often_as_their_cost_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interval, "LEAST_S", 1e-9)
    stage = finished(tmp_path, checkpoint={"overhead": 1.0, "keep": 99, "parallel": "off"})
    within = [manifest.position for manifest in manifests(stage) if manifest.position.index]
    assert within
    assert all(position.phase_index in (0, 2) for position in within), "never within an evaluation"


def test_the_end_of_an_epoch_is_saved_when_the_epoch_has_ended(tmp_path: Path) -> None:
    """Not after its last clip, where the next checkpoint would have the same step."""
    stage = finished(tmp_path, checkpoint={"every": 10, "keep": 20})
    found = {manifest.step: manifest for manifest in manifests(stage)}
    assert (found[10].position, found[26].position) == (Position(1, 0), Position(3, 0))
    assert found[39].best is not None


def test_an_epoch_that_is_about_to_end_ends_before_a_trainer_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    running, take, held = Running(stage), DeviceFeed.next, list[PhaseEnd]()
    drained: list[PhaseEnd] = []

    def late(feed: DeviceFeed, timeout_s: float) -> Any:
        item = held.pop() if held else take(feed, timeout_s)
        if isinstance(item, PhaseEnd) and not drained:
            running.trainers[0].drain()
            drained.append(item)
            held.append(item)
            return None
        return item

    monkeypatch.setattr(DeviceFeed, "next", late)
    stage.command(Control.START)
    stage.feed((0, index) for index in range(10))
    with running:
        running.join()
    assert running.error is None
    assert [manifest.position for manifest in manifests(stage)] == [Position(1, 0)]


def test_who_leaves_before_its_first_clip_saves_nothing(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    stage.command(Control.START)
    with Running(stage) as running:
        stage.wait_for("step")
    assert running.error is None
    assert checkpoint.steps(stage.store, "one") == []


def test_what_is_due_before_the_first_clip_that_can_be_decoded_is_saved_after_it(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path, checkpoint={"every": 4, "keep": 20}), phase_plans(2))
    train(stage, skipped=[(0, index) for index in range(4)])
    assert checkpoint.steps(stage.store, "one")[:2] == [8, 10]


def test_a_training_that_waits_for_its_checkpoints_saves_the_same(tmp_path: Path, whole: Stage) -> None:
    stage = finished(tmp_path, checkpoint={"parallel": "off", "codec": "gzip", "planes": False, "delta": False})
    assert last_training_state(stage) == last_training_state(whole)


def test_also_the_best_and_the_last_are_rounded_if_asked(tmp_path: Path) -> None:
    stage = finished(tmp_path, checkpoint={"bits": 4, "best": "quantized", "scope": "tensor"})
    assert [manifest.rounding and manifest.rounding.files for manifest in manifests(stage)] == [(MODEL_FILE,)] * 3
    weights = safetensors.numpy.load(final_weights(stage))
    assert max(len(np.unique(array)) for array in weights.values() if array.ndim > 1) <= 16


def test_without_validation_and_test_the_last_weights_are_final(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(1, validation=0, test=0))
    train(stage)
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.final
    assert manifest.scores == {}
    assert final_weights(stage) == last_training_state(stage)[MODEL_FILE]


@pytest.mark.parametrize("ranks", often([2, 1], 1))
def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path, ranks: int) -> None:
    """A checkpoint holds the state at the moment it began, not what training changed since."""
    stores = Slow()
    stage = Stage(job_spec(tmp_path / "slow", checkpoint={"every": 8, "keep": 9}), phase_plans(2), stores=stores)
    stage.command(Control.START)
    stage.feed(stage.every_position())
    with Running(stage, ranks) as running:
        stage.wait_for_trained(10)
        assert stage.reports("checkpoint") == []
        assert stage.bus.backlog("essp.clips", "trainer.one.tiny") == len(stage.every_position())
        stores.allowed.set()
        running.join()
    assert running.error is None
    plain = Stage(job_spec(tmp_path / "plain", checkpoint={"every": 8, "keep": 9}), phase_plans(2))
    train(plain, ranks=ranks)
    steps = checkpoint.steps(plain.store, "one")
    assert checkpoint.steps(stage.store, "one") == steps == [8, 10, 20, 26, 39]
    for step in steps:
        one, other = (checkpoint.read(s.store, "one", step) for s in (stage, plain))
        assert one.files == other.files
        assert (one.position, one.digest, one.updates) == (other.position, other.digest, other.updates)


def test_a_checkpoint_under_way_is_finished_before_an_error_ends_the_process(tmp_path: Path) -> None:
    stores = Slow()
    stage = Stage(job_spec(tmp_path, feature="heat", checkpoint={"every": 4}), phase_plans(2), stores=stores)
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(4)], frames=np.zeros((1, 20, 20, 4), np.float32))
    with Running(stage) as running:
        stage.wait_for_trained(1)
        stage.feed([(0, i) for i in range(4, 8)], frames=np.full((1, 20, 20, 4), np.nan, np.float32))
        stores.allowed.set()
        running.join()
    assert isinstance(running.error, Diverged)
    assert checkpoint.steps(stage.store, "one") == [4]
    assert checkpoint.read_latest(stage.store, "one") is not None
