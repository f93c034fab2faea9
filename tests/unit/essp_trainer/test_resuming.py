"""A trainer that starts again goes on from what is stored, to the same weights, or says why it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from essp_common.artifacts import checkpoint, layout
from essp_common.artifacts.manifest import MODEL_FILE, OPTIMIZER_FILE, Rounding
from essp_common.artifacts.ownership import LatestLog
from essp_common.errors import ConfigError
from essp_common.job.position import Position
from essp_common.job.trainer_spec import TrainerSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, Control, JobSnapshot
from essp_trainer.assignment import Assignment
from tests.harness.checkpoints import manifests, needed
from tests.harness.training_jobs import (
    CLASSES,
    ClipPosition,
    Running,
    Stage,
    final_weights,
    finished,
    job_spec,
    last_training_state,
    phase_plans,
    train,
)
from tests.lanes import often

pytestmark = pytest.mark.slow

SLOW = {"lr": 1e-5}
"""A rate at which weights hardly move, so that differences are worth it."""


def apart(one: Stage, other: Stage) -> float:
    """Norm of the difference of the final weights, over that of the weights."""
    loaded = [safetensors.numpy.load(final_weights(stage)) for stage in (one, other)]
    first, second = (np.concatenate([weights[n].ravel().astype(float) for n in sorted(weights)]) for weights in loaded)
    return float(np.linalg.norm(first - second) / np.linalg.norm(second))


@pytest.mark.parametrize(("phase", "clip"), often([(1, 3), (2, 5), (4, 2), (0, 4), (0, 7), (0, 9)], 2))
def test_resumed_equals_uninterrupted(tmp_path: Path, whole: Stage, phase: int, clip: int) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    positions = stage.every_position()
    fed = positions.index((phase, clip)) + 1
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


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trainer_tells_of_the_checkpoint_from_which_it_goes_on(tmp_path: Path, ranks: int) -> None:
    """The master may have looked before that was made, and nobody takes the clips that it holds."""
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(8)])
    with Running(stage, ranks=ranks) as running:
        stage.wait_for_trained(8)
    assert running.error is None
    assert not any(told.resumed for told in stage.reports("checkpoint")), "it began with nothing"
    again = Stage(stage.spec, stage.plans)
    again.command(Control.START)
    with Running(again, ranks=ranks) as running:
        [heard] = again.wait_for("checkpoint")
    assert running.error is None
    assert heard.fence == again.control(Control.START).fence
    assert heard.checkpoint.resumed
    heard.checkpoint.resumed = False
    assert heard.checkpoint == stage.reports("checkpoint")[-1]
    assert len(again.reports("checkpoint")) == 1, "once, by whatever many ranks"


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


def test_who_resumes_and_leaves_at_once_saves_nothing_anew(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path, checkpoint={"every": 4}), phase_plans(2))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(4)])
    with Running(stage):
        stage.wait_for("checkpoint")
    [saved] = checkpoint.complete(stage.store, "one")
    again = Stage(stage.spec, stage.plans)
    again.command(Control.START)
    with Running(again) as running:
        again.wait_for("step")
    assert running.error is None
    assert checkpoint.complete(stage.store, "one") == [saved]


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


def test_what_a_training_is_stays_in_its_checkpoints_when_it_resumes(tmp_path: Path, whole: Stage) -> None:
    """What it began with, of which clips, for how many epochs, and what its last phase came to."""
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(final_weights(whole))
    spec = job_spec(tmp_path / "run", checkpoint={"every": 4, "keep": 20}, weights=weights.as_uri())
    stage = Stage(spec, phase_plans(2), training_digest=3)
    stage.command(Control.START)
    stage.feed(stage.every_position()[:8])
    with Running(stage):
        stage.wait_for("checkpoint", 2)
    again = Stage(spec, stage.plans, training_digest=3)
    train(again, again.every_position()[8:])
    found = manifests(again)
    assert [manifest.step for manifest in found] == [4, 8, 10, 20, 24, 26, 39]
    assert {(manifest.origin and manifest.origin.uri, manifest.clips, manifest.epochs) for manifest in found} == {
        (weights.as_uri(), 3, 2)
    }
    for manifest in found:
        assert manifest.metrics == (manifest.history[-1].metrics if manifest.history else {})


@pytest.mark.parametrize("skipped", [(0, 3), (1, 3), (4, 3)])
def test_a_checkpoint_tells_which_clips_were_seen(tmp_path: Path, whole: Stage, skipped: ClipPosition) -> None:
    """In training, and in evaluations."""
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    train(stage, skipped=[skipped])
    assert manifests(stage)[-1].digest != manifests(whole)[-1].digest


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
    said = [(report.resumed, tuple(report.approximate)) for report in again.reports("checkpoint")]
    assert (said[0], {*said[1:]}) == ((True, ()), {(False, (8,))})
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


@pytest.mark.parametrize("damaged", [False, True])
def test_other_settings_cannot_be_resumed(tmp_path: Path, damaged: bool) -> None:
    """A process that trains with those is not disturbed, unless its last checkpoint is damaged."""
    stage = Stage(job_spec(tmp_path, checkpoint={"every": 4}), phase_plans(2))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(8)])
    with Running(stage):
        stage.wait_for("checkpoint", 2)
    entries, newest = LatestLog(stage.store, "one"), manifests(stage)[-1]
    owner = entries.last()
    if damaged:
        stage.store.put(newest.key, b"{}")
    other = Stage(job_spec(tmp_path, dropout=0.1), phase_plans(2))
    with pytest.raises(ConfigError, match="made with other"):
        train(other)
    assert (entries.last() == owner) != damaged


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


def test_versions_have_an_order(tmp_path: Path) -> None:
    """So that equal trainings write equal manifests; a map in a message has none."""
    stage = Stage(job_spec(tmp_path), phase_plans(1))
    control = stage.control(Control.START)
    control.snapshot.versions.update({f"library-{number}": "1" for number in range(20)})
    versions = Assignment.of(control, "one").versions
    assert list(versions) == sorted(control.snapshot.versions)


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
