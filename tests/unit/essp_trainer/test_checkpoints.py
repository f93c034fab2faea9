"""What a trainer saves and resumes from: the same training, whatever happened in between."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import safetensors.numpy
from prometheus_client import REGISTRY

from essp_common.artifacts import checkpoint, checkpoint_writer, layout, scores
from essp_common.artifacts.checkpoint_files import BadCheckpoint
from essp_common.artifacts.manifest import MODEL_FILE, OPTIMIZER_FILE, Manifest, Rounding
from essp_common.artifacts.scores import ScoreTable
from essp_common.artifacts.staging import Staging, parse_burst
from essp_common.errors import ConfigError, EsspError, Fenced, StorageFull, Unavailable
from essp_common.job.trainer_spec import TrainerSpec
from essp_common.messages.ordered import Delivery
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.pb.v1.messages_pb2 import STORAGE, TRAIN, Control, JobSnapshot, PhasePlan
from essp_common.planning.position import Position
from essp_common.runtime.metrics import CHECKPOINTS
from essp_common.wiring import Stores
from essp_trainer.assignment import Assignment, purpose_name
from essp_trainer.checkpoints.checkpoint_store import CheckpointStore, Snapshot
from essp_trainer.checkpoints.checkpointer import CannotSave
from essp_trainer.checkpoints.state_memory import StateMemory
from essp_trainer.model.step_result import Diverged
from tests.harness.training_jobs import (
    CLASSES,
    ClipPosition,
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
from tests.harness.waiting import LONGEST_S, until

pytestmark = pytest.mark.slow


SCORES = [layout.scores("one", "validation", 0), layout.scores("one", "validation", 1), layout.scores("one", "test", 1)]
SLOW = {"lr": 1e-5}
"""A rate at which weights hardly move, so that differences are worth it."""


def manifests(stage: Stage) -> list[Manifest]:
    """Of all checkpoints that are there."""
    return [checkpoint.read(stage.store, "one", step) for step in checkpoint.steps(stage.store, "one")]


def needed(manifest: Manifest) -> set[int]:
    """Steps of the checkpoints to which its files are differences."""
    return {file.base.step for file in manifest.files if file.base is not None}


def apart(one: Stage, other: Stage) -> float:
    """Norm of the difference of the final weights, over that of the weights."""
    loaded = [safetensors.numpy.load(final_weights(stage)) for stage in (one, other)]
    first, second = (np.concatenate([weights[n].ravel().astype(float) for n in sorted(weights)]) for weights in loaded)
    return float(np.linalg.norm(first - second) / np.linalg.norm(second))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A training that nothing interrupted."""
    return finished(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("stop_after", [(0, 4), (0, 7), (0, 9), (1, 3), (2, 5), (4, 2)])
def test_resumed_equals_uninterrupted(tmp_path: Path, whole: Stage, stop_after: ClipPosition) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    positions = stage.every_position()
    fed = positions.index(stop_after) + 1
    stage.command(Control.START)
    stage.feed(positions[:fed])
    with Running(stage) as running:
        complete = sum(
            1 for number, index in positions[:fed] if _batch_is_complete(stage, positions[:fed], number, index)
        )
        stage.wait_for_trained(complete)
    assert running.error is None
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    start = manifest.position

    again = Stage(stage.spec, stage.plans)  # a new process: nothing is left but the store
    again.command(Control.START)
    again.feed(position for position in positions if position >= start)
    with Running(again) as running:
        running.join()
    assert running.error is None
    assert final_weights(again) == final_weights(whole)
    assert last_training_state(again) == last_training_state(whole)
    for purpose, epoch in (("validation", 0), ("validation", 1), ("test", 1)):
        name = layout.scores("one", purpose, epoch)
        assert again.store.get(name) == whole.store.get(name)


def _batch_is_complete(stage: Stage, fed: Sequence[ClipPosition], number: int, index: int) -> bool:
    last = min(stage.plans[number].clips, (index // 4 + 1) * 4) - 1
    return (number, last) in fed


def test_a_drained_trainer_stands_between_two_batches(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(7)])
    with Running(stage) as running:
        stage.wait_for_trained(1)
    assert running.error is None
    assert [trainer.interrupted for trainer in running.trainers] == [True]
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.position == Position(0, 4)
    assert manifest.updates == 1
    assert stage.bus.backlog("essp.clips", "trainer.one.tiny") == 3


def test_what_no_checkpoint_holds_is_delivered_again(tmp_path: Path) -> None:
    """A trainer that dies is played by one whose store refuses its last checkpoint."""
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(10)] + [(1, i) for i in range(6)] + [(2, i) for i in range(4)])
    with Running(stage) as running:
        stage.wait_for_trained(20)
        (tmp_path / layout.checkpoint("one", 20, 1).rstrip("/")).write_text("in the way")
    assert running.error is None
    [trouble] = stage.reports("trouble")
    assert "part of its path is an object" in trouble.reason
    assert stage.bus.backlog("essp.clips", "trainer.one.tiny") == 10
    assert checkpoint.steps(stage.store, "one") == [10]


