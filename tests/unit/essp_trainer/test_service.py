"""A trainer as the rest of the system meets it: clips in by bus and cache, weights, scores and progress out."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch

from essp_common import topics
from essp_common.artifacts import checkpoint, layout, scores
from essp_common.cache.port import clip_key
from essp_common.errors import Unavailable
from essp_common.job.position import Position
from essp_common.messages.control import ControlFeed
from essp_common.objects.port import NoBucket
from essp_common.pb.v1.messages_pb2 import (
    LOST,
    TEST,
    TRAIN,
    TRAINER,
    VALIDATION,
    ClipRef,
    Control,
)
from essp_engine.intake.ordered import Delivery, OrderedIntake, PhaseEnd
from essp_engine.loading.batch import Batch
from essp_engine.loading.device_feed import DeviceFeed
from essp_trainer import service
from essp_trainer.config import TrainerConfig, TrainerSettings
from essp_trainer.distributed.ranks import SingleRank
from essp_trainer.model.evaluation import clip_and_video_figures
from essp_trainer.releases import Releases
from essp_trainer.service import Trainer
from tests.harness.fleet import Clock
from tests.harness.training_jobs import (
    CLASSES,
    Running,
    Stage,
    clip_ref,
    final_weights,
    finished,
    job_spec,
    last_training_state,
    phase_plans,
    train,
)
from tests.harness.troubled_stores import Unreliable
from tests.harness.waiting import LONGEST_S, until


def test_a_job_ends_with_weights_scores_and_an_empty_cache(tmp_path: Path) -> None:
    stage = finished(tmp_path)
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.final
    assert manifest.position == Position(len(stage.plans), 0)
    assert manifest.model.classes == CLASSES
    assert manifest.model.channels == 3
    assert [(r.purpose, r.epoch) for r in manifest.history] == [
        ("train", 0),
        ("validation", 0),
        ("train", 1),
        ("validation", 1),
        ("test", 0),
    ]
    for purpose, epoch, clips in (("validation", 0, 6), ("validation", 1, 6), ("test", 1, 6)):
        table = scores.read(stage.store, layout.scores("one", purpose, epoch))
        assert table.clip_index.tolist() == list(range(clips))
        assert np.allclose(table.probabilities.sum(axis=1), 1, rtol=0, atol=10 * 2.0**-24)  # two sums of three
    assert stage.cache.usage().keys == 0
    assert stage.bus.backlog("essp.clips", "trainer.one.tiny") == 0


def test_the_master_hears_of_every_clip_once_and_of_every_pass(tmp_path: Path) -> None:
    stage = finished(tmp_path)
    trained = [(report.purpose, report.epoch, index) for report in stage.reports("trained") for index in report.indices]
    assert trained == [(plan.purpose, plan.epoch, i) for plan in stage.plans for i in range(plan.clips)]
    phases = [(report.purpose, report.epoch) for report in stage.reports("phase_report")]
    assert phases == [(plan.purpose, plan.epoch) for plan in stage.plans]
    evaluation = stage.reports("phase_report")[1].metrics
    assert {"top1", "mAP", "video_top1", "video_mAP", "loss", "data_wait_ratio"} <= set(evaluation)
    ready = stage.reports("checkpoint")
    assert [report.final for report in ready] == [False, False, True]
    assert ready[-1].scores_uri.endswith(".parquet")
    assert stage.reports("step")[-1].clips_done == 6


def test_the_figures_of_an_evaluation_are_by_clip_and_by_video() -> None:
    shares = np.array([[0.9, 0.1], [0.3, 0.7], [0.4, 0.6]], np.float32)
    table = scores.ScoreTable(("a", "a", "b"), np.array([0, 0, 1], np.int32), np.arange(3), shares, ("x", "y"))
    found = clip_and_video_figures(table)
    assert found["top1"] == pytest.approx(2 / 3)
    assert found["loss"] == pytest.approx(-np.log([0.9, 0.3, 0.6]).mean())
    assert found["video_top1"] == 1, "the mean of the two clips of a is right"
    assert found["video_loss"] == pytest.approx(-np.log([0.6, 0.6]).mean())


def test_arrival_order_and_repeated_messages_do_not_change_the_weights(tmp_path: Path) -> None:
    plain = finished(tmp_path / "plain")
    positions = plain.every_position()
    random.Random(5).shuffle(positions)
    stage = Stage(job_spec(tmp_path / "mixed"), phase_plans(2))
    stage.command(Control.START)
    stage.feed(positions[:20])
    stage.announce_again(positions[3:15])
    stage.feed(positions[20:])
    stage.announce_again(positions)
    with Running(stage) as running:
        running.join()
    assert running.error is None
    assert final_weights(stage) == final_weights(plain)
    assert last_training_state(stage) == last_training_state(plain)
    assert stage.cache.usage().keys == 0


def test_skipped_indices_are_stepped_over(tmp_path: Path) -> None:
    skipped = [(0, 2), (0, 4), (0, 5), (0, 6), (0, 7), (1, 0), (3, 1), (4, 5)]
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    train(stage, skipped=skipped)
    trained = {(r.purpose, r.epoch, i) for r in stage.reports("trained") for i in r.indices}
    assert (TRAIN, 0, 2) not in trained
    assert (TRAIN, 0, 3) in trained
    assert (TEST, 0, 5) not in trained
    assert len(scores.read(stage.store, layout.scores("one", "validation", 0))) == 5
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert checkpoint.read(stage.store, "one", checkpoint.steps(stage.store, "one")[-2]).updates == 2 + 3


@pytest.mark.parametrize("targets", ["class", "labels"])
def test_a_clip_of_a_class_or_label_that_the_job_has_not_is_refused(tmp_path: Path, targets: str) -> None:
    spec = job_spec(tmp_path)
    stage = Stage(spec.model_copy(update={"data": spec.data.model_copy(update={"targets": targets})}), phase_plans(2))
    forged = clip_ref(stage.plans[0], 0)
    forged.MergeFrom(ClipRef(labels=[len(CLASSES)]) if targets == "labels" else ClipRef(class_id=len(CLASSES)))
    stage.forge(forged)
    train(stage)
    assert sum(len(trained.indices) for trained in stage.reports("trained")) == len(stage.every_position())
    assert stage.reports("failed") == []


def test_lost_bytes_are_asked_for_again(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    positions = stage.every_position()
    stage.command(Control.START)
    stage.announce_again([(0, 1)])
    stage.feed(position for position in positions if position != (0, 1))
    with Running(stage) as running:
        [lost] = stage.wait_for("failed")
        assert (lost.failed.kind, lost.failed.clip.index, lost.failed.stage) == (LOST, 1, TRAINER)
        stage.feed([(0, 1)])
        running.join()
    assert running.error is None
    assert final_weights(stage) == final_weights(finished(tmp_path / "plain"))


def test_damaged_bytes_are_asked_for_again(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    positions = stage.every_position()
    stage.command(Control.START)
    stage.feed(positions)
    key = clip_key("tiny", TRAIN, 0, 3, 0)
    value = bytes(stage.cache.get(key))
    stage.cache.put(key, value[:-1], ["trainer.one"], 600)
    with Running(stage) as running:
        [lost] = stage.wait_for("failed")
        assert (lost.failed.kind, lost.failed.clip.index) == (LOST, 3)
        stage.feed([(0, 3)])
        running.join()
    assert running.error is None
    assert final_weights(stage) == final_weights(finished(tmp_path / "plain"))


def test_a_pause_saves_and_a_resume_goes_on(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    positions = stage.every_position()
    stage.command(Control.START)
    stage.feed(positions[:6])
    with Running(stage) as running:
        stage.wait_for_trained(1)
        stage.command(Control.PAUSE)
        stage.wait_for("checkpoint")
        stage.command(Control.RESUME)
        stage.feed(positions[6:])
        running.join()
    assert running.error is None
    assert final_weights(stage) == final_weights(finished(tmp_path / "plain"))


def test_a_pause_between_the_last_clip_of_an_epoch_and_its_end_costs_no_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint there would have the name of the one at the end of the epoch, which validation may choose."""
    stage = Stage(job_spec(tmp_path, epochs=1), phase_plans(1))
    running, take, ends, looks = Running(stage), DeviceFeed.next, list[PhaseEnd](), list[float]()
    resumed = threading.Event()

    def delayed(feed: DeviceFeed, timeout_s: float) -> Any:
        if resumed.is_set():
            return ends.pop() if ends else take(feed, timeout_s)
        item = None if ends else take(feed, timeout_s)
        if not isinstance(item, PhaseEnd):
            if running.trainers[0]._control.state("tiny") == Control.PAUSE:
                looks.append(timeout_s)
            return item
        ends.append(item)
        return None

    monkeypatch.setattr(DeviceFeed, "next", delayed)
    positions = stage.every_position()
    stage.command(Control.START)
    stage.feed(positions[:10])
    with running:
        stage.wait_for_trained(10)
        stage.command(Control.PAUSE)
        until(lambda: len(looks) >= 2)
        stage.command(Control.RESUME)
        resumed.set()
        stage.feed(positions[10:])
        running.join()
    assert running.error is None
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.best is not None
    assert set(manifest.scores) == {"validation", "test"}


