"""The time to build the intermediate representation, and what the size of its files costs.

`building`: `essp records build` of CIFAR-10, from the binary files that its authors publish and from an archive of JPEG
files, and of the photographs, as pixels of 224x224 and as they are. Each build is a process of its own; starting Python
does not count. What it writes is on the disk when it ends, not only in the page cache.

`file_size`: records of pixels in files of 4 MiB to 1 GiB: the memory of the build, and an epoch from a disk (files
evicted first) and from an S3 server on this machine, with 64 MiB of memory for records.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import essp
from benchmarks.image_sets import CROP
from benchmarks.papers.document import markdown, spread
from benchmarks.papers.machine import apart, cpu_s
from benchmarks.papers.oneaccess.over_memory import served
from benchmarks.papers.oneaccess.pictures import TRAIN, built, cifar, large
from benchmarks.papers.study import Options, Part, Steps, Values
from essp.bench.page_cache import evict
from essp.records.build import BuildOptions
from essp_common.quantities import size

SOURCES = {
    "cifar_binary": ("CIFAR-10, binary files as published: pixels", "1.5 s"),
    "cifar_jpeg": ("CIFAR-10, an archive of JPEG files: pixels", ""),
    "large_raw": ("photographs: pixels of 224x224", "23 min for 118,000"),
    "large_keep": ("photographs: the files as they are", ""),
}
_ROWS = 10_000
"""Images of a binary file of CIFAR-10."""
FILE_SIZES = (4 * 2**20, 32 * 2**20, 256 * 2**20, 2**30)
_LARGE_SHARE = 4
"""`file_size` uses one photograph in this many."""
_MEMORY = "64MiB"


def timed(options: Options, name: str) -> dict[str, float]:
    """Seconds, processor seconds, and what came of it."""
    source, within, how = _asked(options, name)
    with _folder(options) as folder:
        began, cpu = time.perf_counter(), cpu_s()
        made = built(source, folder / "out", how, within)
        took = {"s": round(time.perf_counter() - began, 3), "cpu_s": round(cpu_s() - cpu, 3)}
    return took | {"records": made.records, "bytes": made.bytes}


def _asked(options: Options, name: str) -> tuple[Path, str, BuildOptions]:
    """The source of a build, the folder within it, and how images are stored."""
    assert options.images is not None
    if name == "cifar_binary":
        return _binary(options), "", BuildOptions("raw")
    if name == "cifar_jpeg":
        return options.images, TRAIN, BuildOptions("raw")
    return large(options), "", BuildOptions("keep") if name == "large_keep" else BuildOptions("raw", (CROP, CROP))


def _binary(options: Options) -> Path:
    """The same images in the layout of CIFAR-10's binary version: a byte for the label, then three planes."""
    images = cifar(options)
    folder = images.folder / "cifar-10-batches-bin"
    if not (folder / "made").exists():
        folder.mkdir(exist_ok=True)
        pixels = np.load(images.pixels).transpose(0, 3, 1, 2).reshape(-1, 3 * 32 * 32)
        rows = np.concatenate([images.labels.astype(np.uint8)[:, None], pixels], axis=1)
        for number, begin in enumerate(range(0, len(rows), _ROWS), 1):
            rows[begin : begin + _ROWS].tofile(folder / f"data_batch_{number}.bin")
        names = [chr(ord("a") + number) for number in range(10)]
        (folder / "batches.meta.txt").write_text("\n".join(names) + "\n", encoding="ascii")
        (folder / "made").touch()
    return folder


def sized(options: Options, file_bytes: int) -> dict[str, float]:
    """Build with this size, in this process, then read an epoch from the disk and one from S3."""
    some = options.work / "photos_some"
    if not some.exists():
        begun = some.with_suffix(".partial")
        shutil.rmtree(begun, ignore_errors=True)
        begun.mkdir(parents=True)
        for photo in sorted(large(options).iterdir())[::_LARGE_SHARE]:
            (begun / photo.name).hardlink_to(photo)
        begun.rename(some)
    with _folder(options) as folder:
        bucket = folder / "buckets" / "essp"
        before = _peak_bytes(fresh=True)
        built(some, bucket / "out", BuildOptions("raw", (CROP, CROP), file_bytes=file_bytes))
        found: dict[str, float] = {"build_bytes": _peak_bytes() - before}
        files = sorted(map(str, (bucket / "out" / "records").glob("*.records")))
        found["files"] = len(files)
        evict(files)
        found["disk_s"], found["disk_cpu_s"] = _epoch(str(bucket / "out"))
        with served(folder, bucket) as uri:
            evict(files)
            found["s3_s"], found["s3_cpu_s"] = _epoch(f"{uri}/out")
    return found


