"""One master after another, or beside another: what the second one knows, and what the first one may still do."""

from __future__ import annotations

import gc
import random
import re
import shutil
import threading
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from essp.account import account_of
from essp.audit.invariants import check
from essp_common import topics
from essp_common.artifacts import layout
from essp_common.artifacts.history import History, pack, unpack
from essp_common.bus.port import Bus
from essp_common.errors import Conflict, Fenced, PermanentError, Unavailable
from essp_common.job.status import JobState, JobStatus
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.numbered_log import NumberedLog
from essp_common.objects.port import ObjectInfo
from essp_common.pb.v1.messages_pb2 import (
    AGGREGATOR,
    ERROR,
    Control,
    Failed,
    Finished,
    Heartbeat,
    HistorySegment,
    JobSnapshot,
    LedgerState,
    Progress,
)
from essp_common.runtime import ids
from essp_common.wiring import Adapters, Stores
from essp_master.config import MasterSettings
from essp_master.failover import reading
from essp_master.failover.reading import Histories
from essp_master.failover.recovery import last_commands, past
from essp_master.job import start_run
from essp_master.ledger.ledger import Ledger
from essp_master.lifecycle import runner, takeover
from essp_master.lifecycle.job_table import JobTable
from essp_master.service import Master
from tests.harness.fleet import EVERYTHING, SIZES, Clock, Fleet, make_job, run_to_rest
from tests.harness.waiting import LONGEST_S, until

pytestmark = pytest.mark.slow

BOTH = {"trainer.rgb": EVERYTHING, "trainer.diff": EVERYTHING}


@pytest.fixture
def fleet(adapters: Adapters, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(adapters, make_job(tmp_path))
    yield made
    made.close()


def master_named(name: str, adapters: Adapters, clock: Clock | None = None) -> Master:
    """A master that knows what was under way. Its history is written at every step."""
    settings = MasterSettings(history_s=0.0, ready_s=0.0)
    made = Master(adapters, settings, name, True) if clock is None else Master(adapters, settings, name, True, clock)
    made.recover()
    return made


def die(master: Master) -> None:
    """A master is killed: its share of the group falls to others. A write that is under way may
    or may not come through."""
    master._subscription.close()


def written(master: Master, fleet: Fleet) -> None:
    """No other works until the history holds all that the master knows."""
    history = History(fleet.adapters.stores.under(fleet.job.output))
    while (newest := history.newest()) is None or newest.ledger != master._jobs["small"].ledger.state():
        master.step(0)


def test_a_new_master_stands_where_the_history_ends(adapters: Adapters, fleet: Fleet) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job)
    fleet.work()
    written(first, fleet)
    before = first.status("small")
    die(first)
    second = master_named("m2", adapters)
    after = second.status("small")
    assert after.state is JobState.RUNNING
    assert (after.counts, after.progress.done, after.credits) == (before.counts, before.progress.done, before.credits)
    assert abs(after.created - before.created) < timedelta(milliseconds=1)
    assert 0 < after.progress.done < sum(SIZES)
    run_to_rest(second, fleet)
    assert fleet.trained == BOTH
    assert fleet.most_bytes <= fleet.job.limits.budget
    status = second.status("small")
    assert all(passed.finished for passed in status.phases)
    assert status.credits.outstanding_bytes == 0
    assert status.counts.issued - status.counts.reissued == sum(SIZES), "nothing is forgotten, nothing is planned twice"


def test_what_no_decoder_did_for_the_first_master_is_issued_again(adapters: Adapters, fleet: Fleet) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job)
    written(first, fleet)
    die(first)
    lost = fleet.lose_seeds()  # as decoders drop what an older master issued
    second = master_named("m2", adapters)
    run_to_rest(second, fleet)
    assert second.status("small").counts.reissued == lost
    assert {unit.fence for unit in fleet.units} == {2}
    assert fleet.trained == BOTH


