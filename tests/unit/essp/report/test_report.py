"""The report in its folder: the page and its pictures, kept when the job runs again; and of which jobs there is one."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from essp.report import folder
from essp.report.facts import Run, read_run
from essp.report.folder import write_report
from essp.report.page import PAGE, render
from essp.report.samples import choose, read_samples
from essp_common.artifacts import layout
from essp_common.artifacts.history import History
from essp_common.artifacts.timeline import TimelineFile
from essp_common.errors import NotFound
from essp_common.job.position import Position
from essp_common.job.timeline import NO_TIMELINE, StoredTimeline, UsageTotal
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import HistoryEntry, HistorySegment, JobSnapshot, PhasePlan, RunStart
from tests.harness.finished_job import CLASSES, FinishedJob, finished_job
from tests.harness.refused import refused
from tests.unit.essp.report.pages import STORES, Page, fused, page_of, pixels

pytestmark = pytest.mark.slow


@pytest.mark.lane("promises")
def test_the_folder_holds_the_page_and_its_pictures(job: FinishedJob, written: Page) -> None:
    keys = {info.key for info in job.store.list(layout.REPORT)}
    assert keys == {
        f"report/{name}" for name in ("report.html", "loss.png", "accuracy.png", "confusion.png", "samples.png")
    }
    first = {key: job.store.get(key) for key in keys}
    assert write_report(job.store, STORES).page == f"{job.spec.output}/report/report.html"
    assert {key: job.store.get(key) for key in keys} == first, "made again, it is the same"


@pytest.mark.lane("promises")
def test_the_page_stands_alone(job: FinishedJob, written: Page) -> None:
    assert written.open == []
    assert len(written.references) == 8, "four pictures, light and dark"
    assert all(reference.startswith("data:image/png;base64,") for reference in written.references)
    assert "http" not in re.sub(r"base64,[^\"]*", "", job.store.get("report/report.html").decode())


def test_without_a_test_split_the_report_is_of_validation(tmp_path: Path) -> None:
    job = fused(tmp_path, test=False)
    run = read_run(job.store, STORES)
    assert run.split == "validation"
    page = Page(render(run, {}, {}))
    assert "fused top-1, validation" in page.text
    assert {row[4] for row in page.rows if row[0] == "fused" and len(row) > 6} == {"validation"}


def test_what_workers_used_is_in_the_report(tmp_path: Path) -> None:
    job = fused(tmp_path)
    none = dict.fromkeys(UsageTotal.model_fields)
    decoder = UsageTotal.model_validate(
        none | {"pool": "decoder", "seconds": 60, "cpu_cores": 3.25, "busy": 0.5, "peak_memory_bytes": 2**31}
    )
    gpu = {"gpu_busy": 0.9, "gpu_joules": 7.2e6, "peak_gpu_memory_bytes": 2**34}
    rows = (decoder, decoder.model_copy(update={"pool": "trainer.j.<rgb>", **gpu}))
    timeline = NO_TIMELINE.model_copy(update={"totals": rows})
    assert "What workers used" not in Page(render(read_run(job.store, STORES), {}, {})).text
    TimelineFile(job.store).write(StoredTimeline(timeline=timeline))
    page = Page(render(read_run(job.store, STORES), {}, {}))
    assert page.row("decoder") == ["decoder", "1 min 00 s", "3.2", "50 %", "2.0 GiB", "–", "–", "–"]
    assert page.row("trainer.j.<rgb>")[-3:] == ["90 %", "16.0 GiB", "2.0 kWh"]


@pytest.mark.usefixtures("sketched")
def test_without_a_catalog_there_are_no_samples_but_a_report(tmp_path: Path) -> None:
    job = fused(tmp_path)
    write_report(job.store, STORES)
    assert {info.key for info in job.store.list("report/samples")} == set()
    assert page_of(job).open == []


def test_a_job_that_has_not_completed_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has not completed"):
        write_report(finished_job(tmp_path).store, STORES)


@pytest.mark.parametrize(
    ("instead", "has"),
    [
        ({"predictor": {"model": "file:///model"}}, "predictions.parquet"),
        ({"extract": {}}, "features"),
        ({"consumers": {"mine": {"stream": "rgb"}}}, "essp audit"),
    ],
)
def test_a_job_that_trains_nothing_has_no_report_but_what_it_is_for(
    tmp_path: Path, instead: dict[str, Any], has: str
) -> None:
    job = finished_job(tmp_path)
    document = job.spec.model_dump(mode="json", exclude_unset=True) | {"trainers": {}, "epochs": 1} | instead
    job.store.put(layout.SPEC, json.dumps(document).encode())
    with refused("OUTPUT", "unsupported") as told:
        write_report(job.store, STORES)
    assert has in str(told.value)
    assert "completed," not in str(told.value)


def test_a_folder_without_a_job_is_told_from_a_job_that_is_not_done(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no file .*: give the output of a job"):
        write_report(DirectoryStore(str(tmp_path / "nowhere")), STORES)


def test_names_that_no_font_has_are_numbers_in_pictures_and_explained_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A private letter, which means nothing and is in no font."""
    strange = "\U000f1234"
    of_strange = replace(run, model=run.model.model_copy(update={"classes": (strange, *CLASSES[1:])}))
    samples = read_samples(of_strange, STORES, choose(run))
    assert [sample.label for sample in samples] == ["#0", *CLASSES[1:]]
    monkeypatch.setattr(folder, "read_run", lambda *_: of_strange)
    monkeypatch.setattr(folder, "read_samples", lambda *_: [])
    output = DirectoryStore(str(tmp_path))
    for name, explained in (("samples", 1), ("confusion", 1), ("loss", 0)):
        monkeypatch.setattr(folder, "draw", lambda *_, name=name: {name: (b"", b"")})
        write_report(output, STORES)
        page = Page(output.get(PAGE).decode())
        assert page.text.count("Classes by number") == explained
        assert (["#0", strange] in page.rows) == bool(explained)


