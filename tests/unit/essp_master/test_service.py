"""The master over memory adapters: a job from its start to its end, and what may come between."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import open_model
from essp_common.artifacts.history import History
from essp_common.artifacts.partial_scores import PartialScores, ScoredPart
from essp_common.cache.port import job_prefix
from essp_common.errors import Conflict, PermanentError, Unavailable
from essp_common.job.spec import JobSpec, PredictorSpec
from essp_common.job.status import JobState
from essp_common.messages.control import ControlFeed, run_of
from essp_common.objects.numbered_log import numbered
from essp_common.pb.v1.messages_pb2 import (
    AGGREGATOR,
    ERROR,
    LOST,
    PREDICT,
    PREDICTOR,
    TRAIN,
    TRAINER,
    VALIDATION,
    ClipRef,
    Control,
    Failed,
    Finished,
    Fit,
    PhaseReport,
    Progress,
    StepReport,
    Trained,
)
from essp_common.wiring import Adapters
from essp_master.config import MasterSettings
from essp_master.service import build
from tests.harness.fleet import (
    EVERYTHING,
    SIZES,
    Clock,
    Fleet,
    FleetOf,
    adapters_in,
    make_job,
    master_over,
    run_to_rest,
)
from tests.harness.model_manifest import manifest_at
from tests.harness.waiting import LONGEST_S


def test_a_job_runs_to_its_end(adapters: Adapters, fleet_of: FleetOf) -> None:
    master, fleet = master_over(adapters), fleet_of()
    started = master.start(fleet.job)
    assert started.state is JobState.RUNNING
    assert [p.clips for p in started.phases] == SIZES
    run_to_rest(master, fleet)
    assert fleet.trained == {"trainer.rgb": EVERYTHING, "trainer.diff": EVERYTHING}
    assert fleet.most_bytes <= fleet.job.limits.budget
    status = master.status("small")
    assert all(p.finished and p.issued == p.clips for p in status.phases)
    assert (status.progress.done, status.progress.total, status.progress.current) == (44, 44, 5)
    assert status.credits.outstanding_bytes == 0
    assert status.state is JobState.RUNNING, "the fused model is still to come"
    fleet.finish()
    run_to_rest(master, fleet)
    status = master.status("small")
    assert status.state is JobState.COMPLETED
    assert status.result is not None
    assert status.result.metrics == {"test.fused.top1": 0.9}
    assert [c.command for c in fleet.commands] == [Control.START, Control.COMPLETE]
    assert adapters.cache.usage().keys == 0


def test_a_fast_trainer_of_a_coupled_job_waits_for_the_slowest_and_its_status_says_so(
    adapters: Adapters, fleet_of: FleetOf, tmp_path: Path
) -> None:
    """However many passes the budget would hold: 10 clips of training, 4 of validation, and a test of 16."""
    job = make_job(tmp_path, epochs=14, limits={"budget": "64MiB", "coupled": True})
    master, fleet = master_over(adapters), fleet_of(job)
    master.start(job)
    assert [trainer.waits_for for trainer in master.status("small").trainers] == [None, None]
    while fleet.learn() or fleet.decode() or fleet.extract() or fleet.train("trainer.rgb") or master.step(0):
        pass
    assert len(fleet.trained["trainer.rgb"]) == 16
    assert [(t.name, t.waits_for) for t in master.status("small").trainers] == [("rgb", "diff"), ("diff", None)]
    master.pause("small")
    assert [trainer.waits_for for trainer in master.status("small").trainers] == [None, None]
    master.resume("small")
    run_to_rest(master, fleet)
    assert len(fleet.trained["trainer.rgb"]) == len(fleet.trained["trainer.diff"]) == 14 * 14 + 16
    assert [trainer.waits_for for trainer in master.status("small").trainers] == [None, None]


def test_the_course_of_a_training_and_its_bottleneck_can_be_asked_for(adapters: Adapters, fleet_of: FleetOf) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    limit = master.status("small").bottleneck
    assert limit is not None
    assert limit.part == "decoder"
    for clips in (2, 4, 4):  # the last one tells of waiting alone
        step = StepReport(trainer="rgb", purpose=TRAIN, epoch=0, clips_done=clips, loss=3.0 / clips, top1=0.25)
        fleet.report(Progress(step=step))
    master.step(0)
    assert [(c.trainer, [(p.clips_done, p.loss) for p in c.points]) for c in master.curves("small")] == [
        ("rgb", [(2, 1.5), (4, 0.75)]),
        ("diff", []),
    ]


def test_while_a_trainer_learns_between_two_phases_nothing_is_said_of_the_time_to_go(
    adapters: Adapters, fleet_of: FleetOf
) -> None:
    """No clip is closed meanwhile, so a rate of clips would let the time to go grow with each second of the fit. Once
    it is over, the rate is that of the clips since."""
    clock = Clock()
    master, fleet = master_over(adapters, clock), fleet_of()

    def said() -> tuple[float | None, float | None]:
        master.step(0)
        (listed,) = master.jobs()
        return master.status("small").progress.eta_s, listed.eta_s

    def learns(**fit: Any) -> None:
        step = StepReport(trainer="rgb", purpose=TRAIN, epoch=0, clips_done=10)
        if fit:
            step.fit.CopyFrom(Fit(**fit))
        fleet.report(Progress(step=step))

    def closes(clips: int) -> None:
        for consumer in ("trainer.rgb", "trainer.diff"):
            fleet.train(consumer, clips)

    master.start(fleet.job)
    while fleet.learn() or fleet.decode() or fleet.extract() or master.step(0):
        pass
    clock.now_s += 10
    closes(4)
    assert set(said()) == {100.0}  # 40 more of 44 clips, at 0.4 a second
    learns(what="centres", done=1, most=100)
    assert said() == (None, None)
    clock.now_s += 50
    learns(what="centres", done=2, most=100)
    assert said() == (None, None)
    learns()
    fleet.report(Progress(phase_report=PhaseReport(trainer="rgb", purpose=TRAIN, epoch=0)))
    assert said() == (None, None), "no clip has come since"
    clock.now_s += 2
    closes(2)
    assert set(said()) == {38.0}


def test_when_all_clips_are_closed_nothing_is_said_of_the_time_to_go(adapters: Adapters, fleet_of: FleetOf) -> None:
    """To fuse what was trained may take long, and no clip tells how long."""
    clock = Clock()
    master, fleet = master_over(adapters, clock), fleet_of()
    master.start(fleet.job)
    clock.now_s += 5
    run_to_rest(master, fleet)
    progress = master.status("small").progress
    assert progress.done == progress.total
    assert progress.clips_per_s > 0
    assert progress.eta_s is None


def test_a_trainer_that_stands_still_is_left_behind_and_loses_nothing(
    adapters: Adapters, fleet_of: FleetOf, tmp_path: Path
) -> None:
    sampling = {"clips_per_video": 2, "clips_per_epoch": 100}
    job = make_job(tmp_path, sampling=sampling)
    master, fleet = master_over(adapters), fleet_of(job)
    master.start(job)
    while fleet.learn() or fleet.decode() or fleet.extract() or fleet.train("trainer.rgb") or master.step(0):
        assert adapters.cache.usage().used_bytes <= job.limits.budget
        assert fleet.intakes["trainer.diff"].waiting == 0
    counts = master.status("small").counts
    assert len(fleet.trained["trainer.rgb"]) == sum(p.clips for p in master.status("small").phases)
    assert counts.released > 0
    run_to_rest(master, fleet)
    assert fleet.trained["trainer.diff"] == fleet.trained["trainer.rgb"]
    assert all(p.finished for p in master.status("small").phases)
    assert master.status("small").counts.redecoded > 0
    assert adapters.cache.usage().keys == 0


@pytest.mark.parametrize("decoders", [1, 3])
def test_seeds_do_not_depend_on_how_many_work(
    adapters: Adapters, fleet_of: FleetOf, tmp_path: Path, decoders: int
) -> None:
    master, fleet = master_over(adapters), fleet_of(decoders=decoders)
    master.start(fleet.job)
    run_to_rest(master, fleet)
    issued = sorted(
        (u.purpose, u.epoch, s.index, u.video.id, s.first_frame, s.class_id) for u in fleet.units for s in u.seeds
    )
    alone = adapters_in(tmp_path)
    try:
        other = Fleet(alone, fleet.job.model_copy(update={"output": f"file://{tmp_path}/other"}))
        master = master_over(alone)
        master.start(other.job)
        run_to_rest(master, other)
        reference = [
            (u.purpose, u.epoch, s.index, u.video.id, s.first_frame, s.class_id) for u in other.units for s in u.seeds
        ]
        assert issued == sorted(reference)
        other.close()
    finally:
        alone.close()


def test_a_seed_says_all_that_a_decoder_needs(adapters: Adapters, fleet_of: FleetOf) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    fleet.decode()
    unit = fleet.units[0]
    assert (unit.job, unit.fence, unit.video.frame_count, unit.video.seekable) == ("small", 1, 60, True)
    assert unit.video.uri == f"file:///videos/{unit.video.id}"
    seed = unit.seeds[0]
    assert (seed.frame_count, seed.stride, seed.last_frame) == (3, 1, 59)
    assert seed.seek.frame_index == (30 if seed.first_frame >= 30 else 0)
    assert {s.stream: list(s.consumers) for s in unit.recipe.streams} == {
        "rgb": ["trainer.rgb"],
        "diff": ["trainer.diff"],
    }


def test_bad_videos_are_replaced_or_skipped_and_counted(adapters: Adapters, fleet_of: FleetOf) -> None:
    master = master_over(adapters)
    fleet = fleet_of(bad=lambda unit: "no keyframe" if unit.video.id.endswith("v2.mp4") else "")
    master.start(fleet.job)
    run_to_rest(master, fleet)
    status = master.status("small")
    assert all(p.finished for p in status.phases)
    assert status.counts.failed > 0
    assert status.phases[4].skipped == 2, "two clips of the one test video"
    trained = [place for place in fleet.trained["trainer.diff"] if place[0] == 4]
    assert len(trained) == 14
    assert status.failures[0].stage == "decoder"
    assert status.failures[0].examples[0].reason == "no keyframe"
    assert any(event.kind == "failure" for event in master.events("small"))


def test_a_data_set_that_is_broken_fails_the_job(adapters: Adapters, fleet_of: FleetOf, tmp_path: Path) -> None:
    job = make_job(tmp_path, limits={"budget": "64KiB", "dead_ratio": 0.1})
    master, fleet = master_over(adapters), fleet_of(job, bad=lambda unit: "truncated")
    master.start(job)
    run_to_rest(master, fleet)
    status = master.status("small")
    assert status.state is JobState.FAILED
    assert "limits.dead_ratio" in status.reason
    assert fleet.commands[-1].command == Control.FAIL
    assert fleet.commands[-1].reason == status.reason


def test_pause_resume_and_stop(adapters: Adapters, fleet_of: FleetOf) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    assert master.pause("small").state is JobState.PAUSED
    assert master.pause("small").state is JobState.PAUSED, "twice is harmless"
    run_to_rest(master, fleet)
    at_rest = master.status("small").counts.issued
    assert at_rest < 44
    assert master.resume("small").state is JobState.RUNNING
    fleet.decode()
    assert master.status("small").counts.issued > at_rest
    assert master.stop("small").state is JobState.STOPPED
    assert adapters.cache.usage().keys == 0
    with pytest.raises(Conflict, match="job small is stopped"):
        master.pause("small")
    with pytest.raises(Conflict, match="start it again"):
        master.resume("small")
    fleet.learn()
    assert [c.command for c in fleet.commands] == [Control.START, Control.PAUSE, Control.RESUME, Control.STOP]


def test_what_is_stored_after_the_end_is_freed(adapters: Adapters, fleet_of: FleetOf) -> None:
    clock = Clock()
    master, fleet = master_over(adapters, clock), fleet_of()
    master.start(fleet.job)
    master.stop("small")
    fleet.decode()  # had not heard of it
    assert adapters.cache.usage().keys > 0
    clock.now_s += 3
    master.step(0)
    assert adapters.cache.usage().keys == 0


def test_a_master_that_leaves_searches_the_cache_until_nothing_is_found(adapters: Adapters, fleet_of: FleetOf) -> None:
    master, fleet = master_over(adapters, Clock()), fleet_of()
    master.start(fleet.job)
    master.stop("small")
    fleet.decode()  # had not heard of it
    master.drain()
    master.run()
    (newest,) = [segment for segment in [History(adapters.stores.under(fleet.job.output)).newest()] if segment]
    assert [entry.stray_keys > 0 for entry in newest.entries if entry.swept] == [True, False]


@pytest.mark.parametrize(
    "waits",
    [
        {"step": StepReport(trainer="rgb", purpose=TRAIN)},
        {"failed": Failed(clip=ClipRef(purpose=TRAIN), stage=TRAINER, kind=LOST, consumer="trainer.rgb", awaited=True)},
        {"trained": Trained(purpose=TRAIN, consumer="trainer.rgb", indices=[10**6], again=True)},
    ],
    ids=["figures", "asks", "says again what it has trained"],
)
def test_silence_has_clips_issued_again_less_and_less_often(
    adapters: Adapters, fleet_of: FleetOf, waits: dict[str, Any]
) -> None:
    clock = Clock()
    master, fleet = master_over(adapters, clock), fleet_of()
    master.start(fleet.job)
    seeds = fleet.lose_seeds()
    clock.now_s += 59
    fleet.report(Progress(**waits))  # that one waits is no sign of progress
    master.step(0)
    assert (master.status("small").counts.reissued, master.status("small").counts.duplicates) == (0, 0)
    clock.now_s += 2
    master.step(0)
    assert master.status("small").counts.reissued == seeds
    clock.now_s += 61
    master.step(0)
    assert master.status("small").counts.reissued == seeds, "the second wait is twice as long"
    run_to_rest(master, fleet)
    assert all(p.finished for p in master.status("small").phases)


@pytest.mark.parametrize("report", [{"step": StepReport(trainer="rgb")}, {"phase_report": PhaseReport(trainer="rgb")}])
def test_a_report_about_no_kind_of_pass_is_ignored(adapters: Adapters, fleet_of: FleetOf, report: Any) -> None:
    """A trainer of a later version may know passes that this master does not."""
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    fleet.report(Progress(**report))
    run_to_rest(master, fleet)
    assert master.status("small").trainers[0].purpose is None
    assert all(p.finished for p in master.status("small").phases)


def test_another_master_takes_a_job_over(adapters: Adapters, fleet_of: FleetOf) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    adapters.stores.under(fleet.job.output).put(numbered(layout.FENCES, 9), b"{}")
    fleet.report(Progress(step=StepReport(trainer="rgb"), fence=9))
    master.step(0)
    assert master.status("small").state is JobState.STOPPED
    assert "another master" in master.status("small").reason
    fleet.learn()
    assert [c.command for c in fleet.commands] == [Control.START], "it is not this one's to stop"


def test_messages_of_an_earlier_run_are_none_of_this_one(adapters: Adapters, fleet_of: FleetOf) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    master.stop("small")
    assert master.start(fleet.job).state is JobState.RUNNING
    fleet.report(Progress(finished=Finished(stage=AGGREGATOR, uri="file:///old"), fence=1))
    fleet.report(Progress(failed=Failed(stage=TRAINER, reason="old", kind=ERROR), fence=1))
    master.step(0)
    assert master.status("small").state is JobState.RUNNING


def test_a_new_master_takes_up_what_was_under_way(adapters: Adapters, fleet_of: FleetOf) -> None:
    first, fleet = master_over(adapters), fleet_of()
    first.start(fleet.job)
    for _ in range(3):
        fleet.work()
        first.step(0)
    first.pause("small")
    second = build(adapters, MasterSettings(bus="kafka://elsewhere:1"), "m2", recovers=True)
    feed, taken_up = ControlFeed(adapters.bus), threading.Event()
    feed.on_change(lambda c: taken_up.set() if (c.fence, c.command) == (2, Control.PAUSE) else None)
    thread = threading.Thread(target=second.run)
    thread.start()
    try:
        assert taken_up.wait(LONGEST_S), "as paused as it was"
        second.resume("small")
        while not all(p.finished for p in second.status("small").phases):
            fleet.work()
        assert fleet.trained == {"trainer.rgb": EVERYTHING, "trainer.diff": EVERYTHING}
    finally:
        second.drain()
        thread.join()
        feed.close()


def test_nothing_is_lost_while_the_bus_is_away(
    adapters: Adapters, fleet_of: FleetOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, fleet = master_over(adapters), fleet_of(bad=lambda unit: "bad" if unit.video.id.endswith("v2.mp4") else "")
    master.start(fleet.job)
    healthy, broken = adapters.bus.flush, iter([True, False] * 10_000)

    def flush(timeout_s: float = 30.0) -> None:
        if next(broken):
            raise Unavailable("the broker is away")
        healthy(timeout_s)

    for _ in range(400):
        monkeypatch.setattr(adapters.bus, "flush", healthy)
        fleet.work()
        monkeypatch.setattr(adapters.bus, "flush", flush)
        for _ in range(3):
            try:
                master.step(0)
            except Unavailable:
                continue
    assert all(p.finished for p in master.status("small").phases)
    assert len(fleet.trained["trainer.diff"]) == len(set(fleet.trained["trainer.diff"]))


def test_people_are_told_what_trainers_report(adapters: Adapters, fleet_of: FleetOf) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    fleet.report(
        Progress(step=StepReport(trainer="rgb", purpose=TRAIN, epoch=1, clips_done=4, loss=0.5, top1=0.75, queue=3))
    )
    fleet.report(Progress(phase_report=PhaseReport(trainer="rgb", purpose=VALIDATION, epoch=0, metrics={"top1": 0.5})))
    run_to_rest(master, fleet)
    status = master.status("small")
    rgb = status.trainers[0]
    assert (rgb.name, rgb.purpose, rgb.epoch, rgb.clips_done, rgb.loss, rgb.queue) == ("rgb", "train", 1, 4, 0.5, 3)
    assert rgb.reports[0].metrics == {"top1": 0.5}
    assert {pool.name: pool.done for pool in status.pools} == {"decoder": 44, "extractor.frame_diff": 44}
    assert status.pools[0].seconds_per_clip == pytest.approx(0.01)
    kinds = [event.kind for event in master.events("small")]
    assert kinds.count("phase") == 5
    over = [event.message for event in master.events("small") if event.kind == "phase"]
    assert over == [*(f"{name}, epoch {n}: over" for n in (1, 2) for name in ("train", "validation")), "test: over"]
    assert "report" in kinds
    assert next(event.id for event in master.events("small", after=status.first_event)) == status.first_event + 1


def prediction_in(folder: Path) -> tuple[JobSpec, str]:
    """A prediction, and the model that it is of."""
    job = make_job(folder)
    model = manifest_at(f"file://{folder}/trained", job.clip, job.streams, {"rgb": 0.5, "diff": 0.5})
    return job.model_copy(update={"trainers": {}, "predictor": PredictorSpec(model=model)}), model


def test_a_prediction_is_of_the_model_that_was_there_when_it_began(
    adapters: Adapters, fleet_of: FleetOf, tmp_path: Path
) -> None:
    """The predictor may read it much later, and where it resumes has to be where the master begins."""
    job, model = prediction_in(tmp_path)
    master, fleet = master_over(adapters), fleet_of(job)
    master.start(job)
    run_to_rest(master, fleet)
    [command] = fleet.commands
    _, found = open_model(adapters.stores, model)
    digest, output = command.snapshot.plan_digest, adapters.stores.under(job.output)
    with pytest.raises(PermanentError, match="another model than job small has begun with"):
        PartialScores(output, job, digest, found.model_copy(update={"rule": "product"})).bind(run_of(command))
    PartialScores(output, job, digest, found).bind(run_of(command))


def test_a_prediction_is_done_when_the_predictor_says_so(adapters: Adapters, fleet_of: FleetOf, tmp_path: Path) -> None:
    job, _ = prediction_in(tmp_path)
    master, fleet = master_over(adapters), fleet_of(job)
    master.start(job)
    run_to_rest(master, fleet)
    assert fleet.trained["predictor.rgb"] == [(0, i) for i in range(32)]
    fleet.report(Progress(finished=Finished(stage=PREDICTOR, uri="file:///predictions")))
    master.step(0)
    assert master.status("small").state is JobState.COMPLETED
    assert job_prefix("small")
    assert adapters.cache.usage().keys == 0


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.STOPPED])
def test_a_complete_prediction_that_is_started_again_scores_everything_anew(
    adapters: Adapters, fleet_of: FleetOf, tmp_path: Path, state: JobState
) -> None:
    """However soon: the predictor that had it may not have removed the saved scores yet, and does so later. One that
    was stopped goes on."""
    job, model = prediction_in(tmp_path)
    master, fleet = master_over(adapters), fleet_of(job)
    master.start(job)
    run_to_rest(master, fleet)
    _, found = open_model(adapters.stores, model)
    saved = PartialScores(adapters.stores.under(job.output), job, fleet.commands[0].snapshot.plan_digest, found)
    for stream in job.streams:
        saved.save(stream, [0], ScoredPart({}, {}, {}))
    if state is JobState.COMPLETED:
        fleet.report(Progress(finished=Finished(stage=PREDICTOR, uri="file:///predictions")))
        master.step(0)
    else:
        master.stop("small")
    assert master.status("small").state is state
    master.start(job)
    begins = 0 if state is JobState.COMPLETED else 32
    [phase] = master.status("small").phases
    assert set(phase.done.values()) == {begins}
    assert [saved.saved(stream).stop(32) for stream in job.streams] == [begins, begins]


def test_clips_that_wait_for_predictors_and_those_that_one_has_lost_are_shown(
    adapters: Adapters, fleet_of: FleetOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("essp_master.service._TICK_S", 0)
    job, _ = prediction_in(tmp_path)
    master, fleet = master_over(adapters), fleet_of(job)
    master.start(job)
    run_to_rest(master, fleet)
    pools = {pool.name: pool for pool in master.status("small").pools}
    assert (pools["predictor"].done, pools["predictor"].queue) == (64, 0)
    clip = ClipRef(job="small", purpose=PREDICT, index=5)
    lost = Failed(clip=clip, stage=PREDICTOR, kind=LOST, stream="rgb", consumer="predictor.rgb")
    fleet.report(Progress(worker="another", failed=lost))
    master.step(0)
    [event] = [event for event in master.events("small") if event.kind == "warning"]
    assert event.data["clips"] == 1
    assert "left: 1 clip is made again" in event.message
    assert {pool.name: pool.queue for pool in master.status("small").pools}["decoder"] == 1