def test_no_message_is_done_before_the_history_holds_it(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job)
    away, put = True, DirectoryStore.put

    def fails(store: DirectoryStore, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        if away and key.startswith("history/"):
            raise Unavailable("the store is away", 0.01)
        return put(store, key, data, if_absent=if_absent)

    monkeypatch.setattr(DirectoryStore, "put", fails)
    run_to_rest(first, fleet)
    told = first.status("small")
    assert fleet.trained == BOTH, "a store that is away holds nobody up"
    die(first)
    away = False
    newest = History(adapters.stores.under(fleet.job.output)).newest()
    assert newest is not None
    assert newest.ledger.counts.get("decoded", 0) == 0 or newest.writer == "m1"
    second = master_named("m2", adapters)
    run_to_rest(second, fleet)
    after = second.status("small")
    assert all(passed.finished for passed in after.phases)
    assert [passed.done for passed in after.phases] == [passed.done for passed in told.phases]
    assert fleet.trained == BOTH


def test_a_master_whose_histories_cannot_be_written_for_long_reads_no_more_until_they_can(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps every message that no history holds yet: their number is bounded."""
    master = Master(adapters, MasterSettings(history_s=0.0, ready_s=0.0, poll_records=1), "m1", True)
    master.recover()
    master.start(fleet.job)
    away, put = True, DirectoryStore.put

    def fails(store: DirectoryStore, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        if away and key.startswith("history/"):
            raise Unavailable("the store is away", 0.01)
        return put(store, key, data, if_absent=if_absent)

    monkeypatch.setattr(DirectoryStore, "put", fails)
    fleet.work()
    for _ in range(500):
        fleet.report(Progress(worker="d1", heartbeat=Heartbeat(pool="decoder")))
    sent = adapters.bus.backlog(topics.PROGRESS, ids.MASTER)
    read = sum(master.step(0) for _ in range(2 * sent))
    assert 50 <= read < 100
    away = False
    while read < sent:
        read += master.step(0.01)
    until(lambda: not (master.step(0) or adapters.bus.backlog(topics.PROGRESS, ids.MASTER)))


@pytest.mark.parametrize("error", [PermanentError("no right to write"), ValueError("too large")])
def test_a_history_that_cannot_be_written_fails_its_job_alone_and_has_no_gap(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whatever it is: messages are done all the same, and the job can be started again."""
    master = master_named("m1", adapters)
    master.start(fleet.job)
    fleet.work()
    written(master, fleet)

    def refuse(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(History, "append", refuse)
        fleet.work()
        until(lambda: master.step(0) == 0 and master.status("small").state.ended)
    status = master.status("small")
    assert (status.state, str(error) in status.reason) == (JobState.FAILED, True)
    lacking = re.search(r"; it lacks segment (\d+) \((.*)\), and all that happened since$", status.reason)
    assert lacking is not None, status.reason
    assert int(lacking[1]) == History(adapters.stores.under(fleet.job.output)).last() + 1
    assert re.match(r"train, epoch \d: clips between \d+ and \d+ .*(decoded|trained)", lacking[2])
    run_to_rest(master, fleet)
    master.start(fleet.job)
    run_to_rest(master, fleet)
    fleet.finish()
    run_to_rest(master, fleet)
    assert master.status("small").state is JobState.COMPLETED
    master.drain()
    master.run()
    assert [segment.first for segment in History(adapters.stores.under(fleet.job.output)).read()]
    subscription = adapters.bus.subscribe([topics.PROGRESS], ids.MASTER)
    assert not any(record.key == b"small" for record in subscription.poll(1000, 0)), "all messages are done"
    subscription.close()


def test_what_the_history_lacks_of_a_job_that_has_ended_is_told(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = master_named("m1", adapters)
    master.start(fleet.job)
    written(master, fleet)

    def refuse(*_: Any) -> Any:
        raise PermanentError("no right to write")

    with monkeypatch.context() as patched:
        patched.setattr(History, "append", refuse)
        master.stop("small")
        until(lambda: master.step(0) == 0 and bool(told := warnings(master)) and "no right" in told[-1])
    assert master.status("small").state is JobState.STOPPED
    assert re.search(r"no right to write; it lacks segment \d+ \(.*state stopped.*\), and all", warnings(master)[-1])


def test_where_no_segment_can_be_made_it_is_told_after_which_one_the_history_ends(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = master_named("m1", adapters)
    master.start(fleet.job)
    written(master, fleet)

    def fails(*_: Any) -> Any:
        raise ValueError("a defect")

    monkeypatch.setattr(Ledger, "state", fails)
    fleet.work()
    until(lambda: master.step(0) == 0 and master.status("small").state.ended)
    last = History(adapters.stores.under(fleet.job.output)).last()
    assert f"a defect; it lacks all that happened after segment {last}" in master.status("small").reason


def warnings(master: Master) -> list[str]:
    return [event.message for event in master.events("small") if event.kind == "warning"]


def test_of_two_masters_the_later_one_goes_on_and_the_other_leaves(adapters: Adapters, fleet: Fleet) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job)
    fleet.work()
    second = master_named("m2", adapters)
    with pytest.raises(Fenced, match=r"another master has taken job small over \(its fence is 2, this one's 1\)"):
        first.run()
    assert first.status("small").state is JobState.STOPPED
    run_to_rest(second, fleet)
    assert fleet.trained == BOTH
    fleet.learn()
    assert [(c.fence, c.command) for c in fleet.commands] == [(1, Control.START), (2, Control.START)]
    assert fleet.commands[1].since == 1, "it is the same run"


def test_a_master_that_leaves_takes_no_message_with_it(adapters: Adapters, fleet: Fleet) -> None:
    """It reads some in the very moment in which it learns of the other one, and can record them no more."""
    first = master_named("m1", adapters)
    first.start(fleet.job)
    fleet.work()
    second = master_named("m2", adapters)
    with pytest.raises(Fenced):
        first.run()
    while second.step(0):
        pass
    assert second.status("small").counts.decoded > 0
    run_to_rest(second, fleet)
    assert second.status("small").counts.reissued == 0
    assert fleet.trained == BOTH


def test_a_master_that_leaves_marks_nothing_as_done_while_it_writes_another_history(
    adapters: Adapters, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns of the other master by the first page of a batch, and a store is slow to take the second."""
    first = master_named("m1", adapters)
    first.start(fleet.job)
    first.start(fleet.job.model_copy(update={"name": "slow", "output": f"file://{tmp_path}/slow"}))
    while first.step(0) or first._history.writing:
        pass
    go, put = threading.Event(), DirectoryStore.put

    def slow(store: DirectoryStore, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        if "/slow/history/" in store.uri(key):
            go.wait(LONGEST_S)
        return put(store, key, data, if_absent=if_absent)

    monkeypatch.setattr(DirectoryStore, "put", slow)
    output = adapters.stores.under(fleet.job.output)
    newest = History(output).newest()
    assert newest is not None
    NumberedLog(output, layout.FENCES).append(b"{}")
    History(output).append(HistorySegment(first=newest.last + 1, last=newest.last + 1, fence=2, since=1, writer="m2"))
    first.pause("slow")
    fleet.work()
    first.step(0)
    until(lambda: not first.step(0) and first.status("small").state is JobState.STOPPED)
    before = adapters.bus.backlog(topics.PROGRESS, ids.MASTER)
    go.set()
    first._history.finish()
    with pytest.raises(Fenced):
        first.run()
    assert adapters.bus.backlog(topics.PROGRESS, ids.MASTER) >= before > 0


def test_a_third_master_believes_workers_of_the_first(adapters: Adapters, fleet: Fleet) -> None:
    """Trainers carry the fence with which they were started, however many masters come after."""
    masters = [master_named("m1", adapters)]
    masters[0].start(fleet.job)
    for name in ("m2", "m3"):
        die(masters[-1])
        masters.append(master_named(name, adapters))
    run_to_rest(masters[-1], fleet)
    fleet.finish(fence=1)
    run_to_rest(masters[-1], fleet)
    assert masters[-1].status("small").state is JobState.COMPLETED


def test_jobs_that_ended_are_known_after_a_restart(adapters: Adapters, fleet: Fleet) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job)
    run_to_rest(first, fleet)
    fleet.finish()
    run_to_rest(first, fleet)
    first.drain()
    first.run()
    told = first.status("small")
    second = master_named("m2", adapters)
    assert second.status("small").counts == told.counts
    assert [(job.name, job.state, job.done) for job in second.jobs()] == [("small", JobState.COMPLETED, sum(SIZES))]
    with pytest.raises(Conflict, match="job small is completed"):
        second.pause("small")
    with pytest.raises(Conflict, match="job small is completed; start it again"):
        second.resume("small")
    assert second.events("small") == ()


def test_a_master_holds_no_catalog_of_a_job_that_has_ended(adapters: Adapters, fleet: Fleet) -> None:
    """It may run for months. What it knows of the job stays as it was, and the job can be started again."""
    clock = Clock()
    master = master_named("m1", adapters, clock)
    master.start(fleet.job)
    fleet.work()
    master.step(0)
    catalog = weakref.ref(master._jobs["small"].run.preflight.phases.view(0))
    before = master.stop("small")
    clock.now_s += 10
    run_to_rest(master, fleet)
    gc.collect()
    assert catalog() is None
    fleet.finish(fence=1)
    run_to_rest(master, fleet)
    after = master.status("small")
    assert (after.phases, after.counts, after.progress) == (before.phases, before.counts, before.progress)
    assert master.curves("small")
    assert master.start(fleet.job).state is JobState.RUNNING
    assert master.status("small").phases[0].issued > 0


def test_a_master_keeps_the_status_alone_of_jobs_that_ended_long_ago(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many it has run; the newest ones are kept whole."""
    clock = Clock()
    master = master_named("m1", adapters, clock)
    names = ["first", "second", "third"]
    jobs = [fleet.job.model_copy(update={"name": name, "output": f"{fleet.job.output}/{name}"}) for name in names]
    for job in jobs:
        master.start(job)
        master.step(0)
        master.stop(job.name)
    clock.now_s += 10
    run_to_rest(master, fleet)
    before = {name: master.status(name) for name in names}
    monkeypatch.setattr(runner, "_KEPT_WHOLE", 1)
    clock.now_s += 10
    run_to_rest(master, fleet)
    assert all(master.curves(name) for name in names), "they ended within the hour"
    monkeypatch.setattr(runner, "RECENT", timedelta(0))
    held = weakref.ref(master._jobs["first"])

    def forgotten() -> bool:
        clock.now_s += 1  # once the histories hold all of them
        return master.step(0) == 0 and not master.curves("first") and not master.curves("second")

    until(forgotten)
    gc.collect()
    assert held() is None
    for name in names:
        whole, now = before[name], master.status(name)
        assert bool(master.curves(name)) == bool(master.events(name)) == (name == "third")
        assert (now.state, now.counts, now.phases, now.elapsed_s) == (
            whole.state, whole.counts, whole.phases, whole.elapsed_s,
        )  # fmt: skip
    assert {job.name for job in master.jobs()} == set(names)
    with pytest.raises(Conflict, match="job first is stopped"):
        master.pause("first")
    assert master.start(jobs[0]).state is JobState.RUNNING
    assert master.events("first")


def test_jobs_that_are_past_take_little_memory(adapters: Adapters, fleet: Fleet) -> None:
    """A master may know thousands of them, with hundreds of epochs each."""
    master = master_named("m1", adapters)
    master.start(fleet.job.model_copy(update={"epochs": 100}))
    master.stop("small")
    told, table = master.status("small"), JobTable()
    table.remember(told)
    tracemalloc.start()
    try:
        for number in range(20):
            table.remember(told.model_copy(update={"name": f"job-{number}"}, deep=True))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 20 * 20_000, "unpacked it is more than 200 kB each"
    assert table.past("small") == told
    assert len(table.summaries(0.0)) == 21
    assert told.ended is not None
    assert [len(table.past_since(told.ended + timedelta(seconds=s))) for s in (-1, 1)] == [21, 0]


def test_the_events_of_a_job_that_ended_under_another_master_come_to_an_end(adapters: Adapters, fleet: Fleet) -> None:
    """Readers wait for the last event that the status names."""
    first = master_named("m1", adapters)
    first.start(fleet.job)
    first.stop("small")
    first.drain()
    first.run()
    assert first.status("small").last_event > 0
    second = master_named("m2", adapters)
    assert (second.events("small"), second.status("small").last_event) == ((), 0)


def test_who_has_read_the_events_of_a_job_goes_on_reading_under_the_next_master(
    adapters: Adapters, fleet: Fleet
) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job)
    seen = first.status("small").last_event
    die(first)
    second = master_named("m2", adapters)
    assert any("taken over from m1" in event.message for event in second.events("small", after=seen))


@pytest.mark.parametrize("lost", ["output", "output and catalog"])
@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.STOPPED, JobState.FAILED])
def test_a_job_that_ended_and_whose_output_was_removed_does_not_run_again(
    adapters: Adapters, fleet: Fleet, tmp_path: Path, state: JobState, lost: str
) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job)
    if state is JobState.COMPLETED:
        run_to_rest(first, fleet)
        fleet.finish()
    elif state is JobState.STOPPED:
        first.stop("small")
    else:
        fleet.report(Progress(failed=Failed(stage=AGGREGATOR, kind=ERROR, reason="no room")))
    run_to_rest(first, fleet)
    assert first.status("small").state is state
    first.drain()
    first.run()
    shutil.rmtree(tmp_path / "out")
    if lost != "output":
        (tmp_path / "catalog.parquet").unlink()
    told = len(fleet.commands)
    second = master_named("m2", adapters)
    run_to_rest(second, fleet)
    found = second.status("small")
    assert (found.state, found.output, found.reason) == (state, fleet.job.output, first.status("small").reason)
    assert [job.state for job in second.jobs()] == [state]
    assert fleet.commands[told:] == []
    assert not (tmp_path / "out").exists()


def test_a_job_that_ended_and_cannot_be_read_any_more_stays_as_it_was(
    adapters: Adapters, fleet: Fleet, tmp_path: Path
) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job)
    first.stop("small")
    first.drain()
    first.run()
    newest = max((tmp_path / "out" / "history").glob("0*"))
    newest.write_bytes(b"damaged")
    second = master_named("m2", adapters)
    assert second.status("small").state is JobState.STOPPED


