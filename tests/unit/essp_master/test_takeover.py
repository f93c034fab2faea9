"""One master after another, or beside another: what the second one knows, and what the first one may still do."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from essp.account import account_of
from essp.audit.invariants import check
from essp_common import topics
from essp_common.artifacts import layout
from essp_common.artifacts.history import History, pack, unpack
from essp_common.errors import Conflict, Fenced
from essp_common.job.status import JobState
from essp_common.messages.control import ControlFeed
from essp_common.messages.parsing import MOST_FENCE
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.numbered_log import NumberedLog
from essp_common.objects.port import ObjectInfo
from essp_common.pb.v1.messages_pb2 import (
    TRAIN,
    Control,
    Heartbeat,
    HistorySegment,
    LedgerState,
    Machine,
    Progress,
    StepReport,
)
from essp_common.runtime import ids
from essp_common.wiring import Adapters
from essp_engine.preflight import preflight
from essp_master.config import MasterSettings
from essp_master.lifecycle.job_table import JobTable
from essp_master.service import Master
from tests.harness.fleet import SIZES, Clock, Fleet, master_over, run_to_rest
from tests.harness.masters import BOTH, die, master_named, written
from tests.harness.waiting import LONGEST_S, until
from tests.lanes import often

pytestmark = pytest.mark.slow


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


def test_a_run_wins_over_all_that_its_name_was_told_with_another_output(
    adapters: Adapters, fleet: Fleet, tmp_path: Path
) -> None:
    """Workers that begin afterwards read every command of the name; each output has fences of its own."""

    def started(master: Master, output: str) -> str:
        """Start the job, and stop it. Returns the output that workers know which begin in between."""
        master.start(fleet.job.model_copy(update={"output": (tmp_path / output).as_uri()}))
        feed = ControlFeed(adapters.bus)
        try:
            known = feed.wait("small", LONGEST_S)
        finally:
            feed.close()
            master.stop("small")
            master.step(0)
        assert known is not None
        return Path(json.loads(known.snapshot.spec_json)["output"]).name if known.command == Control.START else ""

    first = master_named("m1", adapters)
    assert [started(first, output) for output in ("one", "one", "two")] == ["one", "one", "two"]
    die(first)
    second = master_named("m2", adapters)
    assert started(second, "three") == "three"
    second.remove("small")
    die(second)
    assert started(master_named("m3", adapters), "four") == "four"
    assert started(master_over(adapters), "five") == "five", "in one process with its workers, on shared servers"


def test_a_name_for_which_no_higher_fence_is_valid_is_refused(adapters: Adapters, fleet: Fleet) -> None:
    """Any client may send a command, and no worker would heed this master's."""
    forged = Control(job="small", fence=MOST_FENCE - 1, command=Control.STOP)
    adapters.bus.publish(topics.CONTROL, b"small", forged.SerializeToString())
    with pytest.raises(Conflict, match="choose another name"):
        master_over(adapters).start(fleet.job)


def test_the_course_of_a_job_goes_on_under_the_next_master(adapters: Adapters, fleet: Fleet) -> None:
    clock = Clock()
    first = master_named("m1", adapters, clock)
    first.start(fleet.job)
    for clips in range(1, 6):
        fleet.work()
        step = StepReport(trainer="rgb", purpose=TRAIN, clips_done=2 * clips, loss=1 / clips, top1=0.5, lr=0.01)
        fleet.report(Progress(step=step))
        fleet.report(Progress(heartbeat=Heartbeat(pool="decoder", machine=Machine(host="a", memory_bytes=clips))))
        clock.now_s += 60
        first.step(0)
    first.drain()
    first.run()
    before, curves = first.timeline("small"), first.curves("small")
    second = master_named("m2", adapters, clock)
    after = second.timeline("small")
    assert (after.times, after.totals) == (before.times, before.totals)
    assert {(each.figure, each.of): each.values for each in before.series}.items() <= {
        (each.figure, each.of): each.values for each in after.series
    }.items()
    assert {"clips_per_s", "outstanding_bytes", "queue", "epoch", "lr", "memory_bytes"} <= {
        s.figure for s in after.series
    }
    assert second.curves("small") == curves
    assert len(curves[0].points) == 5
    DirectoryStore(fleet.job.output.removeprefix("file://")).put(layout.TIMELINE, b"{")
    die(second)
    third = master_named("m3", adapters, clock)
    assert third.status("small").state is JobState.RUNNING, "what is only shown keeps nobody from working"
    assert third.timeline("small").times == ()


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


