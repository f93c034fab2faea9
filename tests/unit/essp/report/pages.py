"""A fused job, and what stands on the page of its report."""

from __future__ import annotations

import io
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
from matplotlib.image import imread

from essp_aggregator.assembly import assemble, final_checkpoints
from essp_common.cache.memory import MemoryCache
from essp_common.wiring import Stores
from tests.harness.finished_job import JOB, FinishedJob, finished_job

STORES = Stores(("file:///",))


def fused(root: Path, catalog: str = "file:///absent.parquet", test: bool = True) -> FinishedJob:
    job = finished_job(root, catalog=catalog, test=test)
    finals = final_checkpoints(job.store, job.spec)
    assert finals is not None
    assemble(job.store, MemoryCache(), JOB, job.spec, finals, STORES)
    return job


class Page(HTMLParser):
    """The text, the tables and the references of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.references: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attrs if name in ("src", "srcset", "href")]
        if tag not in ("meta", "img", "source", "br"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "every tag is closed, in order"

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data

    def row(self, first: str) -> list[str]:
        return next(row for row in self.rows if row[0] == first)


def page_of(job: FinishedJob) -> Page:
    return Page(job.store.get("report/report.html").decode())


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(imread(io.BytesIO(png)))[..., :3]