def lose_last(numbers: Any) -> None:
    numbers.pop()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda ledger: lose_last(ledger.plain[0].indices), id="indices"),
        pytest.param(lambda ledger: lose_last(ledger.plain[0].sizes[0].bytes), id="sizes"),
        pytest.param(lambda ledger: ledger.plain[0].indices.append(10**6), id="an index beyond the plan"),
        pytest.param(lambda ledger: setattr(ledger.plain[0], "phase_index", 10**6), id="a phase beyond the plan"),
        pytest.param(lambda ledger: lose_last(ledger.consumers[0].below), id="a phase less"),
        pytest.param(lambda ledger: ledger.order.issued.bits.append(b"x"), id="blocks of issued clips"),
    ],
)
def test_a_history_that_does_not_fit_together_is_named_and_the_job_goes_on_from_its_checkpoints(
    adapters: Adapters, fleet: Fleet, tmp_path: Path, damage: Callable[[LedgerState], object]
) -> None:
    """As when it was edited, or written by something else: what no check sum shows."""
    first = master_named("m1", adapters)
    first.start(fleet.job)
    written(first, fleet)
    fleet.work()
    written(first, fleet)
    die(first)
    newest = max((tmp_path / "out" / "history").glob("0*"))
    segment = unpack(newest.read_bytes(), newest.as_uri())
    damage(segment.ledger)
    newest.write_bytes(pack(segment))
    second = master_named("m2", adapters)
    found = second.status("small")
    assert found.state is JobState.FAILED
    assert f"{newest.as_uri()} is damaged" in found.reason
    assert "restore it from a backup, or start the job again" in found.reason
    assert [job.name for job in second.jobs()] == ["small"], "nobody is kept from the list of jobs"
    second.start(fleet.job)
    run_to_rest(second, fleet)
    assert second.status("small").state is not JobState.FAILED


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.STOPPED, JobState.FAILED])
def test_a_job_whose_master_died_as_it_started_it_again_stays_as_it_was(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, state: JobState, fresh: bool
) -> None:
    """The next run is in the history, and nobody was told of it: who asked for it got no answer, and asks again."""

    def dies(point: str) -> None:
        if point == "master.start-recorded":
            raise SystemExit

    first = master_named("m1", adapters)
    first.start(fleet.job)
    if state is JobState.COMPLETED:
        run_to_rest(first, fleet)
        fleet.finish()
    elif state is JobState.STOPPED:
        first.stop("small")
    else:
        fleet.report(Progress(failed=Failed(stage=AGGREGATOR, kind=ERROR, reason="no room")))
    run_to_rest(first, fleet)
    ended = first.status("small")
    assert ended.state is state
    with monkeypatch.context() as patched:
        patched.setattr(start_run, "failpoint", dies)
        with pytest.raises(SystemExit):
            first.start(fleet.job, fresh)
    die(first)
    fleet.learn()
    told = len(fleet.commands)
    second = master_named("m2", adapters)
    run_to_rest(second, fleet)
    found = second.status("small")
    assert (found.state, found.reason) == (state, ended.reason)
    assert fresh or (found.result, found.counts, found.progress.done) == (
        ended.result,
        ended.counts,
        ended.progress.done,
    )
    assert fleet.commands[told:] == []
    assert second.start(fleet.job, fresh).state is JobState.RUNNING