def looks_of(running: Running, monkeypatch: pytest.MonkeyPatch, clock: Clock | None = None) -> list[float]:
    """The looks for the next batch while the job is paused. Each of the first two takes 1000 s of the clock."""
    looks, take = list[float](), DeviceFeed.next

    def looked(feed: DeviceFeed, timeout_s: float) -> Any:
        item = take(feed, timeout_s)
        if item is None and running.trainers[0]._control.state("tiny") == Control.PAUSE:
            looks.append(timeout_s)
            if clock is not None and len(looks) <= 2:
                clock.now_s += 1000
        return item

    monkeypatch.setattr(DeviceFeed, "next", looked)
    return looks


def test_a_pause_is_no_time_of_a_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, clock = Stage(job_spec(tmp_path), phase_plans(2)), Clock()
    positions = stage.every_position()
    stage.command(Control.START)
    stage.feed(positions[:4])
    running = Running(stage, clock=clock)
    looks = looks_of(running, monkeypatch, clock)
    with running:
        stage.wait_for_trained(4)
        stage.command(Control.PAUSE)
        until(lambda: len(looks) > 2)
        stage.command(Control.RESUME)
        stage.feed(positions[4:])
        running.join()
    assert running.error is None
    assert {report.metrics["seconds"] for report in stage.reports("phase_report")} == {0.0}