def test_of_clips_since_the_last_checkpoint_only_their_places_are_kept(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(1, train=204))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(200)])
    with Running(stage) as running:
        stage.wait_for_trained(200)
        gc.collect()
        held = sum(isinstance(each, Delivery) for each in gc.get_objects())
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


def test_a_training_that_waits_for_its_checkpoints_saves_the_same(tmp_path: Path, whole: Stage) -> None:
    stage = finished(tmp_path, checkpoint={"parallel": "off", "codec": "gzip", "planes": False, "delta": False})
    assert last_training_state(stage) == last_training_state(whole)


def test_most_checkpoints_are_differences_and_resume_to_the_bit(tmp_path: Path, whole: Stage) -> None:
    """The first of a process stands alone, and so does the last of all."""
    stage = Stage(job_spec(tmp_path, checkpoint={"every": 4, "keep": 1}, optimizer=SLOW), phase_plans(2))
    stage.command(Control.START)
    stage.feed(stage.every_position()[:20])
    with Running(stage):
        stage.wait_for("checkpoint", 4)
    before = manifests(stage)
    assert [(manifest.step, needed(manifest)) for manifest in before] == [(4, set()), (10, {4}), (20, {4})]
    again = Stage(stage.spec, stage.plans)
    train(again, [position for position in again.every_position() if position >= before[-1].position])
    after = manifests(again)
    assert {manifest.step for manifest in after if manifest.final and not needed(manifest)}
    plain = Stage(job_spec(tmp_path / "plain", optimizer=SLOW), phase_plans(2))
    train(plain)
    assert final_weights(again) == final_weights(plain)
    assert last_training_state(again) == last_training_state(plain)


def test_a_training_that_resumes_from_rounded_numbers_says_so(tmp_path: Path) -> None:
    """What validation may choose, and what the job ends with, has all bits; what it resumes from need not."""
    rounded = {"every": 4, "keep": 9, "bits": 8, "optimizer": "quantized"}
    stage = Stage(job_spec(tmp_path, checkpoint=rounded), phase_plans(2))
    stage.command(Control.START)
    stage.feed(stage.every_position()[:8])
    with Running(stage):
        stage.wait_for_trained(8)
    saved = checkpoint.read_latest(stage.store, "one")
    assert saved is not None
    assert (saved.step, saved.approximate) == (8, ())
    assert saved.rounding == Rounding(bits=8, scope="channel", files=(MODEL_FILE, OPTIMIZER_FILE))
    again = Stage(stage.spec, stage.plans)
    train(again, [position for position in again.every_position() if position >= saved.position])
    found = {manifest.step: manifest for manifest in manifests(again) if manifest.step > 8}
    assert {manifest.approximate for manifest in found.values()} == {(8,)}
    assert {tuple(report.approximate) for report in again.reports("checkpoint")} == {(8,)}
    assert {step: manifest.rounding and manifest.rounding.files for step, manifest in found.items()} == {
        10: (OPTIMIZER_FILE,),
        20: (MODEL_FILE, OPTIMIZER_FILE),
        24: (MODEL_FILE, OPTIMIZER_FILE),
        26: (OPTIMIZER_FILE,),
        39: None,
    }
    whole = finished(tmp_path / "exact")
    assert final_weights(again) != final_weights(whole)
    assert apart(again, whole) < 0.05


