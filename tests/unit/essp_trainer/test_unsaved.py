"""Checkpoints, scores and histories that a store refuses: training goes on, and what was refused is saved later."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from essp_common.artifacts import checkpoint, layout, scores
from essp_common.artifacts.manifest import MODEL_FILE, Manifest
from essp_common.artifacts.scores import ScoreTable
from essp_common.errors import ConfigError, EsspError, StorageFull, Unavailable
from essp_common.job.position import Position
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.pb.v1.messages_pb2 import STORAGE, Control, PhasePlan
from essp_common.runtime.metrics import CHECKPOINTS
from essp_common.wiring import Stores
from essp_trainer.checkpoints.checkpoint_store import CheckpointStore, Snapshot
from essp_trainer.checkpoints.checkpointer import CannotSave
from essp_trainer.checkpoints.state_memory import StateMemory
from tests.harness.checkpoints import manifests, needed
from tests.harness.training_jobs import Running, Stage, final_weights, job_spec, phase_plans, train
from tests.harness.troubled_stores import RESULTS, Unreliable
from tests.harness.waiting import LONGEST_S
from tests.lanes import across, often

pytestmark = pytest.mark.slow

SCORES = [layout.scores("one", "validation", 0), layout.scores("one", "validation", 1), layout.scores("one", "test", 1)]


@pytest.mark.parametrize(
    ("ranks", "error"), often(across([2, 1], [Unavailable("No space left on device"), ConfigError("AccessDenied")]), 1)
)
def test_a_checkpoint_that_cannot_be_saved_is_reported_and_tried_again(
    tmp_path: Path, error: EsspError, ranks: int
) -> None:
    failed = CHECKPOINTS.labels("failed")._value.get()
    stores = Unreliable(error)
    stage = Stage(job_spec(tmp_path / "full", checkpoint={"every": 4}), phase_plans(2), stores=stores)
    stage.command(Control.START)
    positions = stage.every_position()
    stage.feed(positions[:12])  # not the whole validation: of weights that cannot be saved none can be the best
    with Running(stage, ranks, save_retry_s=0) as running:
        [trouble] = stage.wait_for("trouble")
        assert "could not be saved; it will be tried again" in trouble.trouble.reason
        assert str(error) in trouble.trouble.reason
        stage.wait_for_trained(10)
        assert checkpoint.read_latest(stage.store, "one") is None
        stores.failing = False
        stage.wait_for("checkpoint")
        stage.feed(positions[12:])
        running.join()
    assert running.error is None
    assert CHECKPOINTS.labels("failed")._value.get() - failed == len(stores.refused) > 0
    plain = Stage(job_spec(tmp_path / "plain"), phase_plans(2))
    train(plain, ranks=ranks)
    assert final_weights(stage) == final_weights(plain)
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.best is not None
    assert stage.bus.backlog("essp.clips", "trainer.one.tiny") == 0


def test_while_saves_fail_they_are_tried_at_the_ends_of_epochs_and_not_every_few_clips(tmp_path: Path) -> None:
    stores = Unreliable(Unavailable("503 Slow Down"))
    stage = Stage(job_spec(tmp_path, checkpoint={"every": 4}), phase_plans(2), stores=stores)
    stage.command(Control.START)
    stage.feed(stage.every_position()[:4])
    with Running(stage, save_retry_s=1000):
        stage.wait_for("trouble")
        stage.feed(stage.every_position()[4:16])
        stage.wait_for("phase_report", 2)
        assert {key.split("/")[3] for key in stores.refused} == {"0000000004-0000000001", "0000000010-0000000001"}


def test_a_checkpoint_that_is_late_holds_nothing_of_the_evaluation_that_has_begun(tmp_path: Path) -> None:
    """That begins again at its first clip."""
    stores = Unreliable(Unavailable("503 Slow Down"))
    stage = Stage(job_spec(tmp_path), phase_plans(2), stores=stores)
    stage.command(Control.START)
    stage.feed(stage.every_position()[:14])
    with Running(stage, save_retry_s=1000) as running:
        stage.wait_for("trouble")
        stage.wait_for_trained(14)
        stores.failing = False
    assert running.error is None
    [saved] = manifests(stage)
    assert (saved.position, saved.running) == (Position(1, 0), {})


def test_none_is_a_difference_to_one_that_could_not_be_saved(tmp_path: Path) -> None:
    stores = Unreliable(Unavailable("503 Slow Down"))
    spec = job_spec(tmp_path, checkpoint={"every": 4, "keep": 9, "parallel": "thread"}, optimizer={"lr": 1e-5})
    stage = Stage(spec, phase_plans(1), stores=stores)
    stage.command(Control.START)
    positions = stage.every_position()
    stage.feed(positions[:4])
    with Running(stage, save_retry_s=0) as running:
        stage.wait_for("trouble")
        stores.failing = False
        stage.feed(positions[4:])
        running.join()
    assert running.error is None
    there = manifests(stage)
    for manifest in there:
        checkpoint.verify(stage.store, manifest)
    assert any(needed(manifest) for manifest in there)


@pytest.mark.parametrize(
    ("ranks", "error"), often(across([1, 2], [StorageFull("No space left on device"), ConfigError("AccessDenied")]), 1)
)
def test_a_store_that_refuses_everything_stops_no_phase(tmp_path: Path, error: EsspError, ranks: int) -> None:
    """All scores are there in the end, and the history is whole."""
    stores = Unreliable(error)
    stage = Stage(job_spec(tmp_path), phase_plans(2), stores=stores)
    stage.command(Control.START)
    stage.feed(stage.every_position()[:-2])
    with Running(stage, ranks, save_retry_s=0) as running:
        stage.wait_for("phase_report", 4)
        assert checkpoint.read_latest(stage.store, "one") is None
        assert any(report.unsaved and str(error) in report.reason for report in stage.reports("trouble"))
        stores.failing = False
        stage.feed(stage.every_position()[-2:])
        running.join()
    assert running.error is None
    for name in SCORES:
        scores.read(stage.store, name)
    assert len(json.loads(stage.store.get(layout.history("one")))) == len(stage.plans)
    assert final_weights(stage) == last_training_state_of_a_whole_one(tmp_path / "plain", ranks)


def last_training_state_of_a_whole_one(path: Path, ranks: int) -> bytes:
    """The weights after the last epoch: of those before it none was saved, so none can be the best."""
    plain = Stage(job_spec(path, choose="last"), phase_plans(2))
    train(plain, ranks=ranks)
    return final_weights(plain)


def test_weights_that_could_not_be_saved_are_not_the_best(tmp_path: Path) -> None:
    """Those before them stay it, with their own scores."""
    stores = Unreliable(Unavailable("503 Slow Down"), ["/checkpoints/"])
    stores.failing = False
    stage = Stage(job_spec(tmp_path, choose="last"), phase_plans(2), stores=stores)
    positions = stage.every_position()
    stage.command(Control.START)
    stage.feed(positions[:16])
    with Running(stage, save_retry_s=0) as running:
        stage.wait_for("phase_report", 2)
        stores.failing = True
        stage.feed(positions[16:32])
        stage.wait_for("phase_report", 4)
        stores.failing = False
        stage.feed(positions[32:])
        running.join()
    assert running.error is None
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.best is not None
    assert (manifest.best.epoch, manifest.epoch, manifest.scores["validation"]) == (0, 0, SCORES[0])


@pytest.mark.parametrize("refused", ["/scores/", "/history.json"])
def test_what_was_refused_for_a_while_is_written_later(tmp_path: Path, whole: Stage, refused: str) -> None:
    stores = Unreliable(Unavailable("503 Slow Down"), [refused])
    stage = Stage(job_spec(tmp_path), phase_plans(2), stores=stores)
    stage.command(Control.START)
    positions = stage.every_position()
    stage.feed(positions[:20])
    with Running(stage, save_retry_s=0) as running:
        stage.wait_for("trouble")
        stage.wait_for_trained(20)
        stores.failing = False
        stage.feed(positions[20:])
        running.join()
    assert running.error is None
    assert final_weights(stage) == final_weights(whole)
    for name in SCORES:
        assert stage.store.get(name) == whole.store.get(name)
    assert len(json.loads(stage.store.get(layout.history("one")))) == len(stage.plans)


def test_a_history_that_was_refused_to_the_end_is_written_before_the_final_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it costs no checkpoint more than there would be."""
    monkeypatch.setattr("essp_trainer.checkpoints.checkpointer._wait", lambda seconds: None)
    stores = Unreliable(Unavailable("503 Slow Down"), ["/history.json"])
    stage = Stage(job_spec(tmp_path, checkpoint={"keep": 20}), phase_plans(2), stores=stores)
    stage.command(Control.START)
    stage.feed(stage.every_position())
    with Running(stage, save_retry_s=0) as running:
        stage.wait_for("phase_report", 5)
        stores.failing = False
        running.join()
    assert running.error is None
    assert len(json.loads(stage.store.get(layout.history("one")))) == len(stage.plans)
    assert checkpoint.steps(stage.store, "one") == [10, 26, 39]