@pytest.mark.parametrize("command", ["stop", "complete"])
def test_an_end_that_the_history_misses_is_written_there(adapters: Adapters, fleet: Fleet, command: str) -> None:
    """The master died between the command and its history."""
    first = master_named("m1", adapters)
    first.start(fleet.job)
    if command == "stop":
        fleet.work()
        first.stop("small")
    else:
        run_to_rest(first, fleet)
        written(first, fleet)
        fleet.report(Progress(finished=Finished(stage=AGGREGATOR, uri="file:///model"), fence=1))
        ended = Control(job="small", fence=1, command=Control.COMPLETE)
        fleet.learn()
        ended.snapshot.CopyFrom(fleet.commands[0].snapshot)
        adapters.bus.publish("essp.control", b"small", ended.SerializeToString())
    die(first)
    second = master_named("m2", adapters)
    second.drain()
    run_to_rest(second, fleet)
    assert second.status("small").state is (JobState.STOPPED if command == "stop" else JobState.COMPLETED)
    assert {unit.fence for unit in fleet.units} == {1}, "nothing is issued of a job that has ended"
    second.run()
    newest = History(adapters.stores.under(fleet.job.output)).newest()
    assert newest is not None
    assert newest.state == ("stopped" if command == "stop" else "completed")


@pytest.mark.parametrize("server", ["store", "bus"])
def test_a_server_that_is_away_during_a_take_over_is_waited_for(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    """The master says so meanwhile, and loses nothing of what workers say."""
    first = master_named("m1", adapters)
    first.start(fleet.job)
    fleet.work()
    die(first)
    back, get, commands = threading.Event(), DirectoryStore.get, last_commands

    def away() -> None:
        if not back.is_set():
            raise Unavailable(f"the {server} is away", 0.001)

    def read(store: DirectoryStore, key: str) -> bytes:
        away()
        return get(store, key)

    def listen(bus: Bus, draining: threading.Event) -> list[Control]:
        away()
        return commands(bus, draining)

    if server == "store":
        monkeypatch.setattr(DirectoryStore, "get", read)
    else:
        monkeypatch.setattr(takeover, "last_commands", listen)
    monkeypatch.setattr(takeover, "_PATIENCE_S", 0.0)
    second = Master(adapters, MasterSettings(history_s=0.0, ready_s=0.0), "m2", recovers=True)
    taking_over = threading.Thread(target=second.recover)
    taking_over.start()
    try:
        until(lambda: bool(second.obstacle) or not taking_over.is_alive())
        assert f"the {server} is away" in second.obstacle
        ready = [second.ready]
        with pytest.raises(Unavailable, match=f"finding out what was under way .*the {server} is away"):
            second.jobs()
        fleet.work()
    finally:
        back.set()
        taking_over.join()
    assert [*ready, second.ready] == [False, True]
    assert not second.obstacle
    assert second.status("small").state is JobState.RUNNING
    run_to_rest(second, fleet)
    assert fleet.trained == BOTH


def test_a_few_requests_wait_for_a_take_over_and_the_others_are_told_at_once(
    adapters: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "_PATIENCE_S", 20.0)
    master = Master(adapters, MasterSettings(), "m1", recovers=True)
    waits, first = list[float | None](), threading.Event()

    class Known(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            if timeout:
                first.wait(LONGEST_S)
            return False

    master._takeover.done = Known()
    with ThreadPoolExecutor(25) as many:
        answers = [many.submit(master.jobs) for _ in range(25)]
        until(lambda: len(waits) == 25)
        first.set()
    assert all(isinstance(each.exception(), Unavailable) for each in answers)
    assert sorted(waits, key=str) == [0.0] * 5 + [20.0] * 20


def test_a_job_whose_store_stays_away_keeps_a_new_master_from_no_other(
    adapters: Adapters, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job.model_copy(update={"name": "bad", "output": f"file://{tmp_path}/bad"}))
    first.start(fleet.job)
    die(first)
    get = DirectoryStore.get

    def read(store: DirectoryStore, key: str) -> bytes:
        if "/bad/" in f"{store.uri(key)}/":
            raise Unavailable("the store is away", 0.001)
        return get(store, key)

    monkeypatch.setattr(DirectoryStore, "get", read)
    second = Master(adapters, MasterSettings(history_s=0.0, ready_s=0.0, takeover_s=0.0), "m2", recovers=True)
    second.recover()
    assert second.ready
    assert second.status("small").state is JobState.RUNNING
    bad = second.status("bad")
    assert bad.state is JobState.FAILED
    assert "cannot be taken over yet: the store is away; start it again, and it resumes" in bad.reason


def test_a_bus_that_was_away_takes_nothing_from_the_patience_with_stores(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that fails once, right after a long outage of the bus, is waited for."""
    first = master_named("m1", adapters)
    first.start(fleet.job)
    die(first)
    clock, get, commands, once = Clock(), DirectoryStore.get, last_commands, [True, True]

    def read(store: DirectoryStore, key: str) -> bytes:
        if len(once) == 1 and once.pop():
            raise Unavailable("the store is away", 0.001)
        return get(store, key)

    def listen(bus: Bus, draining: threading.Event) -> list[Control]:
        if len(once) == 2 and once.pop():
            clock.now_s += 3600
            raise Unavailable("the bus is away", 0.001)
        return commands(bus, draining)

    monkeypatch.setattr(DirectoryStore, "get", read)
    monkeypatch.setattr(takeover, "last_commands", listen)
    second = Master(adapters, MasterSettings(history_s=0.0, ready_s=0.0), "m2", recovers=True, clock=clock)
    second.recover()
    assert not once
    assert second.status("small").state is JobState.RUNNING


def test_nobody_waits_for_the_history_of_a_job_that_has_ended(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job)
    first.stop("small")
    die(first)

    def away(store: DirectoryStore, key: str) -> bytes:
        raise Unavailable("the store is away", 0.001)

    with monkeypatch.context() as patched:
        patched.setattr(DirectoryStore, "get", away)
        second = master_named("m2", adapters)
        assert second.ready
        told = second.status("small")
        assert (told.state, told.progress.total) == (JobState.STOPPED, 0)
        assert told.reason == "its history cannot be read yet: the store is away"
        second._takeover.read_again()
        assert second.status("small") == told
    second._takeover.read_again()
    known = second.status("small")
    assert (known.state, known.progress.total, known.reason) == (JobState.STOPPED, sum(SIZES), "")
    reads: list[str] = []
    monkeypatch.setattr(DirectoryStore, "get", lambda store, key: reads.append(key))
    second._takeover.read_again()
    assert not reads, "it is known now"


def test_a_job_that_was_started_again_is_not_taken_for_the_one_whose_history_could_not_be_read(
    adapters: Adapters, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(adapters, fleet, tmp_path, "small")

    def away(store: DirectoryStore, key: str) -> bytes:
        raise Unavailable("the store is away", 0.001)

    with monkeypatch.context() as patched:
        patched.setattr(DirectoryStore, "get", away)
        second = master_named("m2", adapters)
    second.start(fleet.job.model_copy(update={"output": f"file://{tmp_path}/other"}))
    second._takeover.read_again()
    assert second.status("small").state is JobState.RUNNING


def test_a_store_that_does_not_answer_is_waited_for_once_for_all_its_histories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And keeps nobody from those of another store."""
    roots = {name: f"file://{tmp_path}/{name}" for name in ("dead", "alive")}
    clock, asked = Clock(), Counter[str]()

    def read(command: Control, stores: Stores) -> JobStatus | None:
        name = command.job.partition("-")[0]
        asked[name] += 1
        if name == "dead":
            clock.now_s += 80.0
            raise Unavailable("it does not answer")
        return None

    monkeypatch.setattr(reading, "past", read)
    jobs = [
        make_job(tmp_path).model_copy(update={"name": f"{n}-{i}", "output": f"{roots[n]}/{i}"})
        for n in roots
        for i in range(40)
    ]
    commands = [
        Control(job=job.name, command=Control.START, snapshot=JobSnapshot(spec_json=job.model_dump_json()))
        for job in jobs
    ]
    histories = Histories(Stores(list(roots.values())), clock, threading.Event())
    found = {each.command.job: each.error for each in histories.read(commands)}
    assert asked == {"dead": 1, "alive": 40}
    assert {name for name, error in found.items() if isinstance(error, Unavailable)} == {f"dead-{i}" for i in range(40)}
    assert len(found) == len(commands)
    asked.clear()
    assert len(list(histories.read(commands, insist=True))) == len(commands)
    assert asked == {"dead": 40, "alive": 40}


def stopped(adapters: Adapters, fleet: Fleet, tmp_path: Path, *names: str) -> None:
    """A master has started and stopped these jobs, written their histories, and left."""
    master = master_named("m1", adapters)
    for name in names:
        master.start(fleet.job.model_copy(update={"name": name, "output": f"file://{tmp_path}/{name}"}))
        master.stop(name)
    master.drain()
    master.run()


def test_histories_are_read_side_by_side(
    adapters: Adapters, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the first of a store, which shows that it answers."""
    names = ("one", "two", "three", "four")
    stopped(adapters, fleet, tmp_path, *names)
    together, newest = threading.Barrier(len(names) - 1, timeout=LONGEST_S), History.newest
    first = iter([True])

    def read(history: History) -> HistorySegment | None:
        if not next(first, False):
            together.wait()  # for the other two
        return newest(history)

    monkeypatch.setattr(History, "newest", read)
    second = master_named("m2", adapters)
    assert {job.name: job.state for job in second.jobs()} == dict.fromkeys(names, JobState.STOPPED)
    assert not together.broken


def test_jobs_under_way_are_taken_over_before_the_histories_of_others_are_read(
    adapters: Adapters, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(adapters, fleet, tmp_path, "one", "two")
    first = master_named("m2", adapters)
    first.start(fleet.job)
    die(first)
    order = list[str]()

    def read(command: Control, stores: Stores) -> JobStatus | None:
        order.append(command.job)
        return past(command, stores)

    monkeypatch.setattr(reading, "past", read)
    monkeypatch.setattr(reading, "_TOGETHER", 1)
    assert master_named("m3", adapters).status("small").state is JobState.RUNNING
    assert order == ["small", "one", "two"]


def test_jobs_that_ended_are_remembered_while_nobody_lists_the_jobs(
    adapters: Adapters, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(adapters, fleet, tmp_path, "one")
    second = Master(adapters, MasterSettings(history_s=0.0, ready_s=0.0), "m2", recovers=True)
    remember, free = JobTable.remember, list[bool]()

    def look(table: JobTable, ended: JobStatus) -> None:
        asks = threading.Thread(target=lambda: free.append(second._runner.lock.acquire(blocking=False)))
        asks.start()
        asks.join()
        remember(table, ended)

    monkeypatch.setattr(JobTable, "remember", look)
    second.recover()
    assert free == [False]


@pytest.mark.parametrize("answers", [False, True])
def test_a_master_that_is_drained_waits_for_nobody(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job)
    die(first)
    get = DirectoryStore.get

    def drained(store: DirectoryStore, key: str) -> bytes:
        second.drain()
        if answers:
            return get(store, key)
        raise Unavailable("the store is away", 3600.0)

    monkeypatch.setattr(DirectoryStore, "get", drained)
    second = Master(adapters, MasterSettings(history_s=0.0, ready_s=0.0), "m2", recovers=True)
    second.run()
    assert not second.ready
    assert not second.recovered, "nobody is told that there are no other jobs than it has read by then"


@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_between_every_clip_is_trained_once(adapters: Adapters, fleet: Fleet, seed: int) -> None:
    """Pauses, resumes and deaths of masters at random moments, between steps of work of random size."""
    chance = random.Random(seed)
    clock = Clock()
    masters = [master_named("m1", adapters, clock)]
    masters[0].start(fleet.job)
    for number in range(30):
        match chance.choice(["work", "work", "work", "pause", "resume", "die"]):
            case "work":
                fleet.learn()
                chance.choice([lambda: fleet.decode(2), fleet.extract, lambda: fleet.train("trainer.diff", 3)])()  # type: ignore[no-untyped-call]
                fleet.train("trainer.rgb", chance.randrange(4))
            case "pause":
                masters[-1].pause("small")
            case "resume":
                masters[-1].resume("small")
            case "die":
                die(masters[-1])
                masters.append(master_named(f"m{number + 2}", adapters, clock))
        if chance.random() < 0.8:
            masters[-1].step(0)
    masters[-1].resume("small")
    run_to_rest(masters[-1], fleet)
    assert fleet.trained == BOTH
    assert fleet.most_bytes <= fleet.job.limits.budget
    fleet.finish(fence=1)
    run_to_rest(masters[-1], fleet)
    masters[-1].drain()
    masters[-1].run()
    status = masters[-1].status("small")
    assert status.state is JobState.COMPLETED, status.reason
    account = account_of(History(adapters.stores.under(fleet.job.output)).read())
    findings = check(account, None, status, account.last_ms)
    assert [(f.invariant, f.violations) for f in findings if f.holds is False] == []
