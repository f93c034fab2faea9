"""The master's page in a browser, with as much on it as a busy master has: 200 jobs, and a job with 1,000 events.

A real master with its API; the events and the course of two trainers came by messages, as from workers. A Chromium
without a window shows it at 1280 x 900. Painted counts from the address to the first frame with what was asked for, no
file of the page being in the browser's cache. An update is what the page does each two seconds with what it was told:
to draw all of it anew, and to lay it out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Thread

from benchmarks.figures import Aim, Figure, Scale
from benchmarks.measure import spread
from essp_common import topics
from essp_common.bus.memory import MemoryBus
from essp_common.cache.memory import MemoryCache
from essp_common.catalog.table import Catalog, VideoRow, write_catalog
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import TRAIN, Progress, StepReport, Trouble
from essp_common.wiring import Adapters, Stores
from essp_master.api.app import create_app
from essp_master.api.server import ApiServer
from essp_master.config import MasterSettings
from essp_master.service import Master
from tools.page_pictures import Browser, browser, chromium

_JOBS = 200
_EVENTS = 1000
_POINTS = 200
"""That each trainer told of its course."""
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
    jobs, events = (5, 20) if scale.quick else (_JOBS, _EVENTS)
    with tempfile.TemporaryDirectory() as folder, _served(Path(folder), jobs, events) as url:
        views = {"jobs": ("#/", "table"), "job": ("#/jobs/busy", ".events li")}
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


@contextmanager
def _served(folder: Path, jobs: int, events: int) -> Iterator[str]:
    """The URL of a master with so many jobs, of which `busy` has so many events."""
    adapters = Adapters(MemoryBus(), MemoryCache(), Stores([f"file://{folder}"]))
    adapters.bus.ensure_topics({name: topics.partitions(name) for name in topics.FIXED})
    master = Master(adapters, MasterSettings(queue_budget=2**50), "m")
    busy = _job(folder, "busy")
    for number in range(jobs - 1):
        master.start(busy.model_copy(update={"name": f"job-{number:03}", "output": f"file://{folder}/out-{number}"}))
    master.start(busy)
    for message in _messages(busy, events - master.status(busy.name).last_event):
        adapters.bus.publish(topics.PROGRESS, b"", message.SerializeToString())
    while master.step(0):
        pass
    settings = MasterSettings()
    server = ApiServer(create_app(master, settings), "127.0.0.1", 0, settings)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.drain()
        thread.join()
        adapters.close()


def _messages(job: JobSpec, events: int) -> Iterator[Progress]:
    for number in range(_POINTS):
        for trainer in job.trainers:
            step = StepReport(
                trainer=trainer, purpose=TRAIN, clips_done=32 * number, loss=4 / (1 + number), top1=number / _POINTS
            )
            yield Progress(job=job.name, worker="w", step=step)
    for number in range(events):
        trouble = Trouble(trainer="rgb", reason=f"checkpoint {number} was not saved: s3://b answered 503, trying again")
        yield Progress(job=job.name, worker="w", trouble=trouble)


def _job(folder: Path, name: str) -> JobSpec:
    """A job on 100 videos, with trainers of two streams."""
    rows = [
        VideoRow(
            f"{n}.mp4", f"s3://videos/{n}.mp4", f"class{n % 10}", "train", 10**6, f"{n:032x}",
            width=320, height=240, frame_count=300, last_frame=299, seekable=True,
        )
        for n in range(100)
    ]  # fmt: skip
    store = DirectoryStore(str(folder))
    write_catalog(store, "catalog.parquet", Catalog(tuple(rows)))
    return JobSpec.model_validate(
        {
            "name": name,
            "output": f"file://{folder}/{name}",
            "data": {"catalog": store.uri("catalog.parquet")},
            "clip": {"frames": 11, "resize": {"height": 64, "width": 64}},
            "sampling": {"clips_per_epoch": 32 * _POINTS, "clips_per_video": 1},
            "streams": {"rgb": {}, "flow": {"feature": "flow", "params": {"length": 10}}},
            "trainers": {name: {"stream": name, "batch_size": 32, "augment": {"crop": 56}} for name in ("rgb", "flow")},
            "epochs": 3,
        }
    )