def test_the_time_until_a_batch_is_there_is_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 s for each, on a clock that moves for nothing else."""
    stage, clock, take = Stage(job_spec(tmp_path), phase_plans(2)), Clock(), DeviceFeed.next

    def slow(feed: DeviceFeed, timeout_s: float) -> Any:
        item = take(feed, timeout_s)
        clock.now_s += 2 * isinstance(item, Batch)
        return item

    monkeypatch.setattr(DeviceFeed, "next", slow)
    stage.command(Control.START)
    stage.feed(stage.every_position())
    with Running(stage, clock=clock) as running:
        running.join()
    assert running.error is None
    found = [(report.metrics["seconds"], report.metrics["data_wait_ratio"]) for report in stage.reports("phase_report")]
    assert found == [(6.0, 1.0), (4.0, 1.0), (6.0, 1.0), (4.0, 1.0), (4.0, 1.0)]


def test_each_batch_is_reported(tmp_path: Path) -> None:
    stage = finished(tmp_path)
    steps = {(step.purpose, step.epoch, step.clips_done) for step in stage.reports("step")}
    assert {(TRAIN, epoch, clips) for epoch in (0, 1) for clips in (4, 8, 10)} <= steps
    assert {(VALIDATION, epoch, clips) for epoch in (0, 1) for clips in (4, 6)} <= steps


def test_a_save_that_failed_is_tried_again_at_its_time_in_a_pause_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = Unreliable(Unavailable("503 Slow Down"))
    stage = Stage(job_spec(tmp_path, checkpoint={"every": 4}), phase_plans(2), stores=stores)
    stage.command(Control.START)
    stage.feed(stage.every_position()[:4])
    running = Running(stage, save_retry_s=1000)
    looks = looks_of(running, monkeypatch)
    with running:
        stage.wait_for("trouble")
        stage.command(Control.PAUSE)
        until(lambda: len(looks) > 2)
        assert len(stores.refused) == 1


def test_a_bucket_that_is_missing_for_a_while_does_not_fail_the_job(tmp_path: Path) -> None:
    """Also where the process has started meanwhile, and has never seen it: the master has."""
    stores = Unreliable(NoBucket("there is no bucket essp; create it"), refuses=("",))
    stage = Stage(job_spec(tmp_path), phase_plans(2), stores=stores)
    stage.command(Control.START)
    with Running(stage) as running:
        running.join()
    assert isinstance(running.error, Unavailable)
    assert "there is no bucket essp" in stage.reports("trouble")[0].reason
    assert not stage.reports("failed")


def test_a_pause_within_an_evaluation_keeps_its_messages(tmp_path: Path) -> None:
    """It will begin again at the first clip of its phase, should the process end."""
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    stage.command(Control.START)
    stage.feed(stage.every_position()[:-2])
    with Running(stage):
        stage.wait_for_trained(36)
        stage.command(Control.PAUSE)
        stage.wait_for("checkpoint", 3)
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.position == Position(4, 0)
    assert stage.bus.backlog("essp.clips", "trainer.one.tiny") == 4


def test_a_stop_saves_and_leaves(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(9)])
    with Running(stage) as running:
        stage.wait_for_trained(8)
        stage.command(Control.STOP)
        running.join()
    assert running.error is None
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.position == Position(0, 8)


def test_each_phase_is_reported_up_to_its_end(tmp_path: Path) -> None:
    """However short it was, and if its last batch was skipped, too."""
    stage = Stage(job_spec(tmp_path, epochs=1), phase_plans(1))
    stage.command(Control.START)
    stage.feed(stage.every_position(), skipped=[(0, 8), (0, 9), (1, 4), (1, 5)])
    with Running(stage, report_interval_s=LONGEST_S) as running:
        running.join()
    assert running.error is None
    newest = {report.purpose: report.clips_done for report in stage.reports("step")}
    assert newest == {plan.purpose: plan.clips for plan in stage.plans}


def test_waiting_for_clips_is_measured(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(1, test=0))
    positions = stage.every_position()
    stage.command(Control.START)
    stage.feed(positions[:9])
    with Running(stage) as running:
        stage.wait_for_trained(8)
        stage.wait_for("step", 4)  # the later ones tell of waiting alone
        stage.feed(positions[9:])
        running.join()
    assert running.error is None
    metrics = stage.reports("phase_report")[0].metrics
    assert 0 < metrics["data_wait_ratio"] <= 1
    waiting = [report.data_wait_ratio for report in stage.reports("step") if report.clips_done == 8]
    assert len(waiting) > 1
    assert waiting == sorted(waiting)


def test_the_release_of_clips_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a checkpoint is announced, all clips that it holds have been released: no batch has to be before the next.

    Here a batch can be released only when all of its phase were trained.
    """
    stage = Stage(job_spec(tmp_path), phase_plans(1, test=0))
    trained = threading.Event()
    release, given = OrderedIntake.release, Releases.release

    def late(intake: OrderedIntake, items: Sequence[Delivery]) -> None:
        assert trained.wait(LONGEST_S)
        release(intake, items)

    def counted(releases: Releases, items: Sequence[Delivery]) -> None:
        given(releases, items)
        if items[-1].clip.index == 7:
            trained.set()

    monkeypatch.setattr(OrderedIntake, "release", late)
    monkeypatch.setattr(Releases, "release", counted)
    stage.command(Control.START)
    stage.feed(stage.every_position())
    with Running(stage) as running:
        running.join()
    assert running.error is None
    assert stage.cache.usage().keys == 0


