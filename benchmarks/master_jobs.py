"""What a master costs that has had many jobs: `master_many_jobs`.

A real `service.Master` starts 10,000 jobs one after another, each with its own output beside the others, and stops each
again, as a team does that tries things for months. No worker runs: the benchmark measures what the master keeps of them
and what each step costs because of it. The master reads its own commands, as every process does. Its clock advances by
half a second a job, so most of the jobs have ended within the last hour.

    python -m benchmarks.master_jobs 10000       # the same in this process, as JSON
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.figures import Aim, Figure, Scale
from benchmarks.master import Bus
from essp_common import topics
from essp_common.bus.port import Record
from essp_common.cache.memory import MemoryCache
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.job.spec import JobSpec
from essp_common.messages.control import ControlFeed
from essp_common.objects.directory import DirectoryStore
from essp_common.runtime.garbage import collect_rarely
from essp_common.wiring import Adapters, Stores
from essp_master.api.exposition import JobCollector, exposition
from essp_master.config import MasterSettings
from essp_master.main import GARBAGE
from essp_master.service import Master

_JOBS = 10_000
_CLASSES, _VIDEOS = 10, 50
_BETWEEN_S = 0.5
"""From one job to the next, by the master's clock."""
_WRITE_S = 0.02
"""What a history takes to be written, at most some steps."""
_SAMPLE = 100
"""Starts of which the median counts."""
_STEP_S = 0.1
"""How long a master that has nothing to do waits for a message."""
_STEPS = 300


def master_many_jobs(scale: Scale) -> Iterator[Figure]:
    """Memory, idle time and the time of a start after 10,000 jobs."""
    jobs = 300 if scale.quick else _JOBS
    command = [sys.executable, "-m", "benchmarks.master_jobs", str(jobs)]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    detail = {"jobs": jobs} | found
    yield Figure("master_many_jobs.memory", found["memory_mb"], "MB", Aim(most=300), detail=detail)
    yield Figure("master_many_jobs.idle", found["idle_share"], "core", Aim(most=0.02), detail=detail)
    yield Figure("master_many_jobs.start", found["start_ratio"], "ratio", Aim(most=1.3), detail=detail)
    yield Figure("master_many_jobs.metrics", found["metrics_kb"], "kB", None, detail=detail)


class _Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class _Commands(Bus):
    """Waits for commands, as a broker's client does: a thread that asks again and again would be measured, too."""

    def __init__(self) -> None:
        super().__init__()
        self._come = threading.Event()

    def report(self, value: bytes) -> None:
        super().report(value)
        self._come.set()

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        if self._come.wait(timeout_s):
            self._come.clear()
        return super().poll(max_records, timeout_s)


class _Bus(Bus):
    """Has the master's commands read, as by every process; work units go nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self._commands = _Commands()

    def publish(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        if topic == topics.CONTROL:
            self._commands.report(value)

    def subscribe(self, topics: Sequence[str], group: str | None, partitions: Sequence[int] | None = None) -> Bus:
        return self._commands if group is None else self


def measured(jobs: int) -> dict[str, float]:
    """What so many jobs that have ended make a master cost."""
    collect_rarely(GARBAGE)  # as the process of a master does
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # what a disk takes to flush is not the master's time
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        bus, clock = _Bus(), _Clock()
        adapters = Adapters(bus, MemoryCache(), Stores([f"file://{folder}"]))
        master = Master(adapters, MasterSettings(ready_s=0.0), "m", True, clock)
        feed = ControlFeed(bus)
        master.recover()
        spec = _job(Path(folder))
        starts_s = [_one(master, clock, _named(spec, f"job-{number:05d}", folder)) for number in range(jobs)]
        for _ in range(_STEPS):  # the last ones are written to their histories
            clock.now_s += 1.0
            master.step(_WRITE_S)
        began_s = time.process_time()
        for _ in range(_STEPS):
            clock.now_s += _STEP_S
            master.step(0)
        idle_share = (time.process_time() - began_s) / (_STEPS * _STEP_S)
        text = exposition(JobCollector(master.recent))
        found = {
            "memory_mb": round(_resident_mb()),
            "idle_share": round(idle_share, 4),
            "start_ms": round(1000 * statistics.median(starts_s[-_SAMPLE:]), 1),
            "start_ratio": round(statistics.median(starts_s[-_SAMPLE:]) / statistics.median(starts_s[:_SAMPLE]), 3),
            "metrics_kb": round(len(text) / 1000),
        }
        feed.close()
        master._history.finish()
        return found


def _one(master: Master, clock: _Clock, spec: JobSpec) -> float:
    """Start a job and stop it; processor time of the start."""
    began_s = time.process_time()
    master.start(spec)
    took_s = time.process_time() - began_s
    master.stop(spec.name)
    clock.now_s += _BETWEEN_S
    master.step(0)
    return took_s


def _named(spec: JobSpec, name: str, folder: str) -> JobSpec:
    return spec.model_copy(update={"name": name, "output": f"file://{folder}/runs/{name}"})


def _job(folder: Path) -> JobSpec:
    rows = [
        VideoRow(
            f"{split}/v{n:04d}.mp4", f"s3://videos/{split}/v{n:04d}.mp4", f"class{n % _CLASSES:03d}", split, 1_000_000,
            f"{n:032x}", width=320, height=240, frame_count=300, last_frame=299, seekable=True,
            keyframe_pts=tuple(range(0, 300, 12)), keyframe_frame=tuple(range(0, 300, 12)),
            keyframe_offset=tuple(range(0, 300_000, 12_000)),
        )
        for split in ("train", "validation")
        for n in range(_VIDEOS)
    ]  # fmt: skip
    store = DirectoryStore(str(folder))
    write_catalog(store, "catalog.parquet", Catalog(tuple(rows)))
    return JobSpec.model_validate(
        {
            "name": "bench",
            "output": f"file://{folder}/out",
            "data": {"catalog": store.uri("catalog.parquet")},
            "clip": {"frames": 11, "resize": {"height": 128, "width": 128}},
            "streams": {"rgb": {}, "flow": {"feature": "flow", "params": {"length": 10}}},
            "trainers": {name: {"stream": name, "augment": {"crop": 112}} for name in ("rgb", "flow")},
            "epochs": 3,
        }
    )


def _resident_mb() -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1000


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]))))
