"""Whatever is wrong with one job, or with one record, the master lives, and the other jobs go on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from essp_common import topics
from essp_common.artifacts import layout
from essp_common.artifacts.history import History
from essp_common.bus.port import MAX_MESSAGE_BYTES, MessageTooLarge
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.checks import LONGEST_NAME
from essp_common.catalog.file import read_catalog, write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import EsspError, PermanentError
from essp_common.job.fields import MOST_EPOCHS
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, JobStatus
from essp_common.messages.parsing import MOST_FENCE
from essp_common.messages.snapshot import completed
from essp_common.objects.numbered_log import NumberedLog
from essp_common.pb.v1.messages_pb2 import (
    TRAIN,
    CheckpointReady,
    ClipRef,
    Control,
    Failed,
    Finished,
    Heartbeat,
    Made,
    PhaseReport,
    Progress,
    StepReport,
    Trained,
    Trouble,
)
from essp_common.runtime.metrics import REFUSED
from essp_common.runtime.troubles import Kind
from essp_common.wiring import Adapters
from essp_engine.seeding import message_builder
from essp_master.job import job as job_module
from essp_master.lifecycle import start_run as start_run_module
from essp_master.queue.admission import Admission
from essp_master.queue.plan import Contender
from essp_master.service import Master
from tests.harness.fleet import Clock, Fleet, FleetOf, make_job, master_over, run_to_rest
from tests.harness.masters import die, master_named
from tests.harness.waiting import LONGEST_S


def other_job(spec: JobSpec, folder: Path, name: str) -> JobSpec:
    return spec.model_copy(update={"name": name, "output": f"file://{folder}/{name}"})


def refused(topic: str) -> float:
    return float(REFUSED.labels(topic)._value.get())


def commands_of(fleet: Fleet, job: str) -> list[Control.Command]:
    fleet.learn()
    return [command.command for command in fleet.commands if command.job == job]


@pytest.mark.parametrize("damage", [{"size_bytes": -1}, {"frame_count": -5, "last_frame": -6}, {"frame_count": 2**62}])
def test_a_job_of_which_no_seed_can_be_made_is_not_announced(
    adapters: Adapters, fleet_of: FleetOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: dict[str, int]
) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    store, key = adapters.stores.resolve(fleet.job.data.catalog)
    rows = [VideoRow(**{**vars_of(row), **damage}) for row in read_catalog(store, key).rows]
    monkeypatch.setattr("essp_engine.preflight.resolve.open_data", lambda *_: Catalog(tuple(rows)))
    bad = other_job(fleet.job, tmp_path, "bad")
    with pytest.raises(EsspError, match="catalog"):
        master.start(bad)
    monkeypatch.undo()
    assert commands_of(fleet, "bad") == []
    assert [job.name for job in master.jobs()] == ["small"]
    assert list(adapters.stores.under(bad.output).list()) == []
    run_to_rest(master, fleet)
    assert all(phase.finished for phase in master.status("small").phases)
    master.start(other_job(fleet.job, tmp_path, "bad"))


def vars_of(row: VideoRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def test_a_job_whose_first_units_cannot_be_made_after_all_is_not_announced(
    adapters: Adapters, fleet_of: FleetOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the preflight did not see."""
    master, fleet = master_over(adapters), fleet_of()

    def units(self: object, instruction: object) -> list[tuple[bytes, bytes]]:
        raise ValueError("Value out of range: -1")

    monkeypatch.setattr("essp_engine.preflight.preflight.try_seeds", lambda *_: None)
    with monkeypatch.context() as broken:
        broken.setattr(message_builder.MessageBuilder, "units", units)
        with pytest.raises(EsspError, match=r"job small cannot begin: ValueError: Value out of range"):
            master.start(fleet.job)
    assert master.jobs() == []
    assert master.step(0) == 0
    assert commands_of(fleet, "small") == []
    assert master.start(fleet.job).state is JobState.RUNNING