def test_a_checkpoint_of_before_an_evaluation_does_not_wait_for_its_scores(
    tmp_path: Path, whole: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would depend on how long the store takes whether validated weights can be the best."""
    stores = Unreliable(Unavailable("503 Slow Down"), ["/scores/"])
    stage = Stage(job_spec(tmp_path), phase_plans(2), stores=stores)
    refused = threading.Event()
    save, write_scores = CheckpointStore.save, CheckpointStore.write_scores

    def late(store: CheckpointStore, snapshot: Snapshot) -> Manifest:
        assert refused.wait(LONGEST_S)
        return save(store, snapshot)

    def written(store: CheckpointStore, plan: PhasePlan, table: ScoreTable) -> None:
        try:
            write_scores(store, plan, table)
        finally:
            refused.set()

    monkeypatch.setattr(CheckpointStore, "save", late)
    monkeypatch.setattr(CheckpointStore, "write_scores", written)
    stage.command(Control.START)
    positions = stage.every_position()
    stage.feed(positions[:20])
    with Running(stage, save_retry_s=0) as running:
        stage.wait_for_trained(20)
        stores.failing = False
        stage.feed(positions[20:])
        running.join()
    assert running.error is None
    assert Position.of(stage.reports("checkpoint")[0].position) == Position(1, 0)
    assert final_weights(stage) == final_weights(whole)


def test_no_checkpoint_passes_an_evaluation_whose_scores_are_not_stored(tmp_path: Path, whole: Stage) -> None:
    """A process that ends there makes them again."""
    stage = Stage(job_spec(tmp_path), phase_plans(2), stores=Unreliable(ConfigError("AccessDenied"), ["/scores/"]))
    positions = stage.every_position()
    stage.command(Control.START)
    begins = Position(1, 0)
    stage.feed([position for position in positions if position < begins])
    with Running(stage) as running:
        [saved] = stage.wait_for("checkpoint")
        assert Position.of(saved.checkpoint.position) == begins
        stage.feed([position for position in positions[:24] if position >= begins])
        stage.wait_for_trained(24)
    assert running.error is None
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.position == begins
    again = Stage(stage.spec, stage.plans)
    train(again, [position for position in positions if position >= manifest.position])
    assert final_weights(again) == final_weights(whole)
    for name in SCORES:
        assert again.store.get(name) == whole.store.get(name)


class FullDisk(Stores):
    """Stores in which files of a training go to a device without room, while `full`."""

    def __init__(self) -> None:
        super().__init__(("file:///",))
        self.full = True

    def under(self, uri: str, videos: bool = False) -> ObjectStore:
        stores = self

        class Full(DirectoryStore):
            def _begun(self, key: str, folder: str, temporary: str) -> BinaryIO:
                if stores.full and any(part in key for part in RESULTS):
                    return open("/dev/full", "wb")
                return super()._begun(key, folder, temporary)

        return Full.from_url(uri)


def test_training_goes_on_while_the_disk_is_full(tmp_path: Path, whole: Stage) -> None:
    """The kernel says so: writing to this device fails as on a full disk."""
    stores = FullDisk()
    stage = Stage(job_spec(tmp_path, checkpoint={"every": 4}), phase_plans(2), stores=stores)
    stage.command(Control.START)
    positions = stage.every_position()
    stage.feed(positions[:12])
    with Running(stage, save_retry_s=0) as running:
        [trouble] = stage.wait_for("trouble")
        assert "No space left on device; make room there" in trouble.trouble.reason
        stage.wait_for_trained(10)
        assert checkpoint.read_latest(stage.store, "one") is None
        stores.full = False
        stage.wait_for("checkpoint")
        stage.feed(positions[12:])
        running.join()
    assert running.error is None
    assert final_weights(stage) == final_weights(whole)


def test_a_copy_for_which_there_is_no_memory_is_a_save_that_failed(
    tmp_path: Path, whole: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = StateMemory.take
    refused: list[Any] = []

    def taken(self: StateMemory, files: Any, moving: Any) -> None:
        if not refused:
            refused.append(files)
            raise Unavailable("no memory for a copy")
        take(self, files, moving)

    monkeypatch.setattr(StateMemory, "take", taken)
    stage = Stage(job_spec(tmp_path, checkpoint={"every": 4}), phase_plans(2))
    stage.command(Control.START)
    stage.feed(stage.every_position())
    with Running(stage, save_retry_s=0) as running:
        running.join()
    assert running.error is None
    [trouble] = stage.reports("trouble")
    assert "no memory for a copy" in trouble.reason
    assert final_weights(stage) == final_weights(whole)


@pytest.mark.parametrize(("kind", "refused"), often(across([Unavailable, ConfigError], RESULTS), 1))
def test_a_final_checkpoint_that_cannot_be_saved_fails_the_training(
    tmp_path: Path, kind: type[EsspError], refused: str
) -> None:
    stores = Unreliable(kind("No space left on device"), [refused])
    stage = Stage(job_spec(tmp_path), phase_plans(1), stores=stores)
    stage.command(Control.START)
    stage.feed(stage.every_position())
    with Running(stage, final_save_timeout_s=0.1) as running:
        running.join()
    assert isinstance(running.error, CannotSave)
    [failed] = stage.reports("failed")
    assert failed.kind == STORAGE
    assert "No space left on device; make room" in failed.reason


@pytest.mark.parametrize("kind", often([ConfigError, Unavailable], 1))
def test_who_leaves_while_the_final_checkpoint_is_refused_has_not_failed(
    tmp_path: Path, kind: type[EsspError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is drained, or the job is stopped: started again, it goes on from the checkpoint before."""
    monkeypatch.setattr("essp_trainer.checkpoints.checkpointer._wait", lambda seconds: None)
    stores = Unreliable(kind("no answer"), ["/checkpoints/0000000023-"])
    stage = Stage(job_spec(tmp_path), phase_plans(1), stores=stores)
    stage.command(Control.START)
    stage.feed(stage.every_position())
    with Running(stage, final_save_timeout_s=1000) as running:
        stage.wait_for("trouble")
    assert running.error is None
    assert running.trainers[0].interrupted
    assert stage.reports("failed") == []
    stores.failing = False
    again = Stage(stage.spec, stage.plans, stores=stores)
    train(again, [position for position in again.every_position() if position >= (1, 0)])
    assert final_weights(again)


class Flipping(Stores):
    """Stores on whose disk a bit of the final weights flips, the first time that they are written."""

    def __init__(self) -> None:
        super().__init__(("file:///",))
        self.written = 0

    def under(self, uri: str, videos: bool = False) -> ObjectStore:
        stores = self

        class Flips(DirectoryStore):
            def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
                if "/0000000039-" in key and key.endswith(MODEL_FILE):
                    stores.written += 1
                    if stores.written == 1:
                        data = data[:-1] + bytes([data[-1] ^ 1])
                return super().put(key, data, if_absent=if_absent)

        return Flips.from_url(uri)


def test_a_final_checkpoint_that_reads_back_differently_is_written_again(
    tmp_path: Path, whole: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("essp_trainer.checkpoints.checkpointer._wait", lambda seconds: None)
    stores = Flipping()
    stage = Stage(job_spec(tmp_path), phase_plans(2), stores=stores)
    train(stage)
    assert stores.written == 2
    assert final_weights(stage) == final_weights(whole)
    [trouble] = stage.reports("trouble")
    assert trouble.unsaved
    assert "it was written just now, so see that the store" in trouble.reason
    assert "backup" not in trouble.reason
