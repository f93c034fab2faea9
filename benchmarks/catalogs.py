"""What the size of a catalog costs: `essp validate` with a million videos against a thousand, and its memory.

`essp validate` does what each start of a job begins with, by the master, `essp run` or `essp.Loader`: it reads
and checks the catalog, divides it, makes the plans and the first messages.

The catalogs have no videos: nothing here opens one. Their rows are as those of a real set: names as in Kinetics below
400 classes, on S3, of 10 s at 30 frames a second, with a keyframe every 60 frames, four videos of each person, and two
in a hundred of variable rate. Each run is a process of its own, as a user starts it, and the two sizes take turns.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from numpy.typing import NDArray

from benchmarks.figures import Aim, Figure, Scale
from benchmarks.measure import spread
from essp_common.catalog.file import pack_table
from essp_common.catalog.schema import SCHEMA
from essp_common.objects.block_sums import BlockSums, block_bytes_of
from essp_engine.video.clock import pack

CLASSES = 400
_FRAMES, _RATE = 300, 30
_TICK = 512
_CLOCK = _RATE * _TICK
_LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_SOURCE = "s3://videos/kinetics"


_VALIDATE = """
import atexit, sys, time
from essp.cli.main import main
def told():
    peak_kb = open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]
    print(time.process_time(), int(peak_kb) / 1024)
atexit.register(told)
main()
"""
"""`essp validate`, and at its end the processor time and the peak of memory, as the process itself knows them."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a validation took."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def catalog_million(scale: Scale) -> Iterator[Figure]:
    """Processor time of `essp validate` with many videos / with a thousand, and its peak of memory."""
    few, many = 1000, 10_000 if scale.quick else 1_000_000
    jobs = {rows: _job(scale.root, rows) for rows in (few, many)}
    rounds = [{rows: validate(job) for rows, job in jobs.items()} for _ in range(scale.rounds)]
    ratio = spread([runs[many].cpu_s / runs[few].cpu_s for runs in rounds])
    detail = {
        f"{rows}_{name}": round(min(getattr(runs[rows], name) for runs in rounds), 2)
        for rows in jobs
        for name in ("cpu_s", "wall_s", "peak_mb")
    }
    yield Figure.of("catalog_million", ratio, Aim(most=2.5), detail)
    peaks = spread([runs[many].peak_mb for runs in rounds])
    yield Figure("catalog_million_mb", peaks.median, "MB", Aim(most=400), peaks.low, peaks.high, {"rows": many})


