"""The page of jobs that have run, without a master: `essp page`, `essp run --keep`."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from essp.embedded.finished import statuses_in
from essp.embedded.page import open_page, past_jobs
from essp_common.artifacts import layout
from essp_common.artifacts.manifest import PhaseRecord
from essp_common.errors import NotFound
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.objects.directory import DirectoryStore
from essp_common.runtime.config import Settings
from essp_common.wiring import Adapters, Stores
from tests.harness.command_line import essp
from tests.harness.fleet import Fleet, run_to_rest, save_checkpoint
from tests.harness.masters import master_named
from tests.harness.refused import refused

STORES = Stores(("file:///",))


@pytest.fixture
def stopped(adapters: Adapters, fleet: Fleet, tmp_path: Path) -> str:
    """A folder with the output of a job that was stopped, and of one that was interrupted before it had a history."""
    master = master_named("m1", adapters)
    master.start(fleet.job)
    master.stop("small")
    run_to_rest(master, fleet)
    for name in ("half", "small"):
        spec = JobSpec.model_validate(
            fleet.job.model_dump() | {"name": name, "output": f"file://{tmp_path}/more/{name}"}
        )
        DirectoryStore(str(tmp_path / "more" / name)).put(layout.SPEC, spec.model_dump_json().encode())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "spec.json").write_text('{"mine": 1}')
    return f"file://{tmp_path}"


def test_all_jobs_in_a_folder_are_found_under_names_of_their_own(stopped: str) -> None:
    found = {status.name: status for status in statuses_in(stopped, STORES)}
    assert found.keys() == {"small", "half", "small (2)"}
    assert found["half"].state is JobState.STOPPED
    assert found["half"].ended is None or "interrupted" in found["half"].reason
    assert {status.output for status in found.values()} == {
        f"{stopped}/{p}" for p in ("out", "more/half", "more/small")
    }
    assert [status.name for status in statuses_in(f"{stopped}/out", STORES)] == ["small"]
    with refused("", "taken"):
        statuses_in(f"{stopped}/other", STORES)


def test_a_job_that_was_interrupted_shows_how_far_it_came(adapters: Adapters, fleet: Fleet) -> None:
    master = master_named("m1", adapters)
    master.start(fleet.job)
    run_to_rest(master, fleet)
    live = master.status("small")
    assert 0 < live.progress.done == live.progress.total, "its trainers have not left yet"
    master.drain()
    master.run()
    store = DirectoryStore(fleet.job.output.removeprefix("file://"))
    record = PhaseRecord(purpose="validation", epoch=0, metrics={"top1": 0.5})
    store.put(layout.history("rgb"), json.dumps([record.model_dump()]).encode())
    save_checkpoint(store, "rgb", Position(2, 4))
    (found,) = statuses_in(fleet.job.output, STORES)
    assert (found.state, found.ended, found.progress.done) == (JobState.STOPPED, None, live.progress.done)
    assert [(phase.purpose, phase.epoch, phase.clips) for phase in found.phases] == [
        (phase.purpose, phase.epoch, phase.clips) for phase in live.phases
    ]
    rgb, diff = found.trainers
    assert [report.metrics for report in rgb.reports] == [{"top1": 0.5}]
    assert rgb.checkpoint
    assert rgb.checkpoint.startswith(fleet.job.output)
    assert (diff.name, diff.reports, diff.checkpoint) == ("diff", (), None)


def test_the_page_shows_them_and_changes_nothing(stopped: str) -> None:
    with (
        past_jobs(Settings()) as master,
        open_page("essp page", "127.0.0.1", 0, reads_only=True) as page,
        page.serving(master),
    ):
        master.show(statuses_in(stopped, STORES))
        address, _, token = page.address.partition("#token=")
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}) as client:
            assert {job["name"] for job in client.get("/v1/jobs").json()["jobs"]} == {"small", "half", "small (2)"}
            assert client.get("/v1/jobs/small (2)").json()["output"] == f"{stopped}/out"
            assert client.get("/v1/jobs/small/curves").status_code == 200
            json = {"Content-Type": "application/json"}
            assert client.post("/v1/jobs/small:stop", headers=json).status_code == 403
            assert client.delete("/v1/jobs/small", headers=json).status_code == 403
            assert client.get("/v1/jobs", headers={"Authorization": ""}).status_code == 401
            master.show(statuses_in(f"{stopped}/more", STORES))
            assert {job["name"] for job in client.get("/v1/jobs").json()["jobs"]} == {"small", "half"}


def test_a_folder_without_jobs_and_a_page_that_nothing_serves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        essp("page", str(tmp_path))
    (tmp_path / "job.yaml").write_text("{name: a, output: out, trainers: {rgb: {stream: rgb}}}")
    with refused("--serve", "missing"):
        essp("run", str(tmp_path / "job.yaml"), "--keep")
