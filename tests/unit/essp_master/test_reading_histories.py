"""How a new master reads what was under way: it waits for servers that are away, keeps nobody from what it knows, and
reads of each store side by side."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from essp_common.artifacts.history import History
from essp_common.bus.port import Bus
from essp_common.errors import Unavailable
from essp_common.job.status import JobState, JobStatus
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import (
    Control,
    HistorySegment,
    JobSnapshot,
)
from essp_common.wiring import Adapters, Stores
from essp_master.config import MasterSettings
from essp_master.failover import reading
from essp_master.failover.reading import Histories
from essp_master.failover.recovery import last_commands, past
from essp_master.lifecycle import takeover
from essp_master.lifecycle.job_table import JobTable
from essp_master.service import Master
from tests.harness.fleet import SIZES, Clock, Fleet, make_job, run_to_rest
from tests.harness.masters import BOTH, die, master_named
from tests.harness.waiting import LONGEST_S, until

pytestmark = pytest.mark.slow


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