def test_also_the_best_and_the_last_are_rounded_if_asked(tmp_path: Path) -> None:
    stage = finished(tmp_path, checkpoint={"bits": 4, "best": "quantized", "scope": "tensor"})
    assert [manifest.rounding and manifest.rounding.files for manifest in manifests(stage)] == [(MODEL_FILE,)] * 3
    weights = safetensors.numpy.load(final_weights(stage))
    assert max(len(np.unique(array)) for array in weights.values() if array.ndim > 1) <= 16


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


@pytest.mark.parametrize(("keep", "clips"), [(2, {}), (1, {"test": 0}), (1, {"train": 5, "test": 12})])
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


def test_without_validation_and_test_the_last_weights_are_final(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(1, validation=0, test=0))
    train(stage)
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.final
    assert manifest.scores == {}
    assert final_weights(stage) == last_training_state(stage)[MODEL_FILE]


def test_other_settings_cannot_be_resumed(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(4)])
    with Running(stage):
        stage.wait_for_trained(1)
    other = Stage(job_spec(tmp_path, dropout=0.1), phase_plans(2))
    with pytest.raises(ConfigError, match="made with other"):
        train(other)


def test_a_field_that_a_later_version_adds_is_no_other_training(tmp_path: Path) -> None:
    class Later(TrainerSpec):
        sharpness: float = 0.0

    stage = Stage(job_spec(tmp_path), phase_plans(1))
    snapshot = JobSnapshot(
        spec_json=stage.spec.model_dump_json(), classes=CLASSES, layouts={"s": "{}"}, phases=stage.plans
    )
    now = Assignment.of(Control(job="tiny", snapshot=snapshot), "one")
    later = Later.model_validate(now.training.model_dump())
    assert replace(now, training=later).digest() == now.digest()
    assert replace(now, training=later.model_copy(update={"sharpness": 1.0})).digest() != now.digest()


RESULTS = ("/checkpoints/", "/scores/", "/history.json")
"""What a training writes, but for who owns it."""


class Unreliable(Stores):
    """Stores to which files of a training cannot be written while `failing`."""

    def __init__(self, error: EsspError, refuses: Sequence[str] = RESULTS) -> None:
        super().__init__(("file:///",))
        self.failing = True
        self.refused: list[str] = []
        """Checkpoints."""
        self.refuses = refuses
        self._error = error

    def under(self, uri: str, videos: bool = False) -> ObjectStore:
        stores = self

        class Refusing(DirectoryStore):
            def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
                if stores.failing and any(part in key for part in stores.refuses):
                    stores.refused += [key] if "/checkpoints/" in key else []
                    raise stores._error
                return super().put(key, data, if_absent=if_absent)

        return Refusing.from_url(uri)


@pytest.mark.parametrize("error", [Unavailable("No space left on device"), ConfigError("AccessDenied")])
@pytest.mark.parametrize("ranks", [1, 2])
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


@pytest.mark.parametrize("error", [StorageFull("No space left on device"), ConfigError("AccessDenied")])
@pytest.mark.parametrize("ranks", [1, 2])
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


@pytest.mark.parametrize("refused", RESULTS)
@pytest.mark.parametrize("kind", [Unavailable, ConfigError])
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


def test_who_was_overtaken_by_a_later_run_leaves(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(7)])
    with Running(stage) as running:
        stage.wait_for_trained(1)
        checkpoint_writer.claim(stage.store, "one", fence=8)
    assert isinstance(running.error, Fenced)


@pytest.mark.parametrize("ranks", [1, 2])
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


