"""What the master costs: seeds issued and accounted for, a second of one core.

A real `service.Master` runs a two-stream job (rgb and flow, a trainer on each) of 10,000 videos in a random order. Bus
and workers around it cost nothing that is counted: the time is that of the calls of `Master.step` or of the ledger's
`account` and `issue`, by the processor's clock, and the master lives by that clock too: it writes its history as often
as on a core that does nothing else. Every message is made, read and answered as it would be: seeds out,
then `Made` of what was decoded and extracted, and `Trained` of batches of 32 clips in, from as many workers as are
asked for.

`master_shell_pooled` is the same with a pooled plan, as `essp init` proposes it for so many videos: 8 clips a visit,
mixed within windows of 1,024. A work unit then has 8 clips, and an epoch meets a video about once.

How many clips a worker tells of at once follows from what real ones do (`essp_engine/worker/reports.py`) at 50,000
clips a second: the first, those of the next fifth of a second, and no more than of 16 work units. Each of a
thousand workers makes 10 in that time, and one worker comes to the limit. `master_single` is what it
costs if each clip has a message of its own, as when workers have nothing to do but wait for the next one.
"""

from __future__ import annotations

import tempfile
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Aim, Figure, Scale
from benchmarks.measure import spread
from essp_common import topics
from essp_common.bus.port import Record
from essp_common.cache.memory import MemoryCache
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import DecodeSeed, Made, Progress, Purpose, Seed, Trained
from essp_common.runtime.garbage import collect_rarely
from essp_common.runtime.troubles import Troubles
from essp_common.wiring import Adapters, Stores
from essp_engine.preflight.preflight import preflight
from essp_engine.seeding.instructions import Instruction, IssueUnits
from essp_engine.seeding.message_builder import MessageBuilder
from essp_engine.worker.reports import RECORDS, WINDOW_S
from essp_master.config import MasterSettings
from essp_master.job.run import Run, claim_run
from essp_master.main import GARBAGE
from essp_master.service import Master

_VIDEOS = 10_000
_CLASSES = 101
_BATCH = 32
_OUTSTANDING = 8192
"""Clips that the budget holds: the prefetch of a thousand decoders."""
_FRAMES, _SIDE = 11, 16
_RATE = 50_000
"""Clips a second, of which workers tell. At a higher rate they would tell of more at once, which costs less."""
_AIM = 100_000
"""Seeds a second."""
_RANDOM: Mapping[str, Any] = {}
_POOLED: Mapping[str, Any] = {"kind": "pooled", "clips_per_visit": 8, "window": 1024}


