"""Jobs that have ended: what a master keeps of them, and what the next one knows."""

from __future__ import annotations

import gc
import shutil
import tracemalloc
import weakref
from datetime import timedelta
from pathlib import Path

import pytest

from essp_common.artifacts.history import History
from essp_common.cache.port import job_prefix
from essp_common.errors import Conflict
from essp_common.job.status import JobState
from essp_common.pb.v1.messages_pb2 import (
    AGGREGATOR,
    ERROR,
    Control,
    Failed,
    Finished,
    Made,
    Progress,
)
from essp_common.wiring import Adapters
from essp_master import service
from essp_master.lifecycle import runner, start_run
from essp_master.lifecycle.job_table import JobTable
from essp_master.service import Master
from tests.harness.fleet import SIZES, Clock, Fleet, master_over, run_to_rest
from tests.harness.masters import die, master_named, written
from tests.harness.waiting import until

pytestmark = pytest.mark.slow


def master_whose_job_ended(adapters: Adapters, fleet: Fleet, state: JobState) -> Master:
    master = master_named("m1", adapters)
    master.start(fleet.job)
    if state is JobState.COMPLETED:
        run_to_rest(master, fleet)
        fleet.finish()
    elif state is JobState.STOPPED:
        master.stop("small")
    else:
        fleet.report(Progress(failed=Failed(stage=AGGREGATOR, kind=ERROR, reason="no room")))
    run_to_rest(master, fleet)
    assert master.status("small").state is state
    return master


def test_jobs_that_ended_are_known_after_a_restart(adapters: Adapters, fleet: Fleet) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job)
    run_to_rest(first, fleet)
    fleet.finish()
    run_to_rest(first, fleet)
    first.drain()
    first.run()
    told = first.status("small")
    assert first.timeline("small").times
    second = master_named("m2", adapters)
    assert second.status("small").counts == told.counts
    assert second.timeline("small") == first.timeline("small")
    assert second.curves("small") == first.curves("small")
    assert second.spec("small") == fleet.job
    assert [(job.name, job.state, job.done) for job in second.jobs()] == [("small", JobState.COMPLETED, sum(SIZES))]
    with pytest.raises(Conflict, match="job small is completed"):
        second.pause("small")
    with pytest.raises(Conflict, match="job small is completed; start it again"):
        second.resume("small")
    assert not second.events("small")


@pytest.mark.parametrize("resumed", [True, False])
def test_groups_of_a_job_are_deleted_once_its_consumers_have_left(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    deleted: list[str] = []
    monkeypatch.setattr(adapters.bus, "delete_groups", deleted.extend)
    clock = Clock()
    master = master_over(adapters, clock)
    master.start(fleet.job)
    run_to_rest(master, fleet)
    master.stop("small")
    clock.now_s += runner._GROUPS_S - 1
    master.step(0)
    assert not deleted
    if resumed:
        master.start(fleet.job)
    clock.now_s += 2
    master.step(0)
    assert deleted == ([] if resumed else ["trainer.rgb.small", "trainer.diff.small"])
    master.step(0)
    assert len(deleted) in (0, 2)


def test_bytes_that_are_stored_once_another_master_has_come_are_freed(adapters: Adapters, fleet: Fleet) -> None:
    """A worker stood still while its job ended, and goes on."""
    die(master_whose_job_ended(adapters, fleet, JobState.STOPPED))
    second = master_named("m2", adapters)
    adapters.cache.put(f"{job_prefix('small')}late", b"bytes", ["trainer.rgb"], 60.0)
    fleet.report(Progress(fence=1, made=Made()))
    until(lambda: second.step(0.01) == 0 and second._runner.sweep())
    until(lambda: second.step(0.01) == 0 and adapters.cache.usage().keys == 0)


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


def test_a_master_keeps_the_status_alone_of_all_but_the_newest_jobs_that_have_ended(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many end within the hour: its memory and its work follow from the jobs under way."""
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
    assert all(master.curves(name) for name in names)
    for module in (runner, service):
        monkeypatch.setattr(module, "KEPT_WHOLE", 1)
    held = weakref.ref(master._jobs["first"])

    def forgotten() -> bool:
        clock.now_s += 1  # once the histories hold all of them
        return master.step(0) == 0 and all(master._jobs.is_past(name) for name in ("first", "second"))

    until(forgotten)
    gc.collect()
    assert held() is None
    for name in names:
        whole, now = before[name], master.status(name)
        assert bool(master.events(name)) == (name == "third")
        assert (now.state, now.counts, now.phases, now.elapsed_s) == (
            whole.state, whole.counts, whole.phases, whole.elapsed_s,
        )  # fmt: skip
    assert {job.name for job in master.jobs()} == set(names)
    assert [job.name for job in master.recent()] == ["third"], "metrics are of no more jobs"
    with pytest.raises(Conflict, match="job first is stopped"):
        master.pause("first")
    assert master.start(jobs[0]).state is JobState.RUNNING
    assert master.events("first")


def test_jobs_that_end_one_after_another_are_let_go_meanwhile(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end more often than is looked for bytes that workers stored too late."""
    clock = Clock()
    master = master_named("m1", adapters, clock)
    for module in (runner, service):
        monkeypatch.setattr(module, "KEPT_WHOLE", 1)
    begun = 0

    def one_more_leaves_few() -> bool:
        nonlocal begun
        name, begun = f"job-{begun}", begun + 1
        master.start(fleet.job.model_copy(update={"name": name, "output": f"{fleet.job.output}/{name}"}))
        master.stop(name)
        clock.now_s += 0.5
        master.step(0.01)
        return len(list(master._jobs)) < begun - 10

    until(one_more_leaves_few)


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
    assert [len(table.past_since(told.ended + timedelta(seconds=s), 100)) for s in (-1, 1)] == [21, 0]
    assert len(table.past_since(told.ended - timedelta(seconds=1), 5)) == 5


def test_the_events_of_a_job_that_ended_under_another_master_come_to_an_end(adapters: Adapters, fleet: Fleet) -> None:
    """Readers wait for the last event that the status names."""
    first = master_named("m1", adapters)
    first.start(fleet.job)
    first.stop("small")
    first.drain()
    first.run()
    assert first.status("small").last_event > 0
    second = master_named("m2", adapters)
    assert (list(second.events("small")), second.status("small").last_event) == ([], 0)


@pytest.mark.parametrize("lost", ["output", "output and catalog"])
@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.STOPPED, JobState.FAILED])
def test_a_job_that_ended_and_whose_output_was_removed_does_not_run_again(
    adapters: Adapters, fleet: Fleet, tmp_path: Path, state: JobState, lost: str
) -> None:
    first = master_whose_job_ended(adapters, fleet, state)
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


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.STOPPED, JobState.FAILED])
def test_a_job_whose_master_died_as_it_started_it_again_stays_as_it_was(
    adapters: Adapters, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, state: JobState, fresh: bool
) -> None:
    """The next run is in the history, and nobody was told of it: who asked for it got no answer, and asks again."""

    def dies(point: str) -> None:
        if point == "master.start-recorded":
            raise SystemExit

    first = master_whose_job_ended(adapters, fleet, state)
    ended = first.status("small")
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