def test_jobs_whose_outputs_lie_in_each_other_are_both_taken_over(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is started so any more, but one that is under way goes on."""
    first = master_named("m1", adapters)
    first.start(fleet.job)
    with monkeypatch.context() as before:
        before.setattr(JobTable, "check_output", lambda table, *given: None)
        before.setattr(preflight, "check_place", lambda *given: None)
        first.start(fleet.job.model_copy(update={"name": "inner", "output": f"{fleet.job.output}/inner"}))
    die(first)
    second = master_named("m2", adapters)
    assert [second.status(name).state for name in ("small", "inner")] == [JobState.RUNNING] * 2


def test_nobody_is_told_to_work_for_a_job_that_was_stopped_just_before(adapters: Adapters, fleet: Fleet) -> None:
    """Its master died before the history held the end."""
    first = master_named("m1", adapters)
    first.start(fleet.job)
    written(first, fleet)
    first.stop("small")
    die(first)
    second = master_named("m2", adapters)
    run_to_rest(second, fleet)
    assert second.status("small").state is JobState.STOPPED
    fleet.learn()
    told = [(command.fence, command.command) for command in fleet.commands]
    assert told == [(1, Control.START), (1, Control.STOP), (2, Control.STOP)]


def test_what_is_made_for_a_job_of_a_store_that_is_gone_is_freed(adapters: Adapters, fleet: Fleet) -> None:
    """The next master gives it up, and nobody takes its clips."""
    first = master_named("m1", adapters)
    first.start(fleet.job)
    first.step(0)
    fleet.learn()
    assert fleet.decode()
    written(first, fleet)
    first.step(0)  # the next one reads none of these reports again
    die(first)
    shutil.rmtree(fleet.job.output.removeprefix("file://"))
    Path(str(fleet.job.data.catalog).removeprefix("file://")).unlink()
    second = master_named("m2", adapters)
    assert second.status("small").state is JobState.FAILED
    second.step(0)
    assert adapters.cache.usage().used_bytes == 0


def test_a_job_that_another_master_is_starting_is_not_failed(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job)
    die(first)
    second = Master(adapters, MasterSettings(history_s=0.0, ready_s=0.0), "m2", True)

    def refuses(*_: object) -> None:
        raise Conflict("job small is being started by other masters, too; stop all but one")

    monkeypatch.setattr(second._starter, "take_over", refuses)
    second.recover()
    second.step(0)
    fleet.learn()
    assert [command.command for command in fleet.commands] == [Control.START]


def test_what_is_read_late_of_a_job_that_had_ended_does_not_end_the_one_that_was_started_since(
    adapters: Adapters, fleet: Fleet
) -> None:
    master = master_named("m1", adapters)
    master.start(fleet.job)
    past = master.status("small").model_copy(update={"state": JobState.STOPPED})
    master._takeover._remember(past)
    assert master.status("small").state is JobState.RUNNING


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


def test_who_has_read_the_events_of_a_job_goes_on_reading_under_the_next_master(
    adapters: Adapters, fleet: Fleet
) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job)
    seen = first.status("small").last_event
    die(first)
    second = master_named("m2", adapters)
    assert any("taken over from m1" in event.message for event in second.events("small", after=seen))


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


@pytest.mark.parametrize("seed", often(range(4), 2))
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