class Bus:
    """Keeps what the master publishes, and gives it what the workers report."""

    def __init__(self) -> None:
        self.seeds: list[bytes] = []
        self.reports: deque[Record] = deque()
        self._offset = 0

    def report(self, value: bytes) -> None:
        """Have the master read this."""
        self.reports.append(Record(topics.PROGRESS, 0, self._offset, b"", value))
        self._offset += 1

    def publish(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        if topic == topics.SEEDS:
            self.seeds.append(value)

    def flush(self, timeout_s: float = 30.0) -> None:
        """Nothing waits."""

    def ensure_topics(self, partitions: Mapping[str, int], kept: Collection[str] = (), grow: bool = False) -> None:
        """All are there."""

    def subscribe(self, topics: Sequence[str], group: str | None, partitions: Sequence[int] | None = None) -> Bus:
        return self

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        return [self.reports.popleft() for _ in range(min(max_records, len(self.reports)))]

    def done(self, record: Record) -> None:
        """Nothing is delivered again."""

    def backlog(self, topic: str, group: str) -> int:
        return len(self.reports)

    def begin_groups(self, groups: Mapping[str, str]) -> None:
        """Nothing is left of others."""

    def delete_groups(self, groups: Collection[str]) -> None:
        """There are none."""

    def held(self, topic: str) -> list[range]:
        return [range(0)]

    def troubles(self) -> Troubles:
        return {}

    @property
    def partitions(self) -> int:
        return 1

    def owned(self, topic: str) -> frozenset[int]:
        return frozenset((0,))

    def pause(self) -> None:
        """Not called."""

    def resume(self) -> None:
        """Not called."""

    def close(self) -> None:
        """Nothing is held."""


class _Core:
    """Counts the time that this process works within `with`."""

    def __init__(self) -> None:
        self._past_s = 0.0
        self._begun_s: float | None = None

    def __enter__(self) -> None:
        self._begun_s = time.process_time()

    def __exit__(self, *_: object) -> None:
        self._past_s, self._begun_s = self.now_s(), None

    def now_s(self) -> float:
        """Seconds so far."""
        return self._past_s + (0.0 if self._begun_s is None else time.process_time() - self._begun_s)


@dataclass
class _Workers:
    """Everybody but the master."""

    count: int
    batch: int
    """Clips in one report of a worker."""
    job: JobSpec
    report: Callable[[Progress], None]
    _made: dict[tuple[str, Purpose, int, int], list[Seed]] = field(default_factory=dict)
    _trained: dict[str, dict[tuple[Purpose, int], list[int]]] = field(default_factory=dict)

    def make(self, unit: DecodeSeed) -> None:
        """Decode and extract the clips of a unit; tell of them when there are enough."""
        worker = f"w{zlib.crc32(unit.video.uri.encode()) % self.count}"
        for seed in unit.seeds:
            made = self._made.setdefault((worker, unit.purpose, unit.epoch, unit.fence), [])
            made.append(seed)
            if len(made) == self.batch:
                self._tell(worker, unit.purpose, unit.epoch, unit.fence, made)
        for consumer in self.job.readers():
            trained = self._trained.setdefault(consumer, {}).setdefault((unit.purpose, unit.epoch), [])
            trained += [seed.index for seed in unit.seeds]

    def train(self) -> None:
        """Tell of the rest of what was made, and train all, in batches."""
        for (worker, purpose, epoch, fence), made in self._made.items():
            if made:
                self._tell(worker, purpose, epoch, fence, made)
        for consumer, phases in self._trained.items():
            for (purpose, epoch), indices in phases.items():
                for first in range(0, len(indices), _BATCH):
                    trained = Trained(
                        job=self.job.name, purpose=purpose, epoch=epoch, consumer=consumer,
                        indices=indices[first : first + _BATCH],
                    )  # fmt: skip
                    self._say(consumer, 1, trained=trained)
        self._trained.clear()

    def _tell(self, worker: str, purpose: Purpose, epoch: int, fence: int, seeds: list[Seed]) -> None:
        """These were decoded, and their flow was extracted."""
        for stream, size in (("", 8000), ("flow", 5000)):
            made = Made(
                purpose=purpose, epoch=epoch, stream=stream, indices=[seed.index for seed in seeds],
                bytes=[size] * len(seeds), seconds=0.01 * len(seeds),
            )  # fmt: skip
            self._say(worker, fence, made=made)
        seeds.clear()

    def _say(self, worker: str, fence: int, **event: Any) -> None:
        self.report(Progress(job=self.job.name, worker=worker, fence=fence, **event))


def master(scale: Scale) -> Iterator[Figure]:
    """Seeds a second by the shell and by the ledger alone, and what a thousand workers cost more than one."""
    collect_rarely(GARBAGE)  # as the process of a master does
    clips = 2000 if scale.quick else 100_000
    rounds = [
        (
            _shell(1, clips),
            _shell(1000, clips),
            _ledger(clips),
            _shell(1, clips, batch=1),
            _shell(1, clips, plan=_POOLED),
        )
        for _ in range(scale.rounds)
    ]
    aim = Aim(least=_AIM)
    figures = (
        ("master_shell", aim),
        ("master_shell_1000", Aim(least=50_000)),
        ("master_ledger", None),
        ("master_single", None),
        ("master_shell_pooled", aim),
    )
    for place, (name, wanted) in enumerate(figures):
        found = spread([clips / times[place] for times in rounds])
        yield Figure(name, found.median, "seeds/s", wanted, found.low, found.high, {"clips": clips})
    found = spread([times[1] / times[0] for times in rounds])
    yield Figure.of("master_workers", found, Aim(most=1.2), {"workers": "1000 / 1", "clips": clips})


def _batch(workers: int) -> int:
    """Clips in one report of each of `workers` workers."""
    return min(RECORDS, 1 + int(_RATE * WINDOW_S / workers))


def _shell(workers: int, clips: int, batch: int = 0, plan: Mapping[str, Any] = _RANDOM) -> float:
    """CPU time in seconds that the whole master takes for a job of `clips`. `plan`: fields of its `sampling`."""
    with tempfile.TemporaryDirectory() as folder:
        job, bus = _job(Path(folder), clips, plan), Bus()
        adapters = Adapters(bus, MemoryCache(), Stores([f"file://{folder}"]))
        core = _Core()
        running = Master(adapters, MasterSettings(), "m", clock=core.now_s)
        around = _Workers(
            workers, batch or _batch(workers), job, lambda progress: bus.report(progress.SerializeToString())
        )
        running.start(job)
        while bus.seeds:
            seeds, bus.seeds = bus.seeds, []
            for seed in seeds:
                around.make(DecodeSeed.FromString(seed))
            around.train()
            with core:
                while running.step(0):
                    pass
        status = running.status(job.name)
        if status.progress.done != status.progress.total or status.progress.total < clips:
            raise RuntimeError(f"{status.progress.done} of {status.progress.total} clips accounted for")
        return core.now_s() * clips / status.progress.total


def _ledger(clips: int) -> float:
    """Seconds of a core by the ledger alone: its instructions are made into messages outside of the time."""
    with tempfile.TemporaryDirectory() as folder:
        job = _job(Path(folder), clips)
        stores = Stores([f"file://{folder}"])
        run = claim_run(preflight(job, stores), stores)
        ledger, writer = run.ledger, _writer(run)
        reports: list[Progress] = []
        around = _Workers(1, _batch(1), job, reports.append)
        out, core = ledger.start(), _Core()
        while out:
            for instruction in out:
                for unit in writer(instruction):
                    around.make(unit)
            around.train()
            out = []
            with core:
                for report in reports:
                    out += ledger.account(report)
                out += ledger.issue()
            reports.clear()
        return core.now_s() * clips / ledger.closed


def _writer(run: Run) -> Callable[[Instruction], Iterator[DecodeSeed]]:
    seeds = MessageBuilder(run.preflight.spec, run.preflight.phases, run.fence)

    def write(instruction: Instruction) -> Iterator[DecodeSeed]:
        if isinstance(instruction, IssueUnits):
            for _, message in seeds.units(instruction):
                yield DecodeSeed.FromString(message)

    return write


def _job(folder: Path, clips: int, plan: Mapping[str, Any] = _RANDOM) -> JobSpec:
    """A job of `clips` training clips, and its catalog."""
    rows = [
        VideoRow(
            f"{split}/class{n % _CLASSES:03d}/v{n:06d}.mp4",
            f"s3://videos/{split}/class{n % _CLASSES:03d}/v{n:06d}.mp4",
            f"class{n % _CLASSES:03d}", split, 1_000_000 + n, f"{n:032x}", width=320, height=240, frame_count=300,
            last_frame=299, seekable=True, keyframe_pts=tuple(range(0, 300, 12)),
            keyframe_frame=tuple(range(0, 300, 12)), keyframe_offset=tuple(range(0, 300_000, 12_000)),
        )
        for split, videos in (("train", _VIDEOS), ("validation", _CLASSES))
        for n in range(videos)
    ]  # fmt: skip
    store = DirectoryStore(str(folder))
    write_catalog(store, "catalog.parquet", Catalog(tuple(rows)))
    clip_bytes = _SIDE * _SIDE * 3 * _FRAMES + _SIDE * _SIDE * 2 * (_FRAMES - 1)
    return JobSpec.model_validate(
        {
            "name": "bench",
            "output": f"file://{folder}/out",
            "data": {"catalog": store.uri("catalog.parquet")},
            "clip": {"frames": _FRAMES, "resize": {"height": _SIDE, "width": _SIDE}},
            "sampling": {"clips_per_epoch": clips, "clips_per_video": 1, **plan},
            "streams": {"rgb": {}, "flow": {"feature": "flow", "params": {"length": _FRAMES - 1}}},
            "trainers": {
                name: {"stream": name, "batch_size": _BATCH, "augment": {"crop": _SIDE}} for name in ("rgb", "flow")
            },
            "epochs": 1,
            "limits": {"budget": _OUTSTANDING * clip_bytes},
        }
    )
