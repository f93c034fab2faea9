"""What a master does whose histories cannot be written: nothing is taken for done that no history holds, and what a
history lacks is told."""

from __future__ import annotations

import re
import threading
from collections import Counter
from typing import Any

import pytest

from essp_common import topics
from essp_common.artifacts import layout
from essp_common.artifacts.history import History
from essp_common.bus.port import Record
from essp_common.errors import PermanentError, Unavailable
from essp_common.job.status import JobState
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.numbered_log import NumberedLog
from essp_common.objects.port import ObjectInfo
from essp_common.pb.v1.messages_pb2 import (
    Heartbeat,
    HistorySegment,
    Progress,
)
from essp_common.runtime import ids
from essp_common.wiring import Adapters
from essp_master.config import MasterSettings
from essp_master.effects import history_writer
from essp_master.ledger.ledger import Ledger
from essp_master.service import Master
from tests.harness.fleet import Fleet, run_to_rest
from tests.harness.masters import BOTH, die, master_named, written
from tests.harness.waiting import LONGEST_S, until

pytestmark = pytest.mark.slow


class Histories:
    """The store takes none, as long as they are `away`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away = True
        put = DirectoryStore.put

        def fails(store: DirectoryStore, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
            if self.away and key.startswith("history/"):
                raise Unavailable("the store is away", 0.01)
            return put(store, key, data, if_absent=if_absent)

        monkeypatch.setattr(DirectoryStore, "put", fails)


def test_no_message_is_done_before_the_history_holds_it(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job)
    histories = Histories(monkeypatch)
    run_to_rest(first, fleet)
    told = first.status("small")
    assert fleet.trained == BOTH, "a store that is away holds nobody up"
    die(first)
    histories.away = False
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
    histories = Histories(monkeypatch)
    fleet.work()
    for _ in range(500):
        fleet.report(Progress(worker="d1", heartbeat=Heartbeat(pool="decoder")))
    sent = adapters.bus.backlog(topics.PROGRESS, ids.MASTER)
    read = sum(master.step(0) for _ in range(2 * sent))
    assert 50 <= read < 100
    histories.away = False
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


def test_what_no_segment_could_be_made_of_is_not_the_fault_of_the_next_run(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = master_named("m1", adapters)
    master.start(fleet.job)
    written(master, fleet)
    master.start(fleet.job.model_copy(update={"name": "other", "output": f"{fleet.job.output}-other"}))
    until(lambda: master.step(0) == 0 and not master._history.writing and not master._jobs["other"].recorder.pending)
    master.stop("small")

    def fails(*_: Any) -> Any:
        monkeypatch.undo()
        raise ValueError("a defect")

    monkeypatch.setattr(Ledger, "state", fails)
    master.start(fleet.job)
    run_to_rest(master, fleet)
    assert master.status("small").state is JobState.RUNNING
    assert "a defect; it lacks all that happened after segment" in warnings(master)[-1]


def by_another_master(adapters: Adapters, fleet: Fleet) -> None:
    """It has taken the job, and has written the next segment."""
    output = adapters.stores.under(fleet.job.output)
    number = History(output).last() + 1
    NumberedLog(output, layout.FENCES).append(b"{}")
    History(output).append(HistorySegment(first=number, last=number, fence=2, since=1, writer="m2"))


def test_what_comes_after_the_end_of_a_job_that_another_master_has_is_done_once(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master stays, since it had no such job under way; the messages are nobody else's."""
    master = master_named("m1", adapters)
    master.start(fleet.job)
    written(master, fleet)
    by_another_master(adapters, fleet)
    done: Counter[tuple[int, int]] = Counter()
    call_done = master._subscription.done

    def counted(record: Record) -> None:
        done[record.partition, record.offset] += 1
        call_done(record)

    monkeypatch.setattr(master._subscription, "done", counted)
    fleet.work()
    master.stop("small")
    for _ in range(4):
        master.step(0)
        master._history.wait(LONGEST_S)
    assert master.status("small").state is JobState.STOPPED
    assert adapters.bus.backlog(topics.PROGRESS, ids.MASTER) == 0
    assert set(done.values()) == {1}


def test_nothing_is_done_while_it_is_not_known_what_a_refused_segment_means(adapters: Adapters, fleet: Fleet) -> None:
    master = master_named("m1", adapters)
    master.start(fleet.job)
    written(master, fleet)
    by_another_master(adapters, fleet)
    fleet.work()
    sent = adapters.bus.backlog(topics.PROGRESS, ids.MASTER)
    master.pause("small")
    master.step(0)
    master._history.wait(LONGEST_S)
    master._history.write(master._jobs, now=True)
    master._history.wait(LONGEST_S)
    assert adapters.bus.backlog(topics.PROGRESS, ids.MASTER) == sent > 0


def test_who_leaves_while_no_history_can_be_written_takes_no_message_with_it(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_writer, "_LAST_WRITE_S", 0.0)
    master = master_named("m1", adapters)
    master.start(fleet.job)
    written(master, fleet)
    Histories(monkeypatch)
    fleet.work()
    sent = adapters.bus.backlog(topics.PROGRESS, ids.MASTER)
    while master.step(0):
        pass
    master.drain()
    master.run()
    assert not master._history.writing
    assert adapters.bus.backlog(topics.PROGRESS, ids.MASTER) >= sent > 0


def test_one_batch_is_written_at_a_time(adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a history could have a later segment and lack the one before."""
    master = master_named("m1", adapters)
    master.start(fleet.job)
    written(master, fleet)
    go, append = threading.Event(), History.append

    def slow(history: History, segment: HistorySegment) -> int:
        assert go.wait(LONGEST_S)
        return append(history, segment)

    monkeypatch.setattr(History, "append", slow)
    for act in (master.pause, master.resume, master.pause):
        act("small")
        master.step(0)
    writers = [thread for thread in threading.enumerate() if thread.name == "essp-history"]
    go.set()
    master._history.finish()
    assert len(writers) == 1


def warnings(master: Master) -> list[str]:
    return [event.message for event in master.events("small") if event.kind == "warning"]