def _epoch(uri: str) -> tuple[float, float]:
    """Seconds of an epoch, and processor seconds of the process that reads it."""
    began, cpu = time.perf_counter(), time.process_time()
    with essp.Records(uri, batch_size=32, memory=_MEMORY) as loader:
        for _ in loader:
            pass
    return round(time.perf_counter() - began, 3), round(time.process_time() - cpu, 3)


@contextmanager
def _folder(options: Options) -> Iterator[Path]:
    """A temporary folder on the disk of the images, not on one in memory."""
    options.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        yield Path(folder)


def _peak_bytes(fresh: bool = False) -> int:
    """The most memory that this process has had; `fresh`: from now on."""
    if fresh:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _steps(options: Options) -> Steps:
    for number in range(options.rounds):
        for name in SOURCES:
            yield f"{name}.{number}", partial(apart, timed, options, name)


def _table(values: Values) -> str:
    rows = []
    for name, (title, paper) in SOURCES.items():
        runs = [value for key, value in values.items() if key.startswith(f"{name}.")]
        if not runs:
            continue
        each = runs[0]
        rates = [run["records"] / run["s"] for run in runs]
        rows.append(
            [
                title,
                f"{each['records']:,}",
                size(each["bytes"]),
                spread([run["s"] for run in runs]),
                spread([run["cpu_s"] for run in runs]),
                spread(rates, "{:,.0f}"),
                paper,
            ]
        )
    return markdown(["source, and what is written", "images", "written", "s", "CPU s", "images/s", "the paper"], rows)


def _size_steps(options: Options) -> Steps:
    for number in range(options.rounds):
        for file_bytes in FILE_SIZES:
            yield f"{file_bytes}.{number}", partial(apart, sized, options, file_bytes)


def _size_table(values: Values) -> str:
    rows = []
    for file_bytes in FILE_SIZES:
        runs = [value for key, value in values.items() if key.startswith(f"{file_bytes}.")]
        if runs:
            peak = spread([run["build_bytes"] / 2**20 for run in runs], "{:,.0f}")
            names = ("disk_s", "disk_cpu_s", "s3_s", "s3_cpu_s")
            times = (spread([run[name] for run in runs]) for name in names)
            rows.append([size(file_bytes), f"{runs[0]['files']:,}", peak, *times])
    head = ["`--file-size`", "files", "memory of the build, MiB", "an epoch from the disk, s", "CPU s", "from S3, s",
            "CPU s"]  # fmt: skip
    return markdown(head, rows)


def _draw_sizes(values: Values) -> Figure:
    figure = Figure(figsize=(4.5, 3.0), layout="constrained")
    axes: Any = figure.subplots()
    for name, title, colour in (("disk_s", "disk", "#2a7f62"), ("s3_s", "S3", "#c8553d")):
        for number, (key, value) in enumerate(values.items()):
            label = title if number == 0 else None
            axes.plot(int(key.split(".")[0]) / 2**20, value[name], "o", ms=4, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks([file_bytes / 2**20 for file_bytes in FILE_SIZES], [str(one // 2**20) for one in FILE_SIZES])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("size of a file, MiB")
    axes.set_ylabel("seconds of an epoch")
    axes.legend()
    return figure


PART = Part("building", "time to build the intermediate representation", _steps, _table, quiet=True,
            uses=("rounds", "images", "photos"), needs=("images", "photos"))  # fmt: skip
SIZE_PART = Part("file_size", "an epoch by the size of the files of records", _size_steps, _size_table, _draw_sizes,
                 quiet=True, uses=("rounds", "photos"), needs=("photos",))  # fmt: skip
