"""The master's page in a browser, with as much on it as a busy master has: 200 jobs, and a job with 1,000 events.

A Chromium without a window shows a real master (`tools/page_states.py`) at 1280 x 900. Painted counts from the address
to the first frame with what was asked for, no file of the page being in the browser's cache. An update is what the page
does each two seconds with what it was told: to draw all of it anew, and to lay it out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.figures import Aim, Figure, Scale
from benchmarks.measure import spread
from tools.page_pictures import Browser, browser, chromium
from tools.page_states import BUSY, EVENTS, JOBS, busy_master

_UPDATES = 20
_PAINTED = """
addEventListener("DOMContentLoaded", () => {
  const look = () => (document.querySelector("SHOWN") ? requestAnimationFrame(() => { window.painted = performance.now(); }) : 0);
  new MutationObserver(() => window.painted || look()).observe(document.body, { childList: true, subtree: true });
});
"""  # noqa: E501
_UPDATE = """(() => { const begun = performance.now();
    document.dispatchEvent(new Event("redraw")); document.body.offsetHeight;
    return performance.now() - begun; })()"""


def page(scale: Scale) -> Iterator[Figure]:
    """How soon the page is there, and what an update takes. No figures where no Chromium is installed."""
    program = chromium()
    if program is None:
        return
    jobs, events = (5, 20) if scale.quick else (JOBS, EVENTS)
    with tempfile.TemporaryDirectory() as folder, busy_master(Path(folder), jobs, events) as url:
        views = {"jobs": ("#/", "table"), "job": (f"#/jobs/{BUSY}", ".events li")}
        rounds = [
            {name: _looked(program, f"{url}/{view}", shown) for name, (view, shown) in views.items()}
            for _ in range(scale.rounds)
        ]
    told = {"jobs": jobs, "events": events}
    for name in views:
        painted = spread([each[name][0] for each in rounds])
        yield Figure(f"page_paint.{name}", painted.median, "ms", Aim(most=1000), painted.low, painted.high, told)
    for name in views:
        update = spread([each[name][1] for each in rounds])
        yield Figure(f"page_update.{name}", update.median, "ms", Aim(most=50), update.low, update.high, told)


def _looked(program: str, url: str, shown: str) -> tuple[float, float]:
    """Milliseconds until `shown`, a part of the page, is painted, and of an update."""
    with browser(program) as tab:
        tab.look(1280, 900, "light")
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=_PAINTED.replace("SHOWN", shown))
        tab.open(url)
        tab.wait("window.painted")
        painted = tab.evaluate("window.painted")
        _settle(tab)
        updates = [tab.evaluate(_UPDATE) for _ in range(_UPDATES)]
        if tab.troubles:
            raise RuntimeError("; ".join(tab.troubles))
        return float(painted), median(updates)


def _settle(tab: Browser) -> None:
    """Wait until the page has looked again, so that what is drawn once does not count."""
    tab.wait("document.querySelector('#state').textContent === 'live'")
    tab.evaluate("new Promise(done => setTimeout(done, 500))")