def test_a_lost_pointer_does_not_mean_training_from_scratch(
    tmp_path: Path, whole: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(job_spec(tmp_path, checkpoint={"every": 4}), phase_plans(2))
    stage.command(Control.START)
    stage.feed(stage.every_position()[:24])
    with Running(stage):
        stage.wait_for("checkpoint", 5)
    for info in list(stage.store.list(layout.latest("one"))):
        stage.store.delete(info.key)
    again = Stage(stage.spec, stage.plans)
    again.command(Control.START)
    again.feed(stage.every_position()[24:])
    with Running(again) as running:
        running.join()
    assert running.error is None
    assert "is lost; looking for the newest whole checkpoint" in caplog.text
    assert final_weights(again) == final_weights(whole)


def test_a_damaged_checkpoint_costs_what_it_held(
    tmp_path: Path, whole: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Training resumes from the checkpoint before, and requests the clips since, whose messages are long committed."""
    stage = Stage(job_spec(tmp_path, checkpoint={"every": 4}), phase_plans(2))
    stage.command(Control.START)
    stage.feed(stage.every_position()[:24])
    with Running(stage):
        stage.wait_for("checkpoint", 5)  # at 4, 8, 10 (the end of the phase), 20 and 24
    latest = checkpoint.read(stage.store, "one", checkpoint.steps(stage.store, "one")[-1])
    damaged = latest.prefix + MODEL_FILE
    stage.store.put(damaged, stage.store.get(damaged)[:-1] + b"?")
    with Running(stage) as running:
        lost = [p.failed.clip for p in stage.wait_for("failed", 4)]
        assert "left out" in caplog.text
        assert [(clip.purpose, clip.epoch, clip.index) for clip in lost] == [(TRAIN, 1, index) for index in range(4, 8)]
        stage.feed(stage.every_position()[20:])
        running.join()
    assert running.error is None
    assert final_weights(stage) == final_weights(whole)


def test_other_classes_cannot_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog was built anew under its name, with another class."""
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(4)])
    with Running(stage):
        stage.wait_for_trained(1)
    monkeypatch.setattr("tests.harness.training_jobs.CLASSES", (*CLASSES, "jump"))
    again = Stage(stage.spec, stage.plans)
    with pytest.raises(ConfigError, match=r"made for other classes than the catalog now has \(left, right, still\)"):
        train(again, [])
    assert "set `output`" in again.reports("failed")[0].reason


