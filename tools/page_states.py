"""A master with as much to see as a busy one has: 200 jobs, in each of their states, and one with 1,000 events.

For pictures of the page (`page_pictures.py`) and for what it takes (`benchmarks/page.py`). The master and its API are
real; events and the course of two trainers come by messages, as from workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from essp_common import topics
from essp_common.bus.memory import MemoryBus
from essp_common.cache.memory import MemoryCache
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import (
    DIVERGED,
    TRAIN,
    TRAINER,
    Failed,
    LogLine,
    LogLines,
    Progress,
    StepReport,
    Trouble,
)
from essp_common.wiring import Adapters, Stores
from essp_master.api.app import create_app
from essp_master.api.server import ApiServer
from essp_master.config import MasterSettings
from essp_master.service import Master

JOBS, EVENTS = 200, 1000
BUSY = "busy"
"""The job with the events."""
POINTS = 200
"""That each trainer told of its course."""

_DAY_S = 1.7e9
_TRACEBACK = "Traceback (most recent call last):\n  ...\nValueError: a clip of 11 frames was wanted, and there are 9\n"


@contextmanager
def busy_master(folder: Path, jobs: int, events: int) -> Iterator[str]:
    """The URL of a master with so many jobs, of which `busy` has so many events.

    One of the others is paused, one stopped and one failed; one waits in the queue.
    """
    adapters = Adapters(MemoryBus(), MemoryCache(), Stores([f"file://{folder}"]))
    adapters.bus.ensure_topics({name: topics.partitions(name) for name in topics.FIXED})
    busy = _job(folder, BUSY)
    settings = MasterSettings(queue_budget=max(1, jobs - 4) * busy.limits.budget)
    master = Master(adapters, settings, "m")
    if jobs:
        _fill(master, adapters, folder, busy, jobs, events)
    server = ApiServer(create_app(master, settings), "127.0.0.1", 0, settings)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.drain()
        thread.join()
        adapters.close()


def _fill(master: Master, adapters: Adapters, folder: Path, busy: JobSpec, jobs: int, events: int) -> None:
    master.start(busy)
    for number in range(jobs - 1):
        master.start(busy.model_copy(update={"name": f"job-{number:03}", "output": f"file://{folder}/out-{number}"}))
    diverged = Failed(
        stage=TRAINER, kind=DIVERGED, reason="rgb: the loss is not finite after 640 clips; lower its rate"
    )
    messages = [Progress(job="job-002", worker="w", failed=diverged)]
    for message in (*messages, *_messages(busy, events - len(master.events(busy.name)))):
        adapters.bus.publish(topics.PROGRESS, b"", message.SerializeToString())
    while master.step(0):
        pass
    if jobs > 2:
        master.pause("job-000")
        master.stop("job-001")


def _messages(job: JobSpec, events: int) -> Iterator[Progress]:
    for number in range(POINTS):
        for trainer in job.trainers:
            step = StepReport(
                trainer=trainer, purpose=TRAIN, clips_done=32 * number, loss=4 / (1 + number), top1=number / POINTS
            )
            yield Progress(job=job.name, worker="w", step=step)
    lines = [
        LogLine(time=_DAY_S, level="INFO", event="decoder: started as decoder-7f9c", thread="MainThread"),
        LogLine(time=_DAY_S + 5, level="WARNING", event="3 of 164 frames are damaged", job=job.name, thread="lane-0"),
        LogLine(time=_DAY_S + 9, level="ERROR", event="unexpected error", job=job.name, error=_TRACEBACK),
    ]
    yield Progress(worker="decoder-7f9c", logs=LogLines(pool="decoder", lines=lines))
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
            "sampling": {"clips_per_epoch": 32 * POINTS, "clips_per_video": 1},
            "streams": {"rgb": {}, "flow": {"feature": "flow", "params": {"length": 10}}},
            "trainers": {name: {"stream": name, "batch_size": 32, "augment": {"crop": 56}} for name in ("rgb", "flow")},
            "epochs": 3,
        }
    )
