"""A master with as much to see as a busy one has: 200 jobs, in each of their states, one with 1,000 events, and one
with an hour behind it.

For pictures of the page (`page_pictures.py`) and for what it takes (`benchmarks/page.py`). The master and its API are
real; events and the course of two trainers come by messages, as from workers. An hour of a job's course (`play_hour`)
comes by a clock of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import exp, sin
from pathlib import Path
from threading import Thread

from essp_common import topics
from essp_common.bus.memory import MemoryBus
from essp_common.cache.memory import MemoryCache
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.job.spec import JobSpec
from essp_common.job.usage import PoolUsage
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import (
    DIVERGED,
    TRAIN,
    TRAINER,
    VALIDATION,
    Failed,
    Gpu,
    Heartbeat,
    LogLine,
    LogLines,
    Machine,
    PhaseReport,
    Progress,
    StepReport,
    Trouble,
)
from essp_common.wiring import Adapters, Stores
from essp_master.api.app import create_app
from essp_master.api.server import ApiServer
from essp_master.config import MasterSettings
from essp_master.job.timeline import SAMPLE_S, Key, Timeline
from essp_master.service import Master

JOBS, EVENTS = 200, 1000
BUSY = "busy"
"""The job with the events."""
HOUR = "hour"
"""The job that has run for an hour."""
POINTS = 200
"""That each trainer told of its course."""

_DAY_S = 1.7e9
_TRACEBACK = "Traceback (most recent call last):\n  ...\nValueError: a clip of 11 frames was wanted, and there are 9\n"


@contextmanager
def busy_master(folder: Path, jobs: int, events: int, hour: bool = False) -> Iterator[str]:
    """The URL of a master with so many jobs, of which `busy` has so many events.

    One of the others is paused, one stopped and one failed; one waits in the queue. `hour`: there is also the job that
    has run for an hour.
    """
    adapters = Adapters(MemoryBus(), MemoryCache(), Stores([f"file://{folder}"]))
    adapters.bus.ensure_topics({name: topics.partitions(name) for name in topics.FIXED})
    busy = _job(folder, BUSY)
    settings = MasterSettings(queue_budget=max(1, jobs - 4 + hour) * busy.limits.budget)
    master = Master(adapters, settings, "m")
    if jobs:
        _fill(master, adapters, folder, busy, jobs, events)
    if hour:
        long = busy.model_copy(update={"name": HOUR, "output": f"file://{folder}/{HOUR}"})
        master.start(long)
        play_hour(master, adapters, long, time.time() - HOUR_S)
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


HOUR_S = 3600.0
_EPOCHS_AN_HOUR = 2.5
_GAP_S = (1500.0, 1680.0)
"""Begin and end of a time in which no master ran."""
_SLOW_S = 2400.0
"""From then on, decoders are short of cores, and trainers wait."""


def play_hour(master: Master, adapters: Adapters, job: JobSpec, begin_s: float) -> None:
    """Have a job that was started look as after an hour of work on a GPU, which began at `begin_s` (Unix time)."""
    clips = job.sampling.clips_per_epoch or 32 * POINTS
    messages = [message for at_s in range(0, int(HOUR_S), 12) for message in _moment(job, clips, float(at_s))]
    for message in [*messages, *_beats(job)]:
        adapters.bus.publish(topics.PROGRESS, b"", message.SerializeToString())
    while master.step(0):
        pass
    timeline, at_s = Timeline(), 0.0
    while at_s < HOUR_S:
        if not _GAP_S[0] < at_s < _GAP_S[1]:
            timeline.add(_figures(job, at_s), _used(job, at_s), at_s, begin_s + at_s)
        at_s += SAMPLE_S
    master._jobs[job.name].timeline = timeline


def _moment(job: JobSpec, clips: int, at_s: float) -> Iterator[Progress]:
    """What trainers report at this time of the hour."""
    place = at_s / HOUR_S * _EPOCHS_AN_HOUR
    epoch, done = int(place), place % 1
    for k, trainer in enumerate(job.trainers):
        loss = 2.3 * exp(-place * (1 - 0.3 * k)) + 0.3 + 0.05 * sin(at_s)
        lr, top1, wait = _rate(place), 1 - loss / 3, _wait(k, at_s)
        step = StepReport(
            trainer=trainer, purpose=TRAIN, epoch=epoch, clips_done=int(done * clips), loss=loss, top1=top1, lr=lr,
            clips_per_s=14 * (1 - wait), data_wait_ratio=wait, queue=8,
        )  # fmt: skip
        yield Progress(job=job.name, worker=f"w{k}", step=step)
        if epoch and done < 12 / HOUR_S * _EPOCHS_AN_HOUR:
            for purpose in (TRAIN, VALIDATION):
                metrics = {"loss": loss + 0.2, "top1": top1 - 0.1, "clips": 64.0, "seconds": 9.0}
                more = {"mAP": top1 - 0.05, "mean_class": top1, "video_top1": top1}
                metrics |= more if purpose == VALIDATION else {"lr": lr}
                report = PhaseReport(trainer=trainer, purpose=purpose, epoch=epoch - 1, metrics=metrics)
                yield Progress(job=job.name, worker=f"w{k}", phase_report=report)


def _rate(epoch: float) -> float:
    return 0.01 * (0.1 if epoch > 1.5 else min(1.0, 0.1 + 3 * epoch))


def _wait(trainer: int, at_s: float) -> float:
    return (0.55 if at_s > _SLOW_S else 0.04) + 0.02 * sin(at_s / 40 + trainer)


def _figures(job: JobSpec, at_s: float) -> dict[Key, float | None]:
    slow = at_s > _SLOW_S
    rate = (14 if slow else 27) + 2 * sin(at_s / 60)
    found: dict[Key, float | None] = {
        ("clips_per_s", ""): rate,
        ("outstanding_bytes", ""): 2**28 * (0.3 if slow else 0.9 + 0.02 * sin(at_s / 30)),
        ("queue", "decoder"): 60 + 20 * sin(at_s / 50) if slow else 4.0,
        ("queue", "extractor.flow"): 3.0,
        ("pool_clips_per_s", "decoder"): rate,
        ("pool_clips_per_s", "extractor.flow"): 0.98 * rate,
    }
    for k, trainer in enumerate(job.trainers):
        place = at_s / HOUR_S * _EPOCHS_AN_HOUR
        found[("epoch", trainer)], found[("lr", trainer)] = place, _rate(place)
        found[("data_wait", trainer)] = _wait(k, at_s)
    return found


def _used(job: JobSpec, at_s: float) -> list[PoolUsage]:
    machines = {beat.heartbeat.pool: beat.heartbeat.machine for beat in _beats(job, at_s)}
    none = dict.fromkeys(PoolUsage.model_fields)
    found = []
    for pool, machine in machines.items():
        figures = {"pool": pool, "workers": 1, "gpus": len(machine.gpus), "cpu_cores": machine.cpu, "cores": 8.0}
        figures |= {"memory_bytes": machine.memory_bytes, "disk_free_bytes": machine.disk_free_bytes}
        for gpu in machine.gpus:
            figures |= {"gpu_busy": gpu.busy, "gpu_memory_bytes": gpu.memory_bytes, "gpu_watts": gpu.watts}
        found.append(PoolUsage.model_validate(none | figures))
    return found


def _beats(job: JobSpec, at_s: float = HOUR_S) -> list[Progress]:
    """What workers report of their machines."""
    slow, wave = at_s > _SLOW_S, sin(at_s / 70)
    found = []
    for pool, cpu, gib in (("decoder", 3.9 if slow else 2.4, 2.0), ("extractor.flow", 2.2, 1.1), ("master", 0.2, 0.3)):
        machine = Machine(
            host=f"{job.name}-{pool}", process=1, cpu=cpu + 0.1 * wave, cores=4 if pool == "decoder" else 8,
            memory_bytes=int(gib * 2**30 * (1 + 0.02 * wave)), memory_limit_bytes=2**33, disk_free_bytes=70 * 2**30,
            disk_bytes=2**37,
        )  # fmt: skip
        beat = Heartbeat(pool=pool, gauges={"busy": 0.97 if slow else 0.6}, machine=machine)
        found.append(Progress(worker=f"{pool}-7f9c", heartbeat=beat))
    for k, trainer in enumerate(job.trainers):
        busy = 0.93 - _wait(k, at_s)
        gpu = Gpu(
            id=f"GPU-{k}", name="H200", busy=busy, memory_bytes=21 * 2**30, memory_limit_bytes=139 * 2**30,
            watts=120 + 500 * busy,
        )  # fmt: skip
        machine = Machine(
            host=f"{job.name}-gpu-{k}", process=1, cpu=1.3, cores=8, memory_bytes=6 * 2**30, memory_limit_bytes=2**36,
            disk_free_bytes=3 * 2**30, disk_bytes=2**37, gpus=[gpu],
        )  # fmt: skip
        beat = Heartbeat(pool=f"trainer.{job.name}.{trainer}", machine=machine)
        found.append(Progress(worker=f"trainer-{k}", heartbeat=beat))
    return found


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
