"""Evaluation by many views: ten clips of each video, three crops of each clip, as papers report it.

A data set that has an item for each view decodes each clip three times, and what clips have in common once for each of
them. `essp.Loader` gives all clips of a video by one pass over it, wide enough for the three crops. The loop cuts them
out without a copy: what makes floats of a batch takes parts of pictures, too. Peers are asked for square pictures in
place of wide ones of which they would cut a square: they scale less than a real view takes, so the figure is rather too
small than too large.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import peers
from benchmarks.figures import Aim, Figure, Scale, costs_in_ms
from benchmarks.inputs import MANY
from benchmarks.measure import Work, cheapest, cpu, in_rounds, ratio
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import read_catalog, write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.objects.directory import DirectoryStore
from essp_common.wiring import Stores

_AIM = Aim(least=10)
_CLIPS, _CROPS = 10, 3
_VIEWS = _CLIPS * _CROPS
"""Of a video."""
_FRAMES, _STRIDE = 16, 8
_SIDE, _WIDTH = 256, 456
"""Of a crop, and of the picture that three of them cover: 16:9."""
_VIDEOS = 6
"""Of the shorter run of ESSP, which is quicker; peers read one."""


def multiview(scale: Scale) -> Iterator[Figure]:
    """CPU of a view: cheapest peer, each view by itself / ESSP, all views of a video by one pass."""
    rows = _rows(scale.catalog(replace(MANY, names=1)))
    videos = 1 if scale.quick else _VIDEOS
    stride = 2 if scale.quick else _STRIDE
    clips = [clip for row in rows[:3] for clip in _clips(row, stride) for _ in range(_CROPS)]
    works = {name: Work(peers.loop, (name, clips, _SIDE), _VIEWS) for name in peers.readers()}
    works["essp"] = Work(views, (rows[: 3 * videos], stride), videos * _VIEWS)
    costs = in_rounds(works, scale.rounds)
    best, cost = cheapest(costs, tuple(peers.readers()), cpu)
    detail = {"best_peer": best, "views": f"{_CLIPS} x {_CROPS}", **costs_in_ms(costs)}
    yield Figure.of("multiview", ratio(cost, costs["essp"], cpu), _AIM, detail)


def views(rows: list[VideoRow], stride: int, count: int) -> None:
    """Take `count` views, all those of one video after the other."""
    from essp import Clip, Limits, Loader, Sampling  # torch is in no other measured process

    made = 0
    with tempfile.TemporaryDirectory(prefix="essp-benchmark-") as folder:
        # Splits that a catalog has to have, whichever is loaded.
        others = [replace(rows[-1], id=split, split=split) for split in ("train", "validation")]
        catalog = Catalog((*rows[: count // _VIEWS], *others))
        write_catalog(DirectoryStore(folder), "catalog.parquet", catalog)
        clip = Clip(_FRAMES, stride, (_SIDE, _WIDTH))
        with Loader(
            Path(folder) / "catalog.parquet",
            split="test",
            clip=clip,
            batch_size=_CLIPS,
            sampling=Sampling(clips_per_video=_CLIPS),
            limits=Limits(epochs=1, decoders=1),
        ) as loader:
            for batch in loader:
                frames = batch.frames.numpy()
                for left in np.linspace(0, _WIDTH - _SIDE, _CROPS, dtype=int).tolist():
                    made += len(frames[:, :, :, left : left + _SIDE])
    if made != count:
        raise RuntimeError(f"{made} views came, and {count} were asked for")


def _clips(row: VideoRow, stride: int) -> list[peers.Clip]:
    """The clips of a video that a loader gives: in the middle of equal parts."""
    places = row.frame_count - (_FRAMES - 1) * stride
    path = row.uri.removeprefix("file://")
    return [peers.Clip(path, (2 * n + 1) * places // (2 * _CLIPS), _FRAMES, stride) for n in range(_CLIPS)]


def _rows(catalog: Path) -> list[VideoRow]:
    """The longer videos of a set, as a test split."""
    store, key = Stores(("file:///",)).resolve(f"file://{catalog}")
    return [replace(row, split="test") for row in read_catalog(store, key).rows if row.split == "train"]