@pytest.mark.parametrize("where", ["handle", "issue", "has_stalled", "segment"])
def test_an_error_in_one_job_fails_that_job_alone(
    adapters: Adapters, fleet_of: FleetOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    master, fleet = master_over(adapters, history_s=0.0), fleet_of()
    master.start(fleet.job)
    master.start(other_job(fleet.job, tmp_path, "bad"))
    real = getattr(job_module.Job, where)

    def method(job: job_module.Job, *arguments: Any) -> Any:
        if job.name == "bad":
            raise KeyError("a defect")
        return real(job, *arguments)

    monkeypatch.setattr(job_module.Job, where, method)
    monkeypatch.setattr("essp_master.service._TICK_S", 0.0)
    adapters.bus.publish(topics.PROGRESS, b"bad", Progress(job="bad", trouble=Trouble(reason="x")).SerializeToString())
    run_to_rest(master, fleet)
    bad = master.status("bad")
    assert (bad.state, "a defect" in bad.reason) == (JobState.FAILED, True)
    assert commands_of(fleet, "bad")[-1] == Control.FAIL
    assert all(phase.finished for phase in master.status("small").phases)


def test_a_job_of_which_the_queue_cannot_tell_what_it_needs_fails_alone(
    adapters: Adapters, fleet_of: FleetOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, fleet = master_over(adapters, queue_budget=2**40), fleet_of()
    master.start(fleet.job)
    master.start(other_job(fleet.job, tmp_path, "bad"))
    real = Admission.contender

    def contender(self: Admission, job: job_module.Job) -> Contender:
        if job.name == "bad":
            raise KeyError("a defect")
        return real(self, job)

    monkeypatch.setattr(Admission, "contender", contender)
    monkeypatch.setattr("essp_master.service._TICK_S", 0.0)
    run_to_rest(master, fleet)
    assert (master.status("bad").state, "a defect" in master.status("bad").reason) == (JobState.FAILED, True)
    assert all(phase.finished for phase in master.status("small").phases)


@pytest.mark.parametrize(
    "where", ["job.job.Job.let_go", "effects.dispatch.Dispatch.sweep", "lifecycle.runner.without_events"]
)
def test_a_defect_of_a_job_that_has_ended_is_told_once_and_hurts_nobody(
    adapters: Adapters,
    fleet_of: FleetOf,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    clock = Clock()
    master, fleet = master_over(adapters, clock, history_s=0.0), fleet_of()
    master._runner.recovers = True
    master.start(fleet.job)
    master.stop("small")

    def broken(*_: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(f"essp_master.{where}", broken)
    if where == "lifecycle.runner.without_events":
        monkeypatch.setattr("essp_master.lifecycle.runner.KEPT_WHOLE", 0)
    for _ in range(6):  # a job is forgotten once its groups are deleted
        master.step(0)
        master._history.wait(LONGEST_S)
        clock.now_s += 10.0
    assert master.status("small").state is JobState.STOPPED
    assert sum("a defect" in event.message for event in master.events("small")) == 1
    assert sum("unexpected error" in record.message for record in caplog.records) == 1


PARTS = [
    ("essp_master.pools.worker_registry.WorkerRegistry", "note"),
    ("essp_master.pools.worker_registry.WorkerRegistry", "read"),
    ("essp_master.lifecycle.runner.JobRunner", "issue"),
    ("essp_master.lifecycle.runner.JobRunner", "tick"),
    ("essp_master.lifecycle.queueing.JobQueue", "plan"),
    ("essp_master.effects.outbox.Outbox", "refused"),
    ("essp_master.effects.history_writer.HistoryWriter", "write"),
    ("essp_master.lifecycle.renewals.Renewals", "begin_closed"),
]


@pytest.mark.parametrize(("owner", "method"), PARTS, ids=[method for _, method in PARTS])
def test_an_error_that_concerns_no_job_waits_and_is_told_once_while_all_else_goes_on(
    adapters: Adapters,
    fleet_of: FleetOf,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: str,
    method: str,
) -> None:
    clock, tries = Clock(), list[float]()
    master, fleet = master_over(adapters, clock, queue_budget=2**40), fleet_of()
    master.start(fleet.job)

    def broken(*_: object, **__: object) -> None:
        tries.append(clock())
        raise KeyError("a defect")

    monkeypatch.setattr("essp_master.service._TICK_S", 0.0)
    with monkeypatch.context() as defect:
        defect.setattr(f"{owner}.{method}", broken)
        for _ in range(20):
            beat = Progress(worker="w", heartbeat=Heartbeat(pool="decoder"))
            adapters.bus.publish(topics.PROGRESS, b"", beat.SerializeToString())
            master.step(0)
            clock.now_s += 0.5
        assert 1 < len(tries) < 20 or method == "note", "it is tried again, after pauses that grow"
        assert [(it.kind, "a defect" in it.words) for it in master.conditions.look()] == [(Kind.DEFECT, True)]
        assert sum("unexpected error; the thread continues" in record.message for record in caplog.records) == 1
    clock.now_s += 60.0
    run_to_rest(master, fleet)
    assert master.status("small").state is JobState.RUNNING
    assert all(phase.finished for phase in master.status("small").phases)
    assert master.conditions.look() == ()


def test_a_job_that_cannot_be_taken_over_fails_and_is_not_met_again(
    adapters: Adapters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(adapters, make_job(tmp_path))
    first = master_named("m1", adapters)
    first.start(fleet.job)
    first.start(other_job(fleet.job, tmp_path, "bad"))
    first.step(0)
    die(first)
    real, tried = start_run_module.start_run, []

    def start_run(found: Any, *arguments: Any) -> Any:
        if found.spec.name == "bad":
            tried.append(1)
            raise OverflowError("a defect")
        return real(found, *arguments)

    monkeypatch.setattr("essp_master.lifecycle.starter.start_run", start_run)
    second = master_named("m2", adapters)
    second.step(0)
    assert tried == [1]
    bad = second.status("bad")
    assert (bad.state, bad.output) == (JobState.FAILED, f"file://{tmp_path}/bad")
    assert "cannot be taken over by a new master: OverflowError: a defect" in bad.reason
    assert commands_of(fleet, "bad")[-1] == Control.FAIL
    assert second.status("small").state is JobState.RUNNING
    die(second)
    third = master_named("m3", adapters)
    third.step(0)
    assert third.status("bad").state is JobState.FAILED
    assert third.status("small").state is JobState.RUNNING
    fleet.close()


def test_a_record_that_is_no_command_hides_no_job_from_a_new_master(adapters: Adapters, tmp_path: Path) -> None:
    fleet = Fleet(adapters, make_job(tmp_path))
    first = master_named("m1", adapters)
    for junk in (b"", b"\xff\xff\xff", bytes(900_000)):
        adapters.bus.publish(topics.CONTROL, b"", junk)
    first.start(fleet.job)
    die(first)
    assert master_named("m2", adapters).status("small").state is JobState.RUNNING
    fleet.close()


def test_what_can_never_be_published_fails_its_job_and_holds_up_no_other(
    adapters: Adapters, fleet_of: FleetOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(other_job(fleet.job, tmp_path, "bad"))
    master.start(fleet.job)
    publish = adapters.bus.publish

    def picky(topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        if topic == topics.CONTROL and key == b"bad" and Control.FromString(value).command == Control.PAUSE:
            raise MessageTooLarge("too large")
        publish(topic, key, value, partition)

    monkeypatch.setattr(adapters.bus, "publish", picky)
    master.pause("bad")
    run_to_rest(master, fleet)
    assert (master.status("bad").state, master.status("bad").reason) == (JobState.FAILED, "too large")
    assert commands_of(fleet, "bad")[-1] == Control.FAIL
    assert all(phase.finished for phase in master.status("small").phases)
    assert master._runner.outbox.empty


def test_the_longest_job_fits_into_a_message(adapters: Adapters, fleet_of: FleetOf, tmp_path: Path) -> None:
    master, fleet = master_over(adapters), fleet_of(make_job(tmp_path, epochs=MOST_EPOCHS))
    assert len(master.start(fleet.job).phases) == 2 * MOST_EPOCHS + 1
    assert commands_of(fleet, "small") == [Control.START]


def test_classes_without_end_lie_in_the_output_and_not_in_messages(
    adapters: Adapters, fleet_of: FleetOf, tmp_path: Path
) -> None:
    master, fleet = master_over(adapters), fleet_of()
    store, key = adapters.stores.resolve(fleet.job.data.catalog)
    known = read_catalog(store, key).rows
    longest = "c" * (LONGEST_NAME - 5)
    rows = [
        VideoRow(**vars_of(known[n % len(known)]) | {"id": f"{n:05}", "class_name": f"{n // 4:04}-{longest}"})
        for n in range(4 * (MAX_MESSAGE_BYTES // len(longest) + 1))
    ]
    write_catalog(store, key, Catalog(tuple(rows)))
    status = master.start(fleet.job.model_copy(update={"data": fleet.job.data.model_copy(update={"test": None})}))
    fleet.learn()
    [command] = fleet.commands
    assert command.ByteSize() < MAX_MESSAGE_BYTES // 4
    snapshot = completed(command, adapters.stores).snapshot
    assert sum(map(len, snapshot.classes)) > MAX_MESSAGE_BYTES
    assert [plan.clips for plan in snapshot.phases] == [phase.clips for phase in status.phases]
    master.stop("small")
    for info in list(adapters.stores.under(fleet.job.output).list(layout.SNAPSHOTS)):
        adapters.stores.under(fleet.job.output).delete(info.key)
    with pytest.raises(EsspError, match="start the job again"):
        completed(command, adapters.stores)


POISON = [b"", b"\xff", b"\x00" * 10, bytes(range(256)), bytes(900_000), b"\x0a\x05small"[:-1]]


@pytest.mark.parametrize("value", POISON)
def test_a_record_that_is_no_progress_is_counted_and_dropped(
    adapters: Adapters, fleet_of: FleetOf, value: bytes
) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    before = refused(topics.PROGRESS)
    adapters.bus.publish(topics.PROGRESS, b"", value)
    assert master.step(0) >= 1
    assert refused(topics.PROGRESS) == before + 1
    assert master.status("small").state is JobState.RUNNING


NUMBERS = [math.nan, math.inf, -math.inf, -1.0, 1e308]


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_that_are_none_hurt_nobody(adapters: Adapters, fleet_of: FleetOf, number: float) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    gauges = dict.fromkeys(("busy", "in_hand", "oldest"), number)
    beat = Progress(worker="w", heartbeat=Heartbeat(pool="decoder", gauges=gauges))
    adapters.bus.publish(topics.PROGRESS, b"", beat.SerializeToString())
    fleet.report(Progress(made=Made(purpose=TRAIN, indices=[0], bytes=[2**64 - 1], seconds=number)))
    step = StepReport(
        trainer="rgb", purpose=TRAIN, loss=number, top1=number, data_wait_ratio=number, clips_per_s=number
    )
    fleet.report(Progress(step=step))
    fleet.report(Progress(phase_report=PhaseReport(trainer="rgb", purpose=TRAIN, metrics={"loss": number})))
    master.step(0)
    [worker] = master.worker_registry.pools(0.0)["decoder"].workers
    assert 0 <= worker.busy <= 1
    status = master.status("small")
    assert JobStatus.model_validate_json(status.model_dump_json()) == status, "JSON has no NaN, and NaN is not itself"
    [demand] = master.pool_demands()
    [rgb] = [trainer for trainer in demand.trainers if trainer.stream == "rgb"]
    assert (rgb.data_wait_ratio, rgb.clips_per_s) == ((number, number) if number == 1e308 else (0, 0))
    assert master.jobs()[0].clips_per_s >= 0


@pytest.mark.parametrize("fence", [2, MOST_FENCE - 1, MOST_FENCE, 2**64 - 1])
def test_a_fence_that_nobody_has_taken_is_no_other_master(adapters: Adapters, fleet_of: FleetOf, fence: int) -> None:
    """Also one that a master could have taken: the output says that none has."""
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    fleet.report(Progress(finished=Finished(uri="file:///elsewhere"), fence=fence))
    run_to_rest(master, fleet)
    assert master.status("small").state is JobState.RUNNING
    assert all(phase.finished for phase in master.status("small").phases)


def test_fences_that_nobody_has_taken_cost_the_store_one_look_a_second(
    adapters: Adapters, fleet_of: FleetOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, looks, look = Clock(), list[int](), History.fences_above

    def counted(history: History, fence: int) -> int:
        looks.append(fence)
        return look(history, fence)

    master, fleet = master_over(adapters, clock), fleet_of()
    master.start(fleet.job)
    run_to_rest(master, fleet)
    monkeypatch.setattr(History, "fences_above", counted)
    for seconds in (0.0, 1.0):
        clock.now_s += seconds
        for _ in range(50):
            master._runner.handle(Progress(job="small", fence=1000), clock())
    assert len(looks) == 2
    NumberedLog(adapters.stores.under(fleet.job.output), layout.FENCES).write(1000, b"{}")
    clock.now_s += 1.0
    master._runner.handle(Progress(job="small", fence=1000), clock())
    assert master._runner.fenced is not None


def test_what_anybody_may_send_fills_no_memory(adapters: Adapters, fleet_of: FleetOf) -> None:
    clock = Clock()
    master, fleet = master_over(adapters, clock), fleet_of()
    master.start(fleet.job)
    run_to_rest(master, fleet)
    job = master._jobs["small"]
    for number in range(300):
        clock.now_s += 1.0
        report = PhaseReport(trainer="rgb", purpose=TRAIN, epoch=number, metrics={"loss": 1.0})
        made = Made(purpose=TRAIN, indices=[0], bytes=[1], seconds=0.1)
        for event in (Progress(phase_report=report), Progress(made=made)):
            event.job, event.worker = "small", f"pod-{number}"
            master._runner.handle(event, clock())
    assert len(job.activity.trainers["rgb"].reports) <= len(job.run.preflight.phases.order)
    assert len(job.activity._pools["decoder"].seen) <= 32
    (pool,) = (pool for pool in master.status("small").pools if pool.name == "decoder")
    assert pool.workers == len(job.activity._pools["decoder"].seen)


def test_a_store_that_refuses_to_tell_who_has_a_job_is_the_trouble_of_that_job_alone(
    adapters: Adapters, fleet_of: FleetOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise PermanentError("access denied")

    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    run_to_rest(master, fleet)
    monkeypatch.setattr(History, "fences_above", refuse)
    fleet.report(Progress(finished=Finished(uri="file:///elsewhere"), fence=1000))
    master.step(0)
    assert (master.status("small").state, master.status("small").reason) == (JobState.FAILED, "access denied")


small = st.integers(0, 5)
wild = st.one_of(small, st.integers(0, 2**32 - 1))
wilder = st.one_of(small, st.integers(0, 2**64 - 1))
names = st.sampled_from(["", "small", "rgb", "diff", "trainer.rgb", "trainer.diff", "decoder", "elsewhere"])
clips = st.builds(
    ClipRef, job=names, purpose=wild.filter(lambda n: n < 2**31), epoch=wild, index=wilder, attempt=wild, video_id=names
)
purposes = st.one_of(small, st.integers(0, 2**31 - 1))
doubles = st.floats()
events = st.one_of(
    st.builds(
        lambda **fields: Progress(made=Made(**fields)), purpose=purposes, epoch=wild, stream=names,
        indices=st.lists(wilder, max_size=4), attempts=st.lists(wild, max_size=4),
        bytes=st.lists(st.integers(0, 2**40), max_size=4), seconds=doubles,
    ),
    st.builds(
        lambda **fields: Progress(trained=Trained(**fields)), purpose=purposes, epoch=wild, consumer=names,
        indices=st.lists(wilder, max_size=4), attempts=st.lists(wild, max_size=4),
    ),
    st.builds(
        lambda **fields: Progress(failed=Failed(**fields)), clip=clips, stage=st.integers(0, 3),
        reason=st.text(max_size=9), kind=st.integers(0, 40), stream=names, consumer=names,
    ),
    st.builds(lambda **f: Progress(heartbeat=Heartbeat(**f)), pool=names, gauges=st.dictionaries(names, doubles)),
    st.builds(
        lambda **fields: Progress(phase_report=PhaseReport(**fields)), purpose=purposes, epoch=wild, trainer=names,
        metrics=st.dictionaries(names, doubles),
    ),
    st.builds(
        lambda **fields: Progress(step=StepReport(**fields)), trainer=names, purpose=purposes, epoch=wild,
        clips_done=wilder, loss=doubles, top1=doubles, clips_per_s=doubles, queue=wild,
    ),
    st.builds(
        lambda **fields: Progress(checkpoint=CheckpointReady(**fields)), trainer=names, uri=names, epoch=wild,
        step=wilder,
    ),
    st.binary(max_size=200).map(lambda value: value),
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(storm=st.lists(st.tuples(events, small), max_size=12))
def test_no_storm_of_records_stops_the_master(
    adapters: Adapters, tmp_path: Path, storm: list[tuple[Progress | bytes, int]]
) -> None:
    """Messages of each kind with any numbers in them, and random bytes. A job may fail of what they claim; nothing else
    happens."""
    master = _master_of(adapters, tmp_path)
    for message, fence in storm:
        if isinstance(message, Progress):
            message.job, message.fence = "small", fence if fence < 2 else 0
        value = message if isinstance(message, bytes) else message.SerializeToString()
        adapters.bus.publish(topics.PROGRESS, b"", value)
    master.step(0)
    assert master.status("small").state in (JobState.RUNNING, JobState.FAILED)
    assert "unexpected error" not in master.status("small").reason
    master.status("small").model_dump_json()
    master.stop("small") if not master.status("small").state.ended else None
    die(master)
    master._history.wait(LONGEST_S)  # or it would write into the output of the next example


def _master_of(adapters: Adapters, folder: Path) -> Master:
    job = make_job(folder)
    for info in list(adapters.stores.under(job.output).list()):
        adapters.stores.under(job.output).delete(info.key)
    master = master_over(adapters)
    master.start(job)
    return master