def test_only_the_seed_makes_trainers_of_the_same_settings_differ(tmp_path: Path) -> None:
    """Neither the name nor another setting changes the first batch and its weights."""
    recipes: dict[str, dict[str, Any]] = {
        "plain": {},
        "rate": {"optimizer": {"lr": 0.01}},
        "same": {"seed": 0},
        "other": {"seed": 1},
    }
    losses = {}
    for name, settings in recipes.items():
        stage = Stage(job_spec(tmp_path / name, **settings), phase_plans(1, train=4, validation=0, test=0))
        train(stage)
        [report] = stage.reports("phase_report")
        losses[name] = report.metrics["loss"]
    assert losses["plain"] == losses["rate"] == losses["same"] != losses["other"]


def test_flow_comes_from_its_own_topic(tmp_path: Path) -> None:
    stage = finished(tmp_path, feature="flow")
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.model.channels == 4
    assert stage.cache.usage().keys == 0


@pytest.mark.parametrize(("before", "now", "warned"), [(3, 4, True), (3, 3, False), (0, 4, False), (3, 0, False)])
def test_a_training_that_resumes_with_another_catalog_says_so(
    tmp_path: Path, before: int, now: int, warned: bool
) -> None:
    """0: it was saved, or its job was started, by a version that does not tell."""
    stage = Stage(job_spec(tmp_path), phase_plans(1), training_digest=before)
    stage.command(Control.START)
    stage.feed(stage.every_position()[:4])
    with Running(stage) as running:
        stage.wait_for_trained(4)
    assert running.error is None
    again = Stage(stage.spec, stage.plans, training_digest=now)
    train(again, again.every_position()[4:])
    assert ["other videos, or labels of them" in each.reason for each in again.reports("trouble")] == [True] * warned