def test_another_catalog_under_the_same_name_cannot_be_resumed(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    stage.command(Control.START)
    stage.feed(stage.every_position()[:20])
    with Running(stage):
        stage.wait_for_trained(20)
    again = Stage(stage.spec, phase_plans(2, validation=8))
    with pytest.raises(ConfigError, match="phases of other lengths"):
        train(again, [])


class Slow(Stores):
    """Stores in which writing a checkpoint waits until it is allowed to go on."""

    def __init__(self) -> None:
        super().__init__(("file:///",))
        self.allowed = threading.Event()

    def under(self, uri: str, videos: bool = False) -> ObjectStore:
        allowed = self.allowed

        class Waiting(DirectoryStore):
            def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
                if "/checkpoints/" in key and not allowed.wait(LONGEST_S):
                    raise TimeoutError
                return super().put(key, data, if_absent=if_absent)

        return Waiting.from_url(uri)


@pytest.mark.parametrize("ranks", [1, 2])
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


def burst(folder: Path, size: str = "1GiB") -> str:
    return f"{folder.as_uri()}?bytes={size}"


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_goes_on_while_staged_checkpoints_wait_for_the_store(tmp_path: Path, ranks: int) -> None:
    """They count once they are durable, and those that were not begun to be copied come to nothing."""
    stores = Slow()
    staged = CHECKPOINTS.labels("staged")._value.get()
    stage = Stage(job_spec(tmp_path / "slow", checkpoint={"every": 2, "keep": 9}), phase_plans(2), stores=stores)
    stage.command(Control.START)
    stage.feed(stage.every_position())
    with Running(stage, ranks, burst=burst(tmp_path / "nvme")) as running, ExitStack() as leaving:
        leaving.callback(stores.allowed.set)
        stage.wait_for_trained(16)  # without a buffer no more than two batches are trained
        until(lambda: CHECKPOINTS.labels("staged")._value.get() - staged == 3)
        assert stage.reports("checkpoint") == []
        assert stage.bus.backlog("essp.clips", "trainer.one.tiny") == len(stage.every_position())
        stores.allowed.set()
        running.join()
    assert running.error is None
    assert stage.reports("trouble") == []
    plain = Stage(job_spec(tmp_path / "plain", checkpoint={"every": 2, "keep": 9}), phase_plans(2))
    train(plain, ranks=ranks)
    assert final_weights(stage) == final_weights(plain)
    assert last_training_state(stage) == last_training_state(plain)
    steps = checkpoint.steps(stage.store, "one")
    assert {4, 10, 26, 39} <= set(steps) < set(checkpoint.steps(plain.store, "one"))
    assert stage.bus.backlog("essp.clips", "trainer.one.tiny") == 0
    assert sorted(path.name for path in (tmp_path / "nvme").rglob("*") if path.is_file()) == ["lock", "owner"]


@pytest.mark.parametrize("trouble", ["no room", "no folder", "another process"])
def test_a_burst_buffer_that_cannot_be_used_costs_no_checkpoint(tmp_path: Path, whole: Stage, trouble: str) -> None:
    CHECKPOINTS.clear()
    stage = Stage(job_spec(tmp_path / "run", checkpoint={"every": 4}), phase_plans(2))
    folder, room = tmp_path / "nvme", "1KiB" if trouble == "no room" else "1GiB"
    if trouble == "no folder":
        folder.write_text("a file")
    with ExitStack() as stack:
        if trouble == "another process":
            place = Staging(parse_burst(burst(folder)), stage.spec.output, "one", "")
            stack.enter_context(closing(place))
        stage.command(Control.START)
        stage.feed(stage.every_position())
        with Running(stage, burst=burst(folder, room)) as running:
            running.join()
    assert running.error is None
    [said] = stage.reports("trouble")
    assert "checkpoints go past the burst buffer" in said.reason
    assert not said.unsaved
    # Counted from 0 on: the increase of a counter that is born at 1 is not seen.
    assert REGISTRY.get_sample_value("essp_checkpoints_total", {"outcome": "failed"}) == 0
    assert final_weights(stage) == final_weights(whole)


def test_a_copy_that_failed_does_not_take_the_room_of_later_ones(tmp_path: Path, whole: Stage) -> None:
    """The buffer has room for one checkpoint, and what was saved past it meanwhile is newer than what it holds."""
    room = int(1.5 * max(sum(file.size_bytes for file in each.files) for each in manifests(whole)))
    stores = Unreliable(Unavailable("no answer"))
    stage = Stage(job_spec(tmp_path / "run", checkpoint={"every": 4}), phase_plans(2), stores=stores)
    positions = stage.every_position()
    stage.command(Control.START)
    stage.feed(positions[:8])
    staged = CHECKPOINTS.labels("staged")._value.get()
    with Running(stage, save_retry_s=0, burst=burst(tmp_path / "nvme", str(room))) as running:
        stage.wait_for("trouble")
        stage.wait_for_trained(8)
        assert CHECKPOINTS.labels("staged")._value.get() - staged == 1
        stores.failing = False
        stage.feed(positions[8:])
        running.join()
    assert running.error is None
    assert CHECKPOINTS.labels("staged")._value.get() - staged > 1
    assert final_weights(stage) == final_weights(whole)


@pytest.mark.parametrize("node", ["same", "other"])
def test_what_is_staged_is_resumed_from_where_it_lies(tmp_path: Path, whole: Stage, node: str) -> None:
    """The job's store refuses each checkpoint, and the process leaves. Then the store is well again."""
    stores = Unreliable(Unavailable("No space left on device"))
    stage = Stage(job_spec(tmp_path / "run", checkpoint={"every": 4}), phase_plans(2), stores=stores)
    stage.command(Control.START)
    stage.feed(stage.every_position()[:8])
    with Running(stage, burst=burst(tmp_path / "same")) as running:
        stage.wait_for_trained(8)
    assert running.error is None
    assert checkpoint.read_latest(stage.store, "one") is None
    stores.failing = False
    again = Stage(stage.spec, stage.plans, stores=stores)
    again.command(Control.START)
    again.feed(again.every_position()[8 if node == "same" else 0 :])
    with Running(again, burst=burst(tmp_path / node)) as running:
        running.join()
    assert running.error is None
    assert final_weights(again) == final_weights(whole)
    assert last_training_state(again) == last_training_state(whole)


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
