"""What it costs to make a catalog: of the index of files instead of all their frames, and of very many files.

`catalog_quick` compares `essp catalog build --quick` with decoding every frame once, file by file, in processor time of
one process, and counts the bytes that it reads of a file of 30 MB in a store. `catalog_listing` runs `essp catalog
build` on folders of 100,000 and of 300,000 files, which are all in the catalog already, each in a process of its
own: what is measured is the listing, the comparison and the writing, and no file is opened. The files are hard links of
a few bytes.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import Aim, Figure, Scale
from benchmarks.measure import spread
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.objects.ranged import RangedFile
from essp_common.wiring import open_store
from essp_engine.video.quick import quick
from essp_engine.video.synthetic import Encoding, write_video

_QUICK_AIM, _BYTES_AIM, _LISTING_AIM = Aim(most=0.02), Aim(most=1.0), Aim(most=0.1)
_SIZES = (100_000, 300_000)
_LINKS = 50_000
"""Of one file: file systems allow no more than 65,000."""
_OF_A_FOLDER = 1000
_BUILD = """
import sys, time
from essp.catalog.build import build
folder, out = sys.argv[1:]
begun = time.process_time()
built = build(folder, out, ["file:///"])
peak_kb = open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]
print(time.process_time() - begun, int(peak_kb) / 1024, built.read, built.reused)
"""


def catalog_quick(scale: Scale) -> Iterator[Figure]:
    """Of an H.264 file of 30 MB: 640x360, noise, a keyframe in 60 frames."""
    path = scale.root / ("noise-quick.mp4" if scale.quick else "noise.mp4")
    if not path.exists():
        scale.root.mkdir(parents=True, exist_ok=True)
        frames = 12 if scale.quick else 420
        write_video(path, _noise(frames), Encoding(gop=60, bframes=2))
    index = [_cpu_s(lambda: quick(str(path))) for _ in range(max(3, scale.rounds))]
    whole = [_cpu_s(lambda: _decode(path)) for _ in range(scale.rounds)]
    detail: dict[str, float | str] = {
        "index_cpu_ms": round(1000 * min(index), 3),
        "decode_cpu_ms": round(1000 * min(whole), 1),
        "file_mb": round(path.stat().st_size / 1e6, 1),
    }
    yield Figure.of("catalog_quick", spread([min(index) / each for each in whole]), _QUICK_AIM, detail)
    read_mb = _bytes_read(path) / 2**20
    yield Figure("catalog_quick_mb", read_mb, "MiB", _BYTES_AIM, read_mb, read_mb, detail)


def catalog_listing(scale: Scale) -> Iterator[Figure]:
    """Of 100,000 and 300,000 files that are in the catalog already."""
    sizes = (100, 1000) if scale.quick else _SIZES
    peaks, detail = [], dict[str, float | str]()
    for files in sizes:
        folder = scale.root / f"listed-{files}"
        try:
            out = _listed(folder, files)
            command = [sys.executable, "-c", _BUILD, f"file://{folder}", f"file://{out}"]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if said[2:] != ["0", str(files)]:
            raise RuntimeError(f"the build opened {said[2]} files")
        peaks.append(float(said[1]))
        detail |= {f"cpu_s_{files}": round(float(said[0]), 2), f"peak_mb_{files}": round(float(said[1]), 1)}
    growth = 1024 * (peaks[1] - peaks[0]) / (sizes[1] - sizes[0])
    yield Figure("catalog_listing", growth, "KiB/file", _LISTING_AIM, growth, growth, detail)
    yield Figure("catalog_listing_mb", peaks[0], "MB", None, peaks[0], peaks[0], detail)


def _noise(frames: int) -> Iterator[NDArray[np.uint8]]:
    rng = np.random.default_rng(0)
    for _ in range(frames):
        yield rng.integers(0, 256, (360, 640, 3), np.uint8)


def _cpu_s(do: Callable[[], object]) -> float:
    begun = time.process_time()
    do()
    return time.process_time() - begun


def _decode(path: Path) -> None:
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        for _ in container.decode(video=0):
            pass


def _bytes_read(path: Path) -> int:
    """Bytes that a store delivers."""
    data = path.read_bytes()
    lengths: list[int] = []

    def fetch(start: int, length: int) -> bytes:
        lengths.append(length)
        return data[start : start + length]

    if quick(io.BufferedReader(RangedFile(len(data), fetch))) is None:
        raise RuntimeError("the file has no facts without decoding")
    return sum(lengths)


def _listed(folder: Path, files: int) -> Path:
    """A folder of class folders with this number of files, and its catalog beside them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source = folder
    for number in range(files):
        if number % _LINKS == 0:
            source = folder / f"bytes-{number}.bin"
            source.write_bytes(b"x" * 100)
        if number % _OF_A_FOLDER == 0:
            (folder / f"class{number // _OF_A_FOLDER:04d}").mkdir()
        os.link(source, folder / f"class{number // _OF_A_FOLDER:04d}" / f"video_{number:07d}.mp4")
    store = open_store(f"file://{folder}")
    rows = [
        VideoRow(
            *(info.key, store.uri(info.key), "", "", info.size_bytes, info.etag, "mov", "h264", "yuv420p", 320, 240),
            fps=30.0, duration_s=10.0, time_base=(1, 15360), frame_count=300, last_frame=299, seekable=True,
            lookahead=3, keyframe_pts=(0, 30720, 61440), keyframe_frame=(0, 60, 120),
            keyframe_offset=(48, 90_000, 180_000),
        )
        for info in store.list() if info.key.endswith(".mp4")
    ]  # fmt: skip
    write_catalog(store, "catalog.parquet", Catalog(rows))
    return folder / "catalog.parquet"