def test_two_trainers_in_one_process_do_not_influence_each_other(tmp_path: Path) -> None:
    alone = finished(tmp_path / "alone")
    stages = [Stage(job_spec(tmp_path / name), phase_plans(2)) for name in ("first", "second")]
    for stage in stages:
        stage.command(Control.START)
        stage.feed(stage.every_position())
    with Running(stages[0]) as one, Running(stages[1]) as other:
        one.join()
        other.join()
    assert one.error is None
    assert other.error is None
    assert final_weights(stages[0]) == final_weights(stages[1]) == final_weights(alone)


def test_a_job_that_is_over_is_not_waited_for(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(1))
    stage.command(Control.COMPLETE)
    with Running(stage) as running:
        running.join()
    assert not list(stage.store.list("trainers/"))
    assert VALIDATION not in {report.purpose for report in stage.reports("phase_report")}


def test_partial_batch_normalisation_keeps_all_statistics_but_the_first(tmp_path: Path) -> None:
    weights = safetensors.torch.load(final_weights(finished(tmp_path, partial_bn=True)))
    moved = {name: bool(tensor.any()) for name, tensor in weights.items() if name.endswith("running_mean")}
    in_order = sorted(moved, key=lambda name: [int(part) for part in name.split(".") if part.isdigit()])
    assert [moved[name] for name in in_order] == [True] + [False] * (len(moved) - 1)
    assert len(moved) > 1


def test_a_training_that_is_over_was_not_interrupted(tmp_path: Path) -> None:
    """A trainer that is drained after the end, or that starts after it, has nothing left to do."""
    stage = Stage(job_spec(tmp_path), phase_plans(1))
    assert not train(stage).trainers[0].interrupted
    with Running(stage) as again:
        again.join()
    assert not again.trainers[0].interrupted
    stage.command(Control.COMPLETE)
    with Running(stage) as late:
        late.join()
    assert not late.trainers[0].interrupted


def test_a_trainer_whose_job_does_not_start_says_what_it_waits_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(1))
    for job, command in (("tinny", Control.START), ("other", Control.COMPLETE)):
        stage.bus.publish(topics.CONTROL, job.encode(), Control(job=job, fence=1, command=command).SerializeToString())
    caplog.set_level("WARNING")
    monkeypatch.setattr(service, "_WAIT_S", 0)  # its clock tells the time
    with closing(ControlFeed(stage.bus)) as control:
        until(lambda: len(control.jobs()) == 2)
        first, second = waits(stage, control, caplog)
        assert "no master has started a job tiny; jobs of this bus: tinny, other (did you mean tinny?)" in first
        assert "essp job start" in first
        assert [text[-4:] for text in (first, second)] == ["12 s", "60 s"]
        stage.command(Control.STOP)
        until(lambda: len(control.jobs()) == 3)
        assert "job tiny does not run: its last command was STOP" in waits(stage, control, caplog)[0]


def waits(stage: Stage, control: ControlFeed, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a trainer says that waits for a minute by its clock, and is drained then."""
    seconds = iter(range(0, 1000, 12))

    def clock() -> float:
        now = next(seconds)
        if now >= 60:
            trainer.drain()
        return now

    config = TrainerConfig(job="tiny", trainer="one", worker="w", settings=TrainerSettings(start_warning_s=10))
    trainer = Trainer(config, stage.adapters, control, SingleRank(), clock)
    caplog.clear()
    trainer.run()
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
