"""Which jobs a master starts, and where: refused, gone on with, taken for the same."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from essp_common import topics
from essp_common.artifacts import checkpoint, layout
from essp_common.artifacts.history import History
from essp_common.artifacts.removal import OfAnotherJob
from essp_common.errors import ConfigError, Conflict, NotFound, PermanentError, Unavailable
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, stored_status
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo
from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION, CheckpointReady, Progress
from essp_common.runtime import ids
from essp_common.wiring import Adapters
from essp_engine.preflight.output import Asked
from essp_engine.preflight.preflight import Preflight, preflight
from essp_master.effects.history_writer import HistoryWriter
from essp_master.lifecycle import starter
from tests.harness.fleet import FleetOf, make_job, master_over, run_to_rest, save_checkpoint
from tests.harness.waiting import LONGEST_S


def test_a_job_that_runs_is_not_started_again(adapters: Adapters, fleet_of: FleetOf) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    with pytest.raises(Conflict, match="running"):
        master.start(fleet.job)
    with pytest.raises(NotFound, match="there are: small"):
        master.status("other")


def test_a_stopped_job_goes_on_at_its_checkpoints(adapters: Adapters, fleet_of: FleetOf, tmp_path: Path) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    master.stop("small")
    store = DirectoryStore(str(tmp_path / "out"))
    for trainer, position in (("rgb", Position(0, 6)), ("diff", Position(1, 2))):
        save_checkpoint(store, trainer, position)
    fleet.decode()
    fleet.units.clear()
    status = master.start(fleet.job)
    assert status.phases[0].done == {"trainer.rgb": 6, "trainer.diff": 10}
    fleet.decode()
    wanted = {
        (unit.purpose, unit.epoch, seed.index): {name for stream in unit.recipe.streams for name in stream.consumers}
        for unit in fleet.units
        for seed in unit.seeds
    }
    assert min(index for purpose, epoch, index in wanted if (purpose, epoch) == (TRAIN, 0)) == 6
    assert wanted[TRAIN, 0, 6] == {"trainer.rgb"}
    assert wanted[VALIDATION, 0, 2] == {"trainer.rgb", "trainer.diff"}
    assert fleet.units[-1].fence == 2


def test_a_checkpoint_that_came_after_the_checks_counts(adapters: Adapters, fleet_of: FleetOf, tmp_path: Path) -> None:
    """A trainer of the run that was stopped still saves while the next one is being checked."""
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    master.stop("small")
    store = DirectoryStore(str(tmp_path / "out"))
    save_checkpoint(store, "rgb", Position(0, 4))
    checked = master.validate(fleet.job)
    save_checkpoint(store, "rgb", Position(0, 6))
    assert master.start(fleet.job, checked=checked).phases[0].done == {"trainer.rgb": 6, "trainer.diff": 0}


def test_an_output_of_another_job_is_refused(adapters: Adapters, fleet_of: FleetOf, tmp_path: Path) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    master.stop("small")
    other = make_job(tmp_path, epochs=5, sampling={"clips_per_video": 2, "clips_per_epoch": 10, "seed": 1})
    with pytest.raises(
        ConfigError,
        match=r"differs in sampling.seed; choose another name and output .--name sets both., or start with --fresh",
    ):
        master.start(other)
    save_checkpoint(DirectoryStore(str(tmp_path / "out")), "rgb", Position(0, 6))
    assert len(master.start(other, fresh=True).phases) == 11
    assert master.status("small").phases[0].done == {"trainer.rgb": 0, "trainer.diff": 0}
    assert json.loads((tmp_path / "out" / "spec.json").read_bytes())["epochs"] == 5
    assert (tmp_path / "catalog.parquet").exists()


UNDER_WAY = r"^output: .*/out is the output of job small, and job small is {}; choose another output, or wait"


@pytest.mark.parametrize("fresh", [False, True])
def test_the_output_of_a_job_that_has_not_ended_is_left_alone(
    adapters: Adapters, fleet_of: FleetOf, tmp_path: Path, fresh: bool
) -> None:
    master, fleet = master_over(adapters, history_s=0.0), fleet_of()
    copy = fleet.job.model_copy(update={"name": "copy"})
    master.start(fleet.job)
    fleet.work()
    master.step(0)
    save_checkpoint(DirectoryStore(str(tmp_path / "out")), "rgb", Position(0, 6))
    for begin in (master.validate, master.start):
        with pytest.raises(Conflict, match=UNDER_WAY.format("running")):
            begin(copy, fresh)
    master.pause("small")
    with pytest.raises(Conflict, match=UNDER_WAY.format("paused")):
        master.start(copy, fresh)
    assert checkpoint.read_latest(DirectoryStore(str(tmp_path / "out")), "rgb") is not None
    master.resume("small")
    run_to_rest(master, fleet)
    assert all(phase.finished for phase in master.status("small").phases)
    assert [job.name for job in master.jobs()] == ["small"]
    master.stop("small")
    with pytest.raises(ConfigError, match="differs in name"):
        master.start(copy)
    with pytest.raises(OfAnotherJob, match="job, small, and would be removed"):
        master.start(copy, fresh=True)
    assert master.start(copy, fresh=True, asked=Asked(replaces="small")).state is JobState.RUNNING


@pytest.mark.parametrize(("there", "here"), [("out", "out/more"), ("out/more", "out")])
def test_outputs_of_jobs_under_way_do_not_lie_in_each_other(
    adapters: Adapters, tmp_path: Path, there: str, here: str
) -> None:
    master, job = master_over(adapters), make_job(tmp_path)
    master.start(job.model_copy(update={"output": f"file://{tmp_path}/{there}"}))
    with pytest.raises(Conflict, match=f"{here} and the output of job small .*/{there}. are one in the other"):
        master.start(job.model_copy(update={"name": "other", "output": f"file://{tmp_path}/{here}"}))
    beside = job.model_copy(update={"name": "other", "output": f"file://{tmp_path}/{there}2"})
    assert master.start(beside).state is JobState.RUNNING


def test_of_two_jobs_of_one_output_that_are_started_at_once_one_is_refused(
    adapters: Adapters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, job = master_over(adapters), make_job(tmp_path)
    refused = []

    def meanwhile(spec: JobSpec, *more: Any) -> Preflight:
        with pytest.raises(Conflict) as error:
            master.start(job.model_copy(update={"name": "copy"}), fresh=True)
        refused.append(str(error.value))
        return preflight(spec, *more)

    monkeypatch.setattr(starter, "preflight", meanwhile)
    assert master.start(job).state is JobState.RUNNING
    assert ["job small is starting" in reason for reason in refused] == [True]


@pytest.fixture
def groups_stay(adapters: Adapters, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a master has committed can be looked at after it has left."""
    monkeypatch.setattr(adapters.bus, "delete_groups", lambda groups: None)


