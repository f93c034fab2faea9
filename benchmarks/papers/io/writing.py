"""Checkpoints and storage: how fast this machine writes (IOR in the paper's Table I), training with checkpoints on
several devices (Figure 9), and bytes written over time (Figure 10).

`writing`: a file of `_WRITTEN` bytes in requests of 8 MiB, with `fsync`, and the same bytes as a checkpoint of ESSP,
which is read back. `devices`: `essp bench checkpoint` with the paper's rates of writing, 100 steps with a checkpoint of
600 MB every 20. Devices are simulated: both folders are in memory (/dev/shm).

The first run of each is dropped.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure

from benchmarks.papers.document import markdown, spread
from benchmarks.papers.io.reading import runs
from benchmarks.papers.machine import apart
from benchmarks.papers.study import Options, Part, Steps, Values
from essp.bench import page_cache
from essp.bench.accesses import Accesses, NotedStore
from essp.bench.checkpoint import CheckpointBenchmark, CheckpointOptions, Trainee, random_files
from essp.bench.learner import Pretended
from essp.bench.pipeline import Batch
from essp.bench.saving import Direct, Mode, room_for
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.objects.throttled import Device, Throttle, ThrottledStore

WRITE_RATES = {
    "hdd": Throttle(133.14e6, 8e-3, 2),
    "ssd": Throttle(195.05e6, 0.1e-3, 32),
    "optane": Throttle(511.78e6, 0.01e-3, 64),
    "lustre": Throttle(991.914e6, 4e-3),
}
"""Bandwidths of writing in the paper's Table I; latencies as for reading (`essp bench io`)."""
_PAPER_GAIN = 2.6
_CHECKPOINT, _STEPS, _EVERY, _STEP_S = 600_000_000, 100, 20, 0.3
_WRITTEN, _REQUEST = 2 * 2**30, 8 * 2**20
_MEMORY = Path("/dev/shm")
_WAYS: tuple[tuple[str, Mode], ...] = (
    ("hdd", "none"), ("hdd", "direct"), ("ssd", "direct"), ("optane", "direct"), ("lustre", "direct"),
    ("hdd", "background"), ("hdd", "burst"),
)  # fmt: skip


