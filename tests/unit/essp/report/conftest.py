"""One finished job, which several tests of its report only read."""

from __future__ import annotations

import pytest

from essp.catalog.build import file_row
from essp.report.facts import Run, read_run
from essp.report.folder import write_report
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_engine.decoding.probing import Outcome
from essp_engine.video.probe import probe
from essp_engine.video.synthetic import drifting, texture, write_video
from tests.harness.finished_job import CLASSES, FinishedJob
from tests.unit.essp.report.pages import STORES, Page, fused, page_of


@pytest.fixture(scope="package")
def job(tmp_path_factory: pytest.TempPathFactory) -> FinishedJob:
    """A finished job whose catalog has a real file for the first test video of each class."""
    root = tmp_path_factory.mktemp("report")
    catalog = f"file://{root}/catalog.parquet"
    job = fused(root / "run", catalog)
    rows = []
    for number, name in enumerate(CLASSES):
        path = root / f"{name}.mp4"
        write_video(path, drifting(texture(96, 72, number), 20, (3, 0)))
        facts = probe(str(path))
        file = VideoRow(f"test/{name}/0.mp4", f"file://{path}", name, "test", path.stat().st_size, "")
        rows.append(file_row(file, Outcome(file.uri, {f: getattr(facts, f) for f in facts.__slots__})))
    write_catalog(*STORES.resolve(catalog), Catalog(tuple(rows)))
    return job


@pytest.fixture(scope="package")
def run(job: FinishedJob) -> Run:
    return read_run(job.store, STORES)


@pytest.fixture(scope="package")
def written(job: FinishedJob) -> Page:
    """The page of the report that `job` has in its store."""
    write_report(job.store, STORES)
    return page_of(job)