@pytest.mark.usefixtures("groups_stay")
def test_a_job_that_took_an_output_over_is_not_disturbed_by_the_one_that_ended_there(
    adapters: Adapters, fleet_of: FleetOf
) -> None:
    """Workers still report of that one, and their messages are done as well."""
    master, fleet = master_over(adapters, history_s=0.0), fleet_of()
    copy = fleet_of(fleet.job.model_copy(update={"name": "copy"}))
    master.start(fleet.job)
    master.stop("small")
    master.start(copy.job, fresh=True, asked=Asked(replaces="small"))
    fleet.report(Progress(checkpoint=CheckpointReady(trainer="rgb", uri="file:///late"), fence=1))
    run_to_rest(master, copy)
    master.stop("copy")
    master.drain()
    master.run()
    newest = History(adapters.stores.under(copy.job.output)).newest()
    assert newest is not None
    assert stored_status(newest.status_json, "").name == "copy"
    assert adapters.bus.backlog(topics.PROGRESS, ids.unshared_master_group("m1")) == 0


def blocked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Histories are not written until this event."""
    go, put = threading.Event(), DirectoryStore.put

    def waits(store: DirectoryStore, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        if key.startswith(layout.HISTORY):
            go.wait(LONGEST_S)
        return put(store, key, data, if_absent=if_absent)

    monkeypatch.setattr(DirectoryStore, "put", waits)
    return go


@pytest.mark.usefixtures("groups_stay")
def test_a_job_that_is_started_again_at_once_goes_on_after_the_end_of_its_last_run(
    adapters: Adapters, fleet_of: FleetOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That end is still being written, and takes its time."""
    master, fleet = master_over(adapters, history_s=0.0), fleet_of()
    master.start(fleet.job)
    run_to_rest(master, fleet)
    go, wait = blocked(monkeypatch), HistoryWriter.wait
    master.stop("small")
    master.step(0)

    def waits(writer: HistoryWriter, timeout_s: float) -> None:
        go.set()
        wait(writer, timeout_s)

    monkeypatch.setattr(HistoryWriter, "wait", waits)
    master.start(fleet.job)
    run_to_rest(master, fleet)
    master.stop("small")
    master.drain()
    master.run()
    entries = [entry for part in History(adapters.stores.under(fleet.job.output)).read() for entry in part.entries]
    assert [entry.state for entry in entries if entry.state] == ["running", "stopped"] * 2
    assert adapters.bus.backlog(topics.PROGRESS, ids.unshared_master_group("m1")) == 0