def validate(job: Path) -> Run:
    """Validate a job in a new process."""
    begin = time.perf_counter()
    command = [sys.executable, "-c", _VALIDATE, "validate", str(job), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    wall_s = time.perf_counter() - begin
    cpu_s, peak_mb = map(float, done.stdout.splitlines()[-1].split())
    return Run(cpu_s, wall_s, peak_mb)


def _job(root: Path, rows: int) -> Path:
    """A job over `rows` videos. A process of its own makes the catalog, so this one does not keep that memory."""
    folder = root / f"catalog_{rows}"
    folder.mkdir(parents=True, exist_ok=True)
    catalog = folder / "catalog.parquet"
    if not catalog.exists():
        process = multiprocessing.get_context("spawn").Process(target=write, args=(catalog, rows))
        process.start()
        process.join()
        if process.exitcode:
            raise RuntimeError(f"the catalog of {rows} videos could not be made; the error stands above")
    job = folder / "job.yaml"
    job.write_text(
        yaml.safe_dump(
            {
                "name": "bench",
                "output": f"file://{folder}/out",  # validating writes nothing
                "data": {"catalog": f"file://{catalog}"},
                "clip": {"frames": 11, "resize": {"mode": "crop", "height": 128, "width": 128}},
                "streams": {"rgb": {}, "flow": {"feature": "flow", "params": {"length": 10}}},
                "trainers": {name: {"stream": name, "augment": {"crop": 112}} for name in ("rgb", "flow")},
                "epochs": 2,
                "limits": {"budget": "2GiB"},
            }
        ),
        encoding="utf-8",
    )
    return job


def write(path: Path, rows: int) -> None:
    """Write a catalog of `rows` videos."""
    partial = path.with_name(f".{os.getpid()}-{path.name}")
    partial.write_bytes(pack_table(table_of(rows)))
    partial.rename(path)


def table_of(rows: int, gop: int = 60, seed: int = 0) -> pa.Table:
    """A catalog of `rows` videos in three splits, in the order of their ids; the videos themselves do not exist."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, CLASSES, rows)
    splits = rng.choice(["train", "validation", "test"], rows, p=[0.86, 0.07, 0.07])
    names = _texts(rng, rows, 11)
    ids = pa.array(
        f"{split}/class {number:03d}/{name}_{n % 600:06d}_{n % 600 + 10:06d}.mp4"
        for n, (split, number, name) in enumerate(zip(splits, classes, names, strict=True))
    )
    order = pc.array_sort_indices(ids)
    ids = ids.take(order)
    counts = np.where(rng.random(rows) < 0.1, rng.integers(30, _FRAMES, rows), _FRAMES)
    sizes = counts * rng.integers(1500, 6000, rows)
    frames, owner, edges = _keyframes(counts, gop)
    offsets = np.minimum(48 + (frames / counts[owner] * sizes[owner]).astype(np.int64), sizes[owner])
    odd = rng.random(rows) < 0.02
    packed = {int(count): _variable(int(count)) for count in np.unique(counts[odd])}
    small = rng.random(rows) < 0.3
    columns: dict[str, object] = {
        "id": ids,
        "uri": pc.binary_join_element_wise(_SOURCE, ids, "/"),
        "class_name": pa.array(f"class {number:03d}" for number in classes.tolist()).take(order),
        "split": pa.array(splits).take(order),
        "size_bytes": sizes,
        "etag": _texts(rng, rows, 32, _HEX),
        "container": ["mov"] * rows,
        "codec": ["h264"] * rows,
        "pixel_format": ["yuv420p"] * rows,
        "width": np.where(small, 426, 640),
        "height": np.where(small, 240, 360),
        "rotation": np.zeros(rows, np.int32),
        "fps": np.where(odd, rng.normal(_RATE, 1, rows), _RATE),
        "duration_s": counts / _RATE,
        "start_s": np.zeros(rows),
        "timestamps": [packed[count] if vary else b"" for count, vary in zip(counts.tolist(), odd, strict=True)],
        "time_base_num": np.ones(rows, np.int64),
        "time_base_den": np.full(rows, _CLOCK),
        "frame_count": counts,
        "first_frame": np.zeros(rows, np.int64),
        "last_frame": counts - 1,
        "seekable": np.ones(rows, np.bool_),
        "lookahead": np.full(rows, 3),
        "keyframe_pts": pa.ListArray.from_arrays(edges, frames * _TICK),
        "keyframe_frame": pa.ListArray.from_arrays(edges, frames),
        "keyframe_offset": pa.ListArray.from_arrays(edges, offsets),
        "group": [
            f"person {split}-{number}"  # nobody is in two splits
            for split, number in zip(
                splits[order.to_numpy()], rng.integers(0, 1 + rows // 4, rows).tolist(), strict=True
            )
        ],
        "event": [""] * rows,
        "view": [""] * rows,
        "origin_s": np.zeros(rows),
        "extra": [""] * rows,
        "targets": [b""] * rows,
        "notes": [""] * rows,
        "sums": [_checksums(rng, size) for size in sizes.tolist()],
        "unproven": [""] * rows,
        "error": [None] * rows,
    }
    return pa.table(
        [pa.array(columns[field.name]).cast(field.type) for field in SCHEMA],
        schema=SCHEMA,
    )


def _checksums(rng: np.random.Generator, size_bytes: int) -> bytes:
    block = block_bytes_of(size_bytes)
    return BlockSums(block, rng.bytes(4 * -(-size_bytes // block))).packed()


def _texts(rng: np.random.Generator, rows: int, length: int, letters: NDArray[np.uint8] = _LETTERS) -> list[str]:
    drawn = letters[rng.integers(0, len(letters), (rows, length))]
    return drawn.view(f"S{length}").ravel().astype(str).tolist()


def _keyframes(counts: NDArray[np.int64], gop: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """The keyframes of all files, the file of each, and where those of a file begin."""
    each = -(-counts // gop)
    edges = np.concatenate([[0], np.cumsum(each)])
    owner = np.repeat(np.arange(len(counts)), each)
    return (np.arange(edges[-1]) - edges[:-1][owner]) * gop, owner, edges.astype(np.int32)


def _variable(count: int) -> bytes:
    rng = np.random.default_rng(count)
    return pack(np.cumsum(rng.choice([_TICK // 2, _TICK, 2 * _TICK], count)).tolist())
