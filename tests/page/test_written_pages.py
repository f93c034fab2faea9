"""The pages that commands write, in a Chromium without a window: with any names in them they fit a phone and A4."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from essp.catalog.check.findings import KINDS, Finding
from essp.catalog.check.page import render as render_check
from essp.catalog.check.run import Report
from essp.divisions.figures import FUSED, Outcome, Outcomes
from essp.divisions.page import render as render_divisions
from essp.report.facts import read_run
from essp.report.page import render as render_report
from essp_aggregator.assembly import assemble, final_checkpoints
from essp_common.cache.memory import MemoryCache
from essp_common.wiring import Stores
from tests.harness.finished_job import CLASSES, JOB, finished_job
from tools.page_pictures import PROGRAMS, Browser, browser, chromium

LONG = "<b>" + "w" * 150
PHONE, A4 = 360, 718
"""Pixels; of A4 what Chromium prints on."""

pytestmark = pytest.mark.skipif(chromium() is None, reason=f"none of {', '.join(PROGRAMS)} is installed")


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    program = chromium()
    assert program is not None
    with browser(program) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    job = finished_job(folder / "run")
    finals = final_checkpoints(job.store, job.spec)
    assert finals is not None
    stores = Stores(("file:///",))
    assemble(job.store, MemoryCache(), JOB, job.spec, finals, stores)
    run = read_run(job.store, stores)
    classes = tuple(f"{LONG}-{name}" for name in CLASSES)
    alone = replace(run, fused=run.scores["rgb"], model=run.model.model_copy(update={"classes": classes}))
    findings = [Finding(kind, LONG, LONG, (LONG, f"{LONG}2")) for kind in KINDS]
    each = (Outcome("a", LONG, "file:///a", 4, {FUSED: {"top1": 0.5, "mean_class": 0.5}}),)
    made = {
        "report": render_report(alone, {}, {"failed": LONG}),
        "check": render_check(Report(f"file:///{LONG}/{LONG}", 1, 2, 3, 4, True, findings, {}, 1.0)),
        "divisions": render_divisions(Outcomes(LONG, "test", each, True)),
    }
    for name, html in made.items():
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in made}


@pytest.mark.parametrize("name", ["report", "check", "divisions"])
def test_a_page_fits_a_phone_whatever_names_are_in_it(pages: dict[str, Path], name: str, tab: Browser) -> None:
    _show(tab, pages[name], PHONE, "screen")
    assert LONG in tab.evaluate("document.body.innerText"), "names are text"
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE
    assert tab.troubles == []


def test_a_report_can_be_printed(pages: dict[str, Path], tab: Browser) -> None:
    _show(tab, pages["report"], A4, "print")
    wider = "[...document.querySelectorAll('table')].filter(t => t.getBoundingClientRect().right > innerWidth).length"
    assert tab.evaluate("document.querySelectorAll('table').length") > 3
    assert tab.evaluate(wider) == 0


def _show(tab: Browser, page: Path, width: int, media: str) -> None:
    tab.look(width, 800, "light")
    tab.call("Page.navigate", url=page.as_uri())
    tab.call("Emulation.setEmulatedMedia", media=media)
    tab.wait("document.readyState === 'complete' && document.querySelector('main')")
