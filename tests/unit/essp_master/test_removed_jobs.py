"""Jobs that are removed: what goes, what stays, and which job nobody may remove."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from essp_common import topics
from essp_common.artifacts import layout
from essp_common.errors import Conflict, NotFound
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec
from essp_common.messages.control import ControlFeed
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import Control, Heartbeat, JobSnapshot, Progress
from essp_common.wiring import Adapters
from essp_engine.preflight.output import Asked
from essp_master.service import Master
from tests.harness.fleet import Fleet, run_to_rest, save_checkpoint
from tests.harness.masters import die, master_named, written
from tests.harness.waiting import until


def stopped(adapters: Adapters, fleet: Fleet, tmp_path: Path) -> Master:
    """A master whose job was stopped, with a checkpoint and a file of the user in its output."""
    master = master_named("m1", adapters)
    master.start(fleet.job)
    save_checkpoint(DirectoryStore(str(tmp_path / "out")), "rgb", Position(0, 4))
    master.stop("small")
    run_to_rest(master, fleet)
    written(master, fleet)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "model").mkdir(exist_ok=True)
    (tmp_path / "out" / "model" / "net.py").write_text("mine")
    return master


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_what_the_job_wrote_goes_and_the_rest_stays(adapters: Adapters, fleet: Fleet, tmp_path: Path) -> None:
    master = stopped(adapters, fleet, tmp_path)
    before = files(tmp_path / "out")
    told = master.remove("small", dry_run=True)
    assert files(tmp_path / "out") == before, "a dry run removes nothing"
    assert told.objects > 0
    assert told.kept == ("model/net.py",)
    assert dataclasses.replace(master.remove("small"), bytes=0) == dataclasses.replace(told, bytes=0)
    left = files(tmp_path / "out")
    assert {"notes.txt", "model/net.py"} <= left
    assert {name.partition("/")[0] for name in left - {"notes.txt", "model/net.py"}} <= {"fences", "locks"}
    assert master.jobs() == []
    with pytest.raises(NotFound):
        master.remove("small")


def test_the_next_master_does_not_know_it_and_the_name_is_free(
    adapters: Adapters, fleet: Fleet, tmp_path: Path
) -> None:
    master = stopped(adapters, fleet, tmp_path)
    master.remove("small")
    die(master)
    following = master_named("m2", adapters)
    assert following.jobs() == []
    other = JobSpec.model_validate(fleet.job.model_dump() | {"output": f"file://{tmp_path}/elsewhere"})
    following.start(other)
    feed = ControlFeed(adapters.bus)
    try:
        until(lambda: feed.state("small") == Control.START)
    finally:
        feed.close()
    die(following)
    assert [job.name for job in master_named("m3", adapters).jobs()] == ["small"]


def test_an_output_that_is_gone_or_of_another_job_is_left_alone(
    adapters: Adapters, fleet: Fleet, tmp_path: Path
) -> None:
    master = stopped(adapters, fleet, tmp_path)
    spec = json.loads((tmp_path / "out" / "spec.json").read_text()) | {"name": "other"}
    (tmp_path / "out" / "spec.json").write_text(json.dumps(spec))
    before = files(tmp_path / "out")
    assert master.remove("small").objects == 0
    assert files(tmp_path / "out") == before
    assert master.jobs() == []


def test_a_job_that_runs_or_saves_is_not_removed(adapters: Adapters, fleet: Fleet, tmp_path: Path) -> None:
    master = master_named("m1", adapters)
    master.start(fleet.job)
    for dry_run in (True, False):
        with pytest.raises(Conflict, match="stop it first"):
            master.remove("small", dry_run)
    fleet.report(Progress(worker="t1", heartbeat=Heartbeat(pool="trainer.small.rgb")))
    master.stop("small")
    run_to_rest(master, fleet)
    with pytest.raises(Conflict, match="saving"):
        master.remove("small")
    assert (tmp_path / "out" / layout.SPEC).exists()


def test_a_job_whose_trainers_still_save_is_not_removed_by_the_next_master(
    adapters: Adapters, fleet: Fleet, tmp_path: Path
) -> None:
    die(stopped(adapters, fleet, tmp_path))
    following = master_named("m2", adapters)
    fleet.report(Progress(worker="t1", heartbeat=Heartbeat(pool="trainer.small.rgb")))
    following.step(0)
    with pytest.raises(Conflict, match="saving"):
        following.remove("small")
    assert (tmp_path / "out" / layout.SPEC).exists()


def test_a_job_that_is_started_again_during_its_removal_is_not_forgotten(
    adapters: Adapters, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = stopped(adapters, fleet, tmp_path)
    shutil.rmtree(tmp_path / "out")
    again = JobSpec.model_validate(fleet.job.model_dump() | {"output": f"file://{tmp_path}/elsewhere"})
    monkeypatch.setattr(master._removal, "_check_unused", lambda *_: master.start(again))
    with pytest.raises(Conflict, match="started again"):
        master.remove("small")
    assert [(job.name, job.state) for job in master.jobs()] == [("small", "running")]


def test_a_job_of_another_release_leaves_the_list(adapters: Adapters) -> None:
    """What it has left is not known."""
    snapshot = JobSnapshot(spec_json='{"name": "old"}')
    command = Control(job="old", fence=3, since=3, command=Control.STOP, snapshot=snapshot)
    adapters.bus.publish(topics.CONTROL, b"old", command.SerializeToString())
    master = master_named("m1", adapters)
    for dry_run, left in ((True, ["old"]), (False, [])):
        assert master.remove("old", dry_run).output == ""
        assert [job.name for job in master.jobs()] == left
    die(master)
    assert master_named("m2", adapters).jobs() == []


def second(fleet: Fleet, tmp_path: Path, **data: str) -> JobSpec:
    document = fleet.job.model_dump() | {"name": "second", "output": f"file://{tmp_path}/second"}
    document["data"] |= data
    return JobSpec.model_validate(document)


def test_a_job_stays_while_a_present_one_reads_from_its_output(
    adapters: Adapters, fleet: Fleet, tmp_path: Path
) -> None:
    master = stopped(adapters, fleet, tmp_path)
    shutil.copy(fleet.job.data.catalog.removeprefix("file://"), tmp_path / "out" / "mine.parquet")
    master.start(second(fleet, tmp_path, catalog=f"file://{tmp_path}/out/mine.parquet"))
    for dry_run in (True, False):
        with pytest.raises(Conflict, match=r"job second stands on job small: its data.catalog"):
            master.remove("small", dry_run)
    with pytest.raises(Conflict, match="a job of another team"):
        master.remove("small", asked=Asked("blue", admin=False))
    assert (tmp_path / "out" / layout.SPEC).exists()


def test_a_job_stays_while_a_past_one_took_its_weights(adapters: Adapters, fleet: Fleet, tmp_path: Path) -> None:
    master = stopped(adapters, fleet, tmp_path)
    spec = second(fleet, tmp_path)
    master.start(spec)
    master.stop("second")
    run_to_rest(master, fleet)
    trained = spec.model_dump()
    trained["trainers"]["rgb"]["weights"] = f"file://{tmp_path}/out/model/rgb.safetensors"
    (tmp_path / "second" / "spec.json").write_text(JobSpec.model_validate(trained).model_dump_json())
    die(master)
    following = master_named("m2", adapters)
    with pytest.raises(Conflict, match=r"job second stands on job small: its trainers.rgb.weights"):
        following.remove("small")
    following.remove("second")
    following.remove("small")
    assert following.jobs() == []


def test_a_job_goes_once_the_output_of_the_past_one_that_took_from_it_is_gone(
    adapters: Adapters, fleet: Fleet, tmp_path: Path
) -> None:
    master = stopped(adapters, fleet, tmp_path)
    shutil.copy(fleet.job.data.catalog.removeprefix("file://"), tmp_path / "out" / "mine.parquet")
    master.start(second(fleet, tmp_path, catalog=f"file://{tmp_path}/out/mine.parquet"))
    master.stop("second")
    ended(master)
    following = master_named("m2", adapters)
    for _ in range(2):
        with pytest.raises(Conflict, match="job second stands on job small"):
            following.remove("small")
    shutil.rmtree(tmp_path / "second")
    assert following.remove("small").objects > 0


def test_a_job_stays_once_a_past_one_was_run_again_elsewhere_and_took_from_it(
    adapters: Adapters, fleet: Fleet, tmp_path: Path
) -> None:
    master = stopped(adapters, fleet, tmp_path)
    shutil.copy(fleet.job.data.catalog.removeprefix("file://"), tmp_path / "out" / "mine.parquet")
    master.start(second(fleet, tmp_path))
    master.stop("second")
    ended(master)
    following = master_named("m2", adapters)
    assert following.remove("small", dry_run=True).objects > 0
    spec = tmp_path / "second" / layout.SPEC
    spec.write_text(second(fleet, tmp_path, catalog=f"file://{tmp_path}/out/mine.parquet").model_dump_json())
    with pytest.raises(Conflict, match="job second stands on job small"):
        following.remove("small")


def test_to_remove_many_jobs_what_each_other_takes_is_read_once(
    adapters: Adapters, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = master_named("m1", adapters)
    names = [f"job-{number}" for number in range(6)]
    for name in names:
        first.start(fleet.job.model_copy(update={"name": name, "output": f"file://{tmp_path}/{name}"}))
        first.stop(name)
    ended(first)
    master = master_named("m2", adapters)
    read: Counter[str] = Counter()
    get = DirectoryStore.get

    def counted(store: DirectoryStore, key: str) -> bytes:
        read[store.uri(key)] += key == layout.SPEC
        return get(store, key)

    monkeypatch.setattr(DirectoryStore, "get", counted)
    for name in names[:4]:
        master.remove(name, dry_run=True)
        master.remove(name)
    assert [read[f"file://{tmp_path}/{name}/{layout.SPEC}"] for name in names[4:]] == [1, 1]
    assert {job.name for job in master.jobs()} == set(names[4:])


def ended(master: Master) -> None:
    """The master writes all that it knows, and leaves."""
    master.drain()
    master.run()
