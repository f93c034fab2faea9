"""More epochs for a job under way, as the master has it: who is told, who is waited for, and what comes in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from essp_common import topics
from essp_common.artifacts import layout
from essp_common.artifacts.history import History
from essp_common.errors import ConfigError, Conflict, Fenced, TransientError, Unavailable
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, JobStatus
from essp_common.objects.numbered_log import NumberedLog
from essp_common.pb.v1.messages_pb2 import (
    AGGREGATOR,
    ERROR,
    TRAINER,
    ChangeTaken,
    CheckpointReady,
    ClipRef,
    Control,
    Failed,
    Finished,
    Heartbeat,
    Progress,
    TrainerLeft,
)
from essp_common.runtime import ids
from essp_common.wiring import Adapters
from essp_engine.preflight.preflight import preflight
from essp_master import service
from essp_master.job import run
from essp_master.job.job import Job
from essp_master.job.run_state import RunState
from essp_master.lifecycle import start_run, starter
from essp_master.service import Master
from tests.harness.fleet import Clock, Fleet, run_to_rest
from tests.harness.masters import master_named
from tests.harness.refused import Refusal, refused
from tests.harness.waiting import LONGEST_S, until
from tests.lanes import across, often

LR = "trainers.rgb.optimizer.lr"


def leave(fleet: Fleet, *trainers: str, fence: int = 1) -> None:
    """Trainers have saved, and say so."""
    for trainer in trainers or ("rgb", "diff"):
        fleet.report(Progress(left=TrainerLeft(trainer=trainer), fence=fence))


def finished(master: Master, fleet: Fleet) -> bool:
    """Whether all that the job has now gets done, once the trainers have begun again."""
    fleet.learn()
    for intake in fleet.intakes.values():
        intake.close()
    fleet.job = JobSpec.model_validate_json(fleet.commands[-1].snapshot.spec_json)
    fleet.open(list(fleet.commands[-1].snapshot.phases), {})
    run_to_rest(master, fleet)
    return all(phase.finished for phase in master.status("small").phases)


def settled(master: Master, done: Callable[[JobStatus], bool] = lambda status: not status.reason) -> JobStatus:
    """The job when its next run has begun, or when it is as `done` says, and all workers have been told."""

    def looks() -> bool:
        master.step(0)
        return done(master.status("small"))

    until(looks)
    master.step(0)  # the thread that begins the next run may have commanded something since the step before
    return master.status("small")


def begins_next(job: Job) -> bool:
    """Whether the next run is being started, or has begun."""
    return job.run_state is RunState.RENEWING or job.run.fence > 1


def told(fleet: Fleet) -> list[tuple[int, Control.Command, int]]:
    """Fence and command of each command so far, and the epochs of the run that is to follow (0: none)."""
    fleet.learn()
    nexts = [command.next_spec_json for command in fleet.commands]
    epochs = [JobSpec.model_validate_json(text).epochs if text else 0 for text in nexts]
    return [(each.fence, each.command, then) for each, then in zip(fleet.commands, epochs, strict=True)]


def under_way(adapters: Adapters, fleet: Fleet, epochs: int | None = 3, clock: Clock | None = None) -> Master:
    """A master whose job has begun, and gets so many epochs."""
    master = master_named("m1", adapters, clock)
    master.start(fleet.job)
    fleet.work()
    master.step(0)
    if epochs:
        master.change("small", {"epochs": epochs})
    return master


def test_the_run_ends_and_another_one_follows(adapters: Adapters, fleet: Fleet) -> None:
    master = under_way(adapters, fleet)
    before = master.status("small")
    assert before.reason == "it gets 3 epochs instead of 2 as soon as rgb and diff have saved"
    assert [job.why for job in master.jobs()] == [before.reason]
    assert told(fleet) == [(1, Control.START, 0), (1, Control.RESUME, 3)]
    leave(fleet, "rgb")
    issued = before.counts.issued
    assert settled(master, lambda status: "soon as diff has" in status.reason).counts.issued == issued
    leave(fleet, "diff")
    status = settled(master)
    assert (status.state, len(status.phases), status.created) == (JobState.RUNNING, 7, before.created)
    assert told(fleet)[2:] == [(2, Control.START, 0)]
    assert fleet.commands[-1].since == 2
    assert finished(master, fleet)
    assert [event.message for event in master.events("small") if event.kind == "change"] == [
        "job small: gets 3 epochs instead of 2 as soon as its trainers have saved",
        "job small: has 3 epochs instead of 2",
    ]


@pytest.mark.parametrize(("act", "state"), [("pause", JobState.PAUSED), ("stop", JobState.STOPPED)])
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_people_want_in_between_holds(
    adapters: Adapters, fleet: Fleet, act: str, state: JobState, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the trainers have left, and while the next run is being started."""
    master = under_way(adapters, fleet)
    begin, may_begin = master._starter.run_of, threading.Event()

    def slowly(*arguments: Any) -> Any:
        may_begin.wait()
        return begin(*arguments)

    monkeypatch.setattr(master._starter, "run_of", slowly)
    if when == "before":
        getattr(master, act)("small")
    leave(fleet)
    for _ in range(5):
        master.step(0)
    if when == "after":
        until(lambda: master.step(0) == 0 and master._renewals.under_way)
        master.prioritise("small", 7)
        assert getattr(master, act)("small").state is state
        with pytest.raises(Conflict, match="small is"):
            master.start(fleet.job)
    may_begin.set()
    stays = state.ended and when == "before"
    status = settled(master, lambda status: stays or len(status.phases) == 7)
    assert (status.state, len(status.phases)) == (state, 5 if stays else 7)
    assert status.priority == (7 if when == "after" else 0)
    assert told(fleet)[-1][1] == (Control.STOP if state.ended else Control.PAUSE)
    until(lambda: not master._renewals.under_way)
    if state.ended:
        assert len(master.start(fleet.job.model_copy(update={"epochs": 3})).phases) == 7
    else:
        master.resume("small")
    assert finished(master, fleet)


