"""Memory with a consumer a hundred times slower than the decoders: it is to stay flat, and under the budget.

The trainer is a real one, and runs a hundredth of the time: it is frozen and woken in turn. Meanwhile two decoders
would fill any cache. Sampled are the resident memory of every process of ESSP, with all that it has started, and what
the clips in Redis take up.

    python -m tests.soak.memory --minutes 10 --plot docs/memory.png
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from essp.servers.servers import free_port
from essp_common.job.status import JobStatus
from tests.harness.journeys import make_videos
from tests.harness.waiting import LONGEST_S
from tests.soak.deployment import BUCKET, Client, Servers, await_start, servers, start_pools, until
from tests.soak.supervisor import Supervisor

SLOWDOWN = 100
BUDGET = 4 * 2**20
_AWAKE_S = 0.02
_SAMPLE_S = 0.5
LEAST_SAMPLES = 8
"""More seconds are taken for them where the machine is slow: with fewer, no growth can be told from noise."""
_JOB = """
name: slow
output: s3://{bucket}/runs/slow
epochs: 1000
data: {{catalog: "{catalog}"}}
clip: {{frames: 8, resize: {{mode: crop, height: 64, width: 64}}}}
sampling: {{clips_per_epoch: 10000, clips_per_video: 1, seed: 3}}
streams: {{rgb: {{feature: rgb, params: {{frames: 4}}}}}}
trainers: {{rgb: {{stream: rgb, batch_size: 4, threads: 1, augment: {{crop: 48, flip: false}}}}}}
limits: {{budget: {budget}}}
"""


@dataclass
class Course:
    """What was measured over time. All lists are of the same length."""

    seconds: list[float] = field(default_factory=list)
    redis_bytes: list[int] = field(default_factory=list)
    """Clips and features in Redis."""
    outstanding_bytes: list[int] = field(default_factory=list)
    rss_bytes: dict[str, list[int]] = field(default_factory=dict)
    """Process -> its resident memory, and that of all it started."""
    decoded: list[int] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    budget_bytes: int = BUDGET

    def growth(self, name: str) -> int:
        """By how much a process has grown: the mean of the last quarter over that of the second."""
        values = self.rss_bytes[name]
        quarter = len(values) // 4
        return round(_mean(values[-quarter:]) - _mean(values[quarter : 2 * quarter]))


def run(seconds: float, folder: Path) -> Course:
    """Measure for so long, from the moment on in which the budget is used up."""
    videos = folder / "videos"
    make_videos(videos)
    with servers(folder) as found:
        catalog = found.upload(videos)
        # A batch of this trainer takes longer than the short patience of soaks, after which clips are made once more.
        supervisor = Supervisor({**found.environment(), "ESSP_STALL_S": "600"}, folder)
        port = free_port()
        client = Client(port)
        try:
            names = start_pools(supervisor, port)
            supervisor.start("trainer.rgb", "trainer", "--job", "slow", "--trainer", "rgb")
            names.append("trainer.rgb")
            await_start(supervisor, names)
            text = _JOB.format(bucket=BUCKET, catalog=catalog, budget=BUDGET)
            until(supervisor, lambda: client.start(text), LONGEST_S)
            until(supervisor, lambda: _steady(client.status("slow")), LONGEST_S)
            with _slowed(supervisor.processes()["trainer.rgb"].popen.pid):
                return _measured(found, supervisor, client, seconds)
        finally:
            client.close()
            supervisor.close()


def _steady(status: JobStatus | None) -> bool:
    """The trainer works, and the decoders wait for it."""
    return status is not None and status.credits.waiting and status.progress.done > 0


def _measured(found: Servers, supervisor: Supervisor, client: Client, seconds: float) -> Course:
    course = Course()
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds or len(course.seconds) < LEAST_SAMPLES:
        status = client.status("slow")
        if status is not None:
            course.seconds.append(now)
            course.redis_bytes.append(found.value_bytes())
            course.outstanding_bytes.append(status.credits.outstanding_bytes)
            course.decoded.append(status.counts.decoded)
            course.trained.append(status.progress.done)
            for name, process in supervisor.processes().items():
                resident = sum(_resident_bytes(pid) for pid in process.members())
                course.rss_bytes.setdefault(name, []).append(resident)
        supervisor.tend()
        time.sleep(_SAMPLE_S)
    return course


@contextmanager
def _slowed(pid: int) -> Iterator[None]:
    """Within this block a process runs a hundredth of the time."""
    over = threading.Event()

    def alternate() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(_AWAKE_S * (SLOWDOWN - 1))
            os.kill(pid, signal.SIGCONT)
            over.wait(_AWAKE_S)

    thread = threading.Thread(target=alternate, name="slow-down")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _mean(values: list[int]) -> float:
    return sum(values) / len(values)


def plot(course: Course, path: Path) -> None:
    """Memory over time: the processes above, Redis against the budget below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 7), layout="constrained")
    for name, values in course.rss_bytes.items():
        above.plot(course.seconds, [value / 2**20 for value in values], label=name)
    above.set(ylabel="resident memory, MiB", title=f"A trainer slowed down {SLOWDOWN} times", ylim=(0, None))
    above.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    below.plot(course.seconds, [value / 2**20 for value in course.redis_bytes], label="clips in Redis")
    below.plot(course.seconds, [value / 2**20 for value in course.outstanding_bytes], label="outstanding", ls=":")
    below.axhline(course.budget_bytes / 2**20, color="black", lw=1, label="limits.budget")
    below.set(ylabel="MiB", xlabel="seconds", ylim=(0, None))
    below.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def summary(course: Course) -> dict[str, Any]:
    """The figures in short."""
    seconds = course.seconds[-1] - course.seconds[0]
    return {
        "seconds": round(seconds),
        "trained": course.trained[-1] - course.trained[0],
        "decoded": course.decoded[-1] - course.decoded[0],
        "budget_bytes": course.budget_bytes,
        "outstanding_bytes": max(course.outstanding_bytes),
        "redis_bytes": max(course.redis_bytes),
        "grown_bytes": {name: course.growth(name) for name in course.rss_bytes},
    }


def main(
    minutes: Annotated[float, typer.Option(help="How long to measure.", min=0.1)] = 10.0,
    picture: Annotated[Path, typer.Option("--plot", help="Where to draw it.")] = Path("memory.png"),
) -> None:
    """Measure memory with a trainer that is a hundred times slower."""
    with tempfile.TemporaryDirectory(prefix="essp-memory-") as folder:
        course = run(60 * minutes, Path(folder))
    plot(course, picture)
    print(json.dumps(summary(course), indent=2))
    print(f"drawn to {picture}", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