def test_a_store_that_does_not_take_the_end_of_a_run_is_named_to_who_starts_it_again(
    adapters: Adapters, fleet_of: FleetOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    master.stop("small")
    monkeypatch.setattr(starter, "_PATIENCE_S", 0.0)
    go = blocked(monkeypatch)
    master.step(0)
    with pytest.raises(Unavailable, match=r"the end of the last run is not in the history in .*/out yet; ask again"):
        master.start(fleet.job)
    go.set()
    master._history.finish()
    assert master.start(fleet.job).state is JobState.RUNNING


def test_an_end_that_cannot_be_written_is_no_failure_of_the_next_run(
    adapters: Adapters, fleet_of: FleetOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is started again before it is told that the history of its last run lacks the end."""
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    run_to_rest(master, fleet)
    master._history.wait(LONGEST_S)  # while a batch is being written, a step writes nothing
    refused = threading.Event()

    def refuse(*_: Any) -> Any:
        refused.set()
        raise PermanentError("no right to write")

    with monkeypatch.context() as patched:
        patched.setattr(History, "append", refuse)
        master.stop("small")
        master.step(0)
        assert refused.wait(LONGEST_S)
        master._history.wait(LONGEST_S)
    master.start(fleet.job)
    master.step(0)
    assert master.status("small").state is JobState.RUNNING
    told = [event.message for event in master.events("small") if event.kind == "warning"]
    assert "its history cannot be written: no right to write; it lacks segment" in told[-1]
    run_to_rest(master, fleet)
    master.stop("small")
    master.drain()
    master.run()
    newest = History(adapters.stores.under(fleet.job.output)).newest()
    assert newest is not None
    assert stored_status(newest.status_json, "").state is JobState.STOPPED


def test_a_start_that_failed_leaves_the_run_before_to_note_what_still_comes_of_it(
    adapters: Adapters, fleet_of: FleetOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, fleet = master_over(adapters, history_s=0.0), fleet_of()
    master.start(fleet.job)
    master.stop("small")
    run_to_rest(master, fleet)

    def refuses(*_: Any) -> Any:
        raise Unavailable("no answer")

    monkeypatch.setattr(starter, "start_run", refuses)
    with pytest.raises(Unavailable):
        master.start(fleet.job)
    fleet.report(Progress(checkpoint=CheckpointReady(trainer="rgb", uri="file:///late"), fence=1))
    run_to_rest(master, fleet)
    master.drain()
    master.run()
    entries = [entry for part in History(adapters.stores.under(fleet.job.output)).read() for entry in part.entries]
    assert [entry.checkpoint.uri for entry in entries if entry.HasField("checkpoint")] == ["file:///late"]


def test_a_larger_budget_is_the_same_job(adapters: Adapters, fleet_of: FleetOf, tmp_path: Path) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    master.stop("small")
    assert master.start(make_job(tmp_path, limits={"budget": "1MiB"})).credits.budget_bytes == 2**20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": {}}, r"data\.catalog: is required"),
        ({"data": {"catalog": "file:///nowhere/c.parquet"}}, r"data\.catalog: .*essp catalog build"),
        ({"limits": {"budget": "3KB"}}, r"limits\.budget: .* holds 0 clips"),
        ({"streams": {"rgb": {}, "diff": {"feature": "no_such"}}}, "no extractor 'no_such'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_begins(
    adapters: Adapters, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    master = master_over(adapters)
    with pytest.raises(ConfigError, match=message):
        master.start(make_job(tmp_path, **change))
    assert master.jobs() == []
    assert adapters.bus.backlog(topics.SEEDS, "decoder") == 0
    assert not (tmp_path / "out" / "spec.json").exists()


def test_an_output_that_is_a_file_is_refused_before_anything_begins(adapters: Adapters, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    (tmp_path / "out").write_bytes(b"notes")
    master = master_over(adapters)
    with pytest.raises(ConfigError, match=r"^output: .*/out is a file; give a folder"):
        master.start(job)
    assert (tmp_path / "out").read_bytes() == b"notes"