@pytest.mark.lane("promises")
def test_pictures_have_the_colours_of_their_theme(job: FinishedJob, written: Page) -> None:
    shown = [base64.b64decode(reference.partition(",")[2]) for reference in written.references]
    for dark, light in zip(shown[0::2], shown[1::2], strict=True):
        assert pixels(light)[0, 0] == pytest.approx([1, 1, 1])
        assert pixels(dark)[0, 0].max() < 0.2
    assert job.store.get("report/samples.png") in shown[1::2]


@pytest.mark.lane("promises")
@pytest.mark.usefixtures("sketched")
def test_a_report_is_kept_when_the_job_has_run_again(tmp_path: Path) -> None:
    job = fused(tmp_path)
    write_report(job.store, STORES)
    first = job.store.get("report/report.html")
    segment = HistorySegment(first=1, last=1)
    snapshot = JobSnapshot(spec_json=job.spec.model_dump_json(), phases=[PhasePlan(clips=10)])
    start = {name: Position(0, 0).message() for name in job.spec.readers()}
    for time_ms in (1000, 2000):
        segment.entries.append(HistoryEntry(time_ms=time_ms, started=RunStart(snapshot=snapshot, start=start)))
    job.store.put("report/report.html", first.replace(b'"essp-runs" content="0"', b'"essp-runs" content="1"'))
    History(job.store).append(segment)
    for _ in range(2):
        write_report(job.store, STORES)
        assert "run-1.html" in page_of(job).references
    assert Page(job.store.get("report/run-1.html").decode()).text == Page(first.decode()).text


def test_a_job_of_an_earlier_version_has_a_report(tmp_path: Path) -> None:
    job = fused(tmp_path)
    text = job.store.get(layout.SPEC).decode()
    job.store.put(layout.SPEC, text.replace('"name":', '"a_field_that_is_no_more": 1, "name":', 1).encode())
    assert read_run(job.store, STORES).spec == job.spec
