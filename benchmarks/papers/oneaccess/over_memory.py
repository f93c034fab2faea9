"""Photographs that are larger than memory, over the tiers: a disk, an S3 server, a local disk before the S3 server.

A loop reads two epochs in a process that a memory cgroup limits (`limited.py`), its workers and its page cache
included; files are evicted before. The S3 server is outside that limit, on this machine, and has its files in memory,
so that its disk is not measured, but copying through a socket is.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import essp
from benchmarks.image_epochs import closed
from benchmarks.image_peers import Photos, torch_loader
from benchmarks.image_sets import CROP
from benchmarks.papers.document import markdown, spread
from benchmarks.papers.machine import apart, cpu_s
from benchmarks.papers.oneaccess.limited import Group, limited
from benchmarks.papers.oneaccess.pictures import large, large_records
from benchmarks.papers.study import Options, Part, Steps, Values
from essp.bench.page_cache import evict
from essp.servers.servers import S3Server
from essp_common.quantities import size
from essp_common.wiring import open_store

LIMIT_BYTES = 2**30
_MEMORY = "256MiB"
_BATCH = 32
_BUCKET = "essp"


@dataclass(frozen=True, slots=True)
class Way:
    """A loader, and where it reads."""

    title: str
    encode: str = "raw"
    """Records of pixels, `keep`: of the files; or `files`: no records, a `DataLoader` with two workers."""
    s3: bool = False
    disk: float = 0.0
    """Share of the records for which there is a disk before the S3 server."""
    limited: bool = True


WAYS = {
    "free": Way("records of pixels on a disk, without a limit", limited=False),
    "raw": Way("records of pixels on a disk"),
    "jpeg": Way("records of JPEG files on a disk", "keep"),
    "files": Way("`DataLoader`, JPEG files on a disk, 2 workers", "files"),
    "s3": Way("records of pixels in S3", s3=True),
    "s3_half": Way("the same, half of them fit on a disk", s3=True, disk=0.5),
    "s3_disk": Way("the same, all of them fit on a disk", s3=True, disk=1.1),
}


def measured(options: Options, way: Way) -> dict[str, Any]:
    """Two epochs, in a process of their own."""
    limit_bytes = LIMIT_BYTES // 2 if options.quick else LIMIT_BYTES
    records = None if way.encode == "files" else large_records(options, "keep" if way.encode == "keep" else "raw")
    source = large(options) if records is None else records
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        if way.s3:
            bucket = Path(folder) / "buckets" / _BUCKET
            shutil.copytree(source, bucket / "out", copy_function=os.link)
            with served(Path(folder), bucket) as uri:
                return _two_epochs(way, f"{uri}/out", _bytes(source), Path(folder) / "disk", limit_bytes)
        evict(str(path) for path in source.rglob("*") if path.is_file())
        return _two_epochs(way, str(source), _bytes(source), Path(folder), limit_bytes)


def _two_epochs(way: Way, source: str, data_bytes: int, disk: Path, limit_bytes: int) -> dict[str, Any]:
    if not way.limited:
        return {"bytes": data_bytes, "epochs": apart(_epochs, way, source, data_bytes, disk, None)}
    with limited(limit_bytes) as group:
        epochs = apart(_epochs, way, source, data_bytes, disk, group)
        return {"bytes": data_bytes, "limit": limit_bytes, "peak": group.peak_bytes, "epochs": epochs}


def _epochs(way: Way, source: str, data_bytes: int, disk: Path, group: Group | None) -> list[dict[str, float]]:
    if group is not None:
        group.join()
    loader = _loader(way, source, data_bytes, disk)
    found = []
    for _ in range(2):
        began, cpu, before, had = time.perf_counter(), cpu_s(), _device_bytes(), _store_bytes(loader)
        batches = sum(1 for _ in loader)
        took = {"s": round(time.perf_counter() - began, 3), "cpu_s": round(cpu_s() - cpu, 3), "batches": batches}
        found.append(took | {"device": _device_bytes() - before, "store": _store_bytes(loader) - had})
    closed(loader)
    return found


def _loader(way: Way, source: str, data_bytes: int, disk: Path) -> Iterable[Any]:
    if way.encode == "files":
        photos = Path(source)
        return torch_loader(Photos(photos, len(list(photos.iterdir()))), _BATCH, 2)
    room: dict[str, Any] = {"disk": int(way.disk * data_bytes), "disk_folder": disk} if way.disk else {}
    side = CROP if way.encode == "keep" else None
    return essp.Records(source, batch_size=_BATCH, size=side, memory=_MEMORY, **room)


def _store_bytes(loader: Iterable[Any]) -> float:
    return loader.reading["store_bytes"] if isinstance(loader, essp.Records) else 0.0


def _device_bytes() -> int:
    """What this process and its children that have ended have read from block devices."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


@contextmanager
def served(logs: Path, bucket: Path) -> Iterator[str]:
    """The URI of a bucket, a folder, behind an S3 server (that of `essp servers up --keep`) that knows its objects.

    Sets the variables of the environment that a client needs.
    """
    with S3Server(logs, folder=bucket.parent) as server:
        root = server.store(bucket.name)
        given = {"ESSP_STORES": f'["{root}", "file:///"]', "AWS_ACCESS_KEY_ID": "essp", "AWS_SECRET_ACCESS_KEY": "essp",
                 "AWS_DEFAULT_REGION": "us-east-1"}  # fmt: skip
        before = {name: os.environ.get(name) for name in given}
        os.environ |= given
        try:
            store = open_store(root)
            for found in store.list():
                store.head(found.key)  # the server hashes an object when it is first asked for
            yield f"s3://{bucket.name}"
        finally:
            os.environ |= {name: value for name, value in before.items() if value is not None}
            for name in (name for name, value in before.items() if value is None):
                del os.environ[name]


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _steps(options: Options) -> Steps:
    for number in range(options.rounds):
        for name, way in WAYS.items():
            yield f"{name}.{number}", partial(measured, options, way)


def _table(values: Values) -> str:
    rows = []
    for name, way in WAYS.items():
        runs = [value for key, value in values.items() if key.startswith(f"{name}.")]
        if not runs:
            continue
        limit = size(runs[0]["limit"]) if "limit" in runs[0] else "none"
        cells = [way.title, size(runs[0]["bytes"]), limit]
        for epoch in range(2):
            cells.append(spread([run["epochs"][epoch]["s"] for run in runs]))
        cells.append(spread([run["epochs"][1]["cpu_s"] for run in runs]))
        for what in ("device", "store") if way.s3 else ("device",):
            cells.append(spread([run["epochs"][1][what] / 2**30 for run in runs], "{:.2f}"))
        rows.append(cells + [""] * (not way.s3))
    head = ["loader", "data", "limit of memory", "epoch 1, s", "epoch 2, s", "its CPU s", "from the disk, GiB",
            "from S3, GiB"]  # fmt: skip
    return markdown(head, rows)


PART = Part("over_memory", "two epochs of photographs that are larger than memory", _steps, _table, quiet=True,
            uses=("rounds", "photos"), needs=("photos",))  # fmt: skip