def test_a_job_that_is_resumed_in_between_goes_on(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = under_way(adapters, fleet)
    begin, may_begin = master._starter.run_of, threading.Event()

    def slowly(*arguments: Any) -> Any:
        may_begin.wait()
        return begin(*arguments)

    monkeypatch.setattr(master._starter, "run_of", slowly)
    master.pause("small")
    leave(fleet)
    until(lambda: master.step(0) == 0 and master._renewals.under_way)
    master.resume("small")
    may_begin.set()
    assert settled(master, lambda status: len(status.phases) == 7).state is JobState.RUNNING
    assert finished(master, fleet)


def test_the_number_and_the_rate_may_change_again_meanwhile(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_PATIENCE_S", 0.01)
    master = under_way(adapters, fleet)
    assert master.change("small", {"epochs": 3}).reason.startswith("it gets 3 epochs")
    master.change("small", {"epochs": 5, LR: 0.5})
    with refused("epochs", "range"):
        master.change("small", {"epochs": 4})
    place = ChangeTaken(trainer="rgb", number=1)
    fleet.report(Progress(change_taken=place, fence=1))
    leave(fleet)
    master._renewals._threads["small"] = threading.current_thread()
    with pytest.raises(Unavailable, match="just continuing with more epochs or trainers; ask again"):
        master.change("small", {"epochs": 6})
    del master._renewals._threads["small"]
    status = settled(master)
    assert len(status.phases) == 11
    assert [(change.fields, list(change.places)) for change in status.changes] == [({LR: 0.5}, ["rgb"])]
    told(fleet)
    assert [change.number for change in fleet.commands[-1].changes] == [1]


LATE = {"trainers.late.stream": "near", "trainers.late.batch_size": 2, "trainers.late.augment.crop": 16}
LATE |= {"streams.near.feature": "frame_diff", "streams.near.params.length": 1}


def test_a_trainer_is_attached_with_its_stream(adapters: Adapters, fleet: Fleet) -> None:
    """Those that the job has save and leave; the new one has nothing to leave. All of them go on in the next run."""
    master = under_way(adapters, fleet, None)
    status = master.change("small", LATE | {"epochs": 3})
    assert status.reason == "it gets 3 epochs instead of 2 and the trainer late as soon as rgb and diff have saved"
    assert master.change("small", LATE).reason == status.reason
    commands = told(fleet)
    assert len(commands) == 2, "the same again is not a change"
    leave(fleet)
    status = settled(master)
    assert ([trainer.name for trainer in status.trainers], len(status.phases)) == (["rgb", "diff", "late"], 7)
    assert finished(master, fleet)
    assert fleet.job.trainers["late"].stream == "near"
    assert (
        len(fleet.trained["trainer.late"])
        == len({*fleet.trained["trainer.late"]})
        == sum(plan.clips for plan in fleet.commands[-1].snapshot.phases)
    )
    assert [event.data for event in master.events("small") if event.kind == "change"] == [
        {"epochs": 3, "before": 2, "trainers": ["late"]},
        {"epochs": 3, "before": 2, "trainers": ["late"]},
    ]


def test_what_the_job_gets_is_checked_again_if_somebody_else_has_changed_it(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = under_way(adapters, fleet, None)
    checked = preflight

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(starter, "preflight", checked)
        master.change("small", {"epochs": 4})
        return checked(*arguments, **options)

    monkeypatch.setattr(starter, "preflight", meanwhile)
    assert master.change("small", LATE).reason.startswith("it gets 4 epochs instead of 2 and the trainer late as")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trainers.hog.stream": "hog"}, "trainers.hog.stream: .*hog"),
        ({"trainers.rbg.optimizer.lr": 0.5}, r"did you mean trainers\.rgb\.optimizer\.lr\?"),
        ({"trainers.new.stream": "rgb", "trainers.new.modle": "small"}, "trainers.new.modle: .*did you mean model"),
        ({"trainers.new.stream": "rgb", "trainers.new.augment.crop": 99}, "trainers.new"),
        ({"streams.rgb.params.frames": 2}, "streams.rgb.params.frames: cannot be changed while the job runs"),
        ({"trainers.rgb.stream": "diff"}, "trainers.rgb.stream: cannot be changed while the job runs"),
        ({"streams.more.feature": "rgb"}, "streams.more: no trainer learns from it"),
    ],
)
def test_a_trainer_that_cannot_be_is_refused_and_nothing_is_changed(
    adapters: Adapters, fleet: Fleet, fields: dict[str, Any], message: str
) -> None:
    master = under_way(adapters, fleet, None)
    with pytest.raises(ConfigError, match=message):
        master.change("small", fields)
    assert told(fleet) == [(1, Control.START, 0)]


def test_a_job_that_would_complete_goes_on(adapters: Adapters, fleet: Fleet) -> None:
    """Trainers that are done have nothing to save. Who asks later is told what to do."""
    master = under_way(adapters, fleet, None)
    run_to_rest(master, fleet)
    for trainer in ("rgb", "diff"):
        fleet.report(Progress(checkpoint=CheckpointReady(trainer=trainer, uri="file:///x", final=True)))
    run_to_rest(master, fleet)
    status = master.change("small", {"epochs": 3, LR: 0.5})
    assert status.reason == "it gets 3 epochs instead of 2"
    fleet.report(Progress(finished=Finished(stage=AGGREGATOR, uri="file:///model")))
    leave(fleet)
    status = settled(master)
    assert (status.state, len(status.phases), len(status.changes)) == (JobState.RUNNING, 7, 1)
    assert finished(master, fleet)
    fleet.finish(fence=2)
    run_to_rest(master, fleet)
    assert master.status("small").state is JobState.COMPLETED
    with pytest.raises(Conflict, match=r"small is completed; start it again with more \(--epochs\) to continue"):
        master.change("small", {"epochs": 4})


@pytest.mark.parametrize(
    ("epochs", "message"),
    [
        (1, ("epochs", "range")),
        (0, ("epochs", "type")),
        (True, ("epochs", "type")),
        ("3", ("epochs", "type")),
        (2.5, ("epochs", "type")),
        (10_001, ("epochs", "type")),
    ],
)
def test_what_cannot_be_is_refused(adapters: Adapters, fleet: Fleet, epochs: Any, message: Refusal) -> None:
    master = under_way(adapters, fleet, None)
    with refused(*message):
        master.change("small", {"epochs": epochs, LR: 0.5})
    with pytest.raises(ConfigError, match=LR):
        master.change("small", {"epochs": 3, LR: "fast"})
    assert master.change("small", {"epochs": 2}).reason == ""
    assert told(fleet) == [(1, Control.START, 0)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("point", "paused"),
    often(across(["", "master.fence-taken", "master.start-recorded", "announced"], [False, True]), 4),
)
def test_the_next_master_finishes_it(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, point: str, paused: bool
) -> None:
    """A master that dies once the change is made known; as it starts the next run; and when that has begun."""

    def dies(name: str) -> None:
        if name == point:
            raise SystemExit

    first = under_way(adapters, fleet, None)
    if paused:
        first.pause("small")
    first.change("small", LATE | {"epochs": 3})
    if point:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(run, "failpoint", dies)
            patched.setattr(start_run, "failpoint", dies)
            leave(fleet)
            until(lambda: first.step(0) == 0 and begins_next(first._jobs["small"]))
            until(lambda: not first._renewals.under_way)
    first._subscription.close()
    state = JobState.PAUSED if paused else JobState.RUNNING
    second = master_named("m2", adapters)
    if point in ("", "master.fence-taken"):
        status = second.status("small")
        assert (status.state, len(status.phases)) == (state, 5)
        assert status.reason.startswith("it gets 3 epochs instead of 2 and the trainer late")
        leave(fleet, fence=told(fleet)[-1][0])
    else:
        status = second.status("small")
        assert (status.reason, len(status.phases)) == ("", 7), "what it takes over is the next run"
    status = settled(second)
    assert (status.state, len(status.phases), len(status.trainers)) == (state, 7, 3)
    if paused:
        second.resume("small")
    assert finished(second, fleet)


def test_a_store_that_is_away_is_waited_for(adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    master = under_way(adapters, fleet, 3, clock)
    tried = []

    def away(*_: Any) -> Any:
        tried.append(1)
        raise TransientError("the store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(starter, "start_run", away)
        leave(fleet)
        for _ in range(2):
            until(lambda: master.step(0) == 0 and not master._renewals.under_way and bool(tried))
        assert (len(tried), master.status("small").state) == (1, JobState.RUNNING)
        clock.now_s += 3
        until(lambda: master.step(0) == 0 and len(tried) == 2)
        until(lambda: not master._renewals.under_way)
    clock.now_s += 3
    assert len(settled(master).phases) == 7


def test_a_job_that_cannot_go_on_fails_with_the_reason(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = under_way(adapters, fleet)

    def refuses(*_: Any) -> Any:
        raise ConfigError("output: it is gone")

    monkeypatch.setattr(starter, "start_run", refuses)
    leave(fleet)
    status = settled(master, lambda status: status.state.ended)
    assert (status.state, status.reason) == (
        JobState.FAILED,
        "it could not continue with 3 epochs instead of 2: output: it is gone",
    )
    assert told(fleet)[-1] == (1, Control.FAIL, 0)


def test_a_job_that_another_master_has_meanwhile_is_left_to_it(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = under_way(adapters, fleet)
    NumberedLog(adapters.stores.under(fleet.job.output), layout.FENCES).write(2, b"{}")

    def refuses(*_: Any) -> Any:
        raise Fenced("written by another master (fence 2)", 2)

    monkeypatch.setattr(starter, "start_run", refuses)
    leave(fleet)
    status = settled(master, lambda status: status.state.ended)
    assert (status.state, status.reason) == (JobState.STOPPED, "another master has taken the job over")


def test_a_trainer_that_fails_meanwhile_fails_the_job(adapters: Adapters, fleet: Fleet) -> None:
    master = under_way(adapters, fleet)
    failed = Failed(clip=ClipRef(job="small"), stage=TRAINER, reason="no memory", kind=ERROR, stream="rgb")
    fleet.report(Progress(failed=failed, fence=1))
    leave(fleet)
    status = settled(master, lambda status: status.state.ended)
    assert status.state is JobState.FAILED
    assert "no memory" in status.reason


def test_only_trainers_that_are_up_are_waited_for(adapters: Adapters, fleet: Fleet) -> None:
    clock = Clock()
    master = under_way(adapters, fleet, 3, clock)
    leave(fleet, "rgb")

    def later(seconds: float) -> int:
        clock.now_s += seconds
        beat = Progress(worker="w", heartbeat=Heartbeat(pool=ids.trainer_pool("small", "diff")))
        adapters.bus.publish(topics.PROGRESS, b"", beat.SerializeToString())
        for _ in range(4):
            master.step(0)
        return len(settled(master, lambda _: not master._renewals.under_way).phases)

    assert [later(1), later(30), later(30)] == [5, 5, 5]
    assert "as soon as diff has saved" in master.status("small").reason
    clock.now_s += 300  # it is silent
    assert len(settled(master).phases) == 7


def test_a_run_whose_last_segment_was_refused_is_followed_by_none(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another master has the job: whoever began the next run before it looked would take it back."""
    master = under_way(adapters, fleet)
    writes, may_end = threading.Event(), threading.Event()

    def refuses(*_: Any) -> Any:
        writes.set()
        may_end.wait()
        raise Fenced("fence 2 was taken, and this master has 1", 2)

    monkeypatch.setattr(History, "append", refuses)
    NumberedLog(adapters.stores.under(fleet.job.output), layout.FENCES).write(2, b"{}")
    fleet.report(Progress(checkpoint=CheckpointReady(trainer="rgb", uri="file:///x"), fence=1))
    leave(fleet)
    until(lambda: master.step(0) == 0 and writes.is_set() and not master._jobs["small"].recorder.pending)
    may_end.set()
    master._history.wait(LONGEST_S)
    master._renewals.begin_closed()
    assert not master._renewals.under_way
    status = settled(master, lambda status: status.state.ended)
    assert (status.state, status.reason) == (JobState.STOPPED, "another master has taken the job over")