def writing(folder: Path, quick: bool) -> dict[str, float]:
    """MB/s of a plain write, of reading it back from the disk, and of a checkpoint with the same bytes."""
    count = 2 * _REQUEST if quick else _WRITTEN
    with TemporaryDirectory(dir=folder) as temporary:
        path, data = Path(temporary) / "file", os.urandom(_REQUEST)
        began_s = time.perf_counter()
        with open(path, "wb", buffering=0) as target:
            for _ in range(count // _REQUEST):
                target.write(data)
            os.fsync(target.fileno())
        written_s = time.perf_counter() - began_s
        page_cache.evict([str(path)])
        began_s = time.perf_counter()
        with open(path, "rb", buffering=0) as file:
            buffer = bytearray(_REQUEST)
            while file.readinto(buffer):
                pass
        read_s = time.perf_counter() - began_s
        path.unlink()
        saver, files = Direct(DirectoryStore(temporary)), random_files(count)()
        began_s = time.perf_counter()
        saver.save(1, files)
        saved_s = time.perf_counter() - began_s
    took = {"written": written_s, "read": read_s, "checkpoint": saved_s}
    return {name: round(count / seconds / 1e6, 1) for name, seconds in took.items()}


def saving(name: str, mode: Mode, quick: bool) -> dict[str, float]:
    """One training with checkpoints on a device."""
    with _benchmark(name, mode, quick) as benchmark:
        benchmark.run(lambda: False, lambda run, number, made: None)
        [row] = benchmark.results().rows
    return {key: round(spread_.median, 3) for key, spread_ in row.values.items()}


class _Timed(NotedStore):
    """Notes when each object was written."""

    def __init__(self, store: ObjectStore, writes: list[list[float]]) -> None:
        super().__init__(store, Accesses())
        self._inner, self._writes = store, writes

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        return self._noted(lambda: self._inner.put(key, data, if_absent=if_absent))

    def put_file(self, key: str, path: str) -> ObjectInfo:
        return self._noted(lambda: self._inner.put_file(key, path))

    def below(self, folder: str) -> _Timed:
        return _Timed(self._inner.below(folder), self._writes)

    def _noted(self, write: Callable[[], ObjectInfo]) -> ObjectInfo:
        begin_s = time.perf_counter()
        info = write()
        self._writes.append([begin_s, time.perf_counter(), info.size_bytes])
        return info


def written_over_time(name: str, mode: Mode, quick: bool) -> dict[str, Any]:
    """One training: when it ended, and the beginning and end in seconds, and the bytes, of each write to the device."""
    writes: list[list[float]] = []
    with _benchmark(name, mode, quick, writes) as benchmark:
        began_s = time.perf_counter()
        benchmark.run(lambda: False, lambda run, number, made: None)
        [row] = benchmark.results().rows
    times = [[round(begin - began_s, 3), round(end - began_s, 3), count] for begin, end, count in writes]
    return {"training_s": round(row.values["training_s"].median, 3), "writes": [one for one in times if one[2] > 2**16]}


@contextmanager
def _benchmark(
    name: str, mode: Mode, quick: bool, writes: list[list[float]] | None = None
) -> Iterator[CheckpointBenchmark]:
    size_bytes, steps, every = (2**20, 4, 2) if quick else (_CHECKPOINT, _STEPS, _EVERY)
    with TemporaryDirectory(dir=_MEMORY) as slow, TemporaryDirectory(dir=_MEMORY) as fast:
        store: ObjectStore = ThrottledStore(DirectoryStore(slow), Device(WRITE_RATES[name]))
        if writes is not None:
            store = _Timed(store, writes)
        pretended, nothing = Pretended(0.01 if quick else _STEP_S), Batch(1)
        trainee = Trainee(pretended.name, lambda: pretended.step(nothing), random_files(size_bytes))
        options = CheckpointOptions((mode,), steps, every, 1, room_for(size_bytes))
        yield CheckpointBenchmark(store, Path(fast), trainee, options, {})


def _writing_steps(options: Options) -> Steps:
    places = {"this disk": options.work, "memory": _MEMORY}
    for number in range(options.rounds + 1):
        for name, folder in places.items():
            folder.mkdir(parents=True, exist_ok=True)
            yield f"{name}/{number}", partial(apart, writing, folder, options.quick)


def _saving_steps(options: Options) -> Steps:
    for number in range(options.rounds + 1):
        for name, mode in _WAYS:
            yield f"{name}.{mode}/{number}", partial(apart, saving, name, mode, options.quick)


def _over_time_steps(options: Options) -> Steps:
    for mode in ("direct", "burst"):
        yield f"hdd.{mode}", partial(apart, written_over_time, "hdd", mode, options.quick)


def _writing_table(values: Values) -> str:
    names = dict.fromkeys(key.rpartition("/")[0] for key in values)
    rows = [
        [
            name,
            *(
                spread([run[what] for run in runs(values, name)], "{:,.0f}")
                for what in ("written", "read", "checkpoint")
            ),
        ]
        for name in names
    ]
    return markdown(["MB/s", "plain write, `fsync`", "read back, cold", "a checkpoint, read back"], rows)


def _table(values: Values) -> str:
    rows, none = [], _trained(values, "hdd", "none")
    for name, mode in _WAYS:
        if not (found := runs(values, f"{name}.{mode}")):
            continue
        title = "without" if mode == "none" else f"{name}, {mode}"
        held = [run["held_s"] for run in found if "held_s" in run]
        ratio = "" if mode == "none" or none is None else f"{statistics.median(_all(found)) / none:.2f}"
        drained = "" if mode == "none" else spread([run["drained_s"] for run in found])
        rows.append([title, spread(_all(found)), ratio, spread(held) if held else "", drained])
    head = ["checkpoints", "training, s", "of that without", "waits for each, s", "in the store after, s"]
    text = markdown(head, rows)
    direct, burst = _trained(values, "hdd", "direct"), _trained(values, "hdd", "burst")
    if direct is not None and burst is not None:
        text += f"\n\nThe burst buffer makes the training {direct / burst:.2f} times as fast as direct checkpoints to "
        text += f"`hdd` (paper: {_PAPER_GAIN:g})."
    return text


def _all(found: list[Any]) -> list[float]:
    return [run["training_s"] for run in found]


def _trained(values: Values, name: str, mode: Mode) -> float | None:
    found = runs(values, f"{name}.{mode}")
    return statistics.median(_all(found)) if found else None


def _draw(values: Values) -> Figure | None:
    figure = Figure(figsize=(6.0, 3.0), layout="constrained")
    axes: Any = figure.subplots()
    ways = [(name, mode) for name, mode in _WAYS if mode != "none" and runs(values, f"{name}.{mode}")]
    for place, (name, mode) in enumerate(ways):
        found = _all(runs(values, f"{name}.{mode}"))
        axes.bar(place, statistics.median(found), color="#2a7f62" if mode == "direct" else "#7fb069")
        axes.plot([place] * len(found), found, "k.", markersize=4)
    axes.set_xticks(range(len(ways)), [f"{name}\n{mode}" for name, mode in ways])
    none = _trained(values, "hdd", "none")
    if none is not None:
        axes.axhline(none, color="grey", linestyle="--", label="without checkpoints")
        axes.legend()
    axes.set_ylabel("training, s")
    return figure


def _over_time_table(values: Values) -> str:
    rows = []
    for name, found in values.items():
        ends = [end for _, end, _ in found["writes"]]
        total = sum(count for *_, count in found["writes"])
        last = f"{max(ends):.1f}" if ends else ""
        rows.append([name.partition(".")[2], f"{found['training_s']:.1f}", last, f"{total / 1e6:,.0f}"])
    return markdown(["checkpoints to `hdd`", "training ends after, s", "last byte after, s", "MB to the device"], rows)


def _draw_over_time(values: Values) -> Figure | None:
    figure = Figure(figsize=(7.0, 3.4), layout="constrained")
    panels: Any = figure.subplots(2, 1, sharex=True, sharey=True)
    for axes, mode in zip(panels, ("direct", "burst"), strict=True):
        if found := values.get(f"hdd.{mode}"):
            for begin, end, count in found["writes"]:
                axes.bar(begin, count / 1e6 / (end - begin), end - begin, align="edge", color="#2a7f62")
            axes.axvline(found["training_s"], color="black", linestyle=":")
        axes.set_xlim(left=0)
        axes.set_ylabel(f"{mode}, MB/s")
    panels[1].set_xlabel("s; dotted: the training ends")
    return figure


WRITING_PART = Part("writing", "how fast this machine writes, plainly and as a checkpoint",
                    _writing_steps, _writing_table, quiet=True)  # fmt: skip
DEVICES_PART = Part("devices", "training time with checkpoints on several devices",
                    _saving_steps, _table, _draw, quiet=True)  # fmt: skip
WRITTEN_PART = Part("written_over_time", "bytes written over time", _over_time_steps, _over_time_table,
                    _draw_over_time, quiet=True, uses=())  # fmt: skip
