"""`essp.Loader` against a bare loop over the same decode, and several loops on one decode against one."""

from __future__ import annotations

import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import peers
from benchmarks.embedded import NullJob
from benchmarks.figures import Aim, Figure, Scale, clips_of, costs_in_ms
from benchmarks.inputs import LONG_GOP, SETS
from benchmarks.measure import Work, cpu, in_rounds, per_clip, ratio, wall
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import read_catalog, write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.objects.directory import DirectoryStore
from essp_common.wiring import Stores

if TYPE_CHECKING:
    from essp import Loader

_AIM = Aim(most=1.05)
_SHARED_AIM = Aim(most=1.3)
_VIEWS_AIM = Aim(most=1.0)
_LEARNING = 0.04
_TIMES = 4
"""Runs of `shared` have this many times the clips that other runs have."""
_BATCH = 8
_READER = "pyav_open"
"""The peer that keeps as many files open as ESSP does."""


def loader_overhead(scale: Scale) -> Iterator[Figure]:
    """CPU of a clip: `essp.Loader` / a loop that decodes the same clips one by one and stacks them."""
    for videos in (SETS[1], LONG_GOP):
        job = NullJob(scale.catalog(videos))
        clips = scale.clips // _BATCH * _BATCH or _BATCH
        works = {
            "loader": Work(batches, (job,), clips),
            "loop": Work(stacked, (clips_of(job, 3 * clips), job.size), clips),
        }
        costs = in_rounds(works, scale.rounds)
        detail = costs_in_ms(costs)
        yield Figure.of(f"loader_overhead.{videos.name}", ratio(costs["loader"], costs["loop"], cpu), _AIM, detail)


def shared(scale: Scale) -> Iterator[Figure]:
    """Wall time of a clip for all of K loops that share each decode, over that of one. Each loop learns from a clip for
    4 % of the time that it takes to decode. No core idles, so on a machine of one's own the ratio by CPU time (`.cpu`)
    is the same; it can be measured beside others.

    Decoders make what the loops take and nothing beyond (`epochs=1`). Without that, decoders ran up to 250 clips ahead
    into an epoch that nobody took, the more the longer loops worked: what eight loops waited for was not their clips.
    Runs are longer than elsewhere, since the memory of each loop's batches is new in the first of them.
    """
    job = NullJob(scale.catalog(LONG_GOP), processes=2)
    clips = _TIMES * scale.clips // _BATCH * _BATCH or _BATCH
    decode = per_clip(Work(stacked, (clips_of(job, 3 * clips), job.size), clips))
    learn_ms = _LEARNING * decode.cpu_ms
    works = {f"{loops}": Work(together, (job, loops, learn_ms), clips) for loops in (1, 2, 4, 8)}
    costs = in_rounds(works, scale.rounds)
    detail = {"decode_ms": round(decode.cpu_ms, 1)} | costs_in_ms(costs)
    for loops in (2, 4, 8):
        aim = _SHARED_AIM if loops == 8 else None
        yield Figure.of(f"shared_k{loops}", ratio(costs[f"{loops}"], costs["1"], wall), aim, detail)
        yield Figure.of(f"shared_k{loops}.cpu", ratio(costs[f"{loops}"], costs["1"], cpu), aim, detail)


def loader_views(scale: Scale) -> Iterator[Figure]:
    """CPU of a sample of two views: one loader of both / two loaders, each of one view, zipped by hand.

    A sample is one frame of each view, as for a robot, so that what surrounds decoding shows. The two loaders draw the
    same moments, since their catalogs have the same videos but for the files.
    """
    rows = [row for row in _rows(scale.catalog(SETS[1])) if row.split == "train"]
    clips = _TIMES * scale.clips // _BATCH * _BATCH or _BATCH
    for name, per_visit in (("loader_views", 1), ("loader_views.k8", 8)):
        works = {
            "one": Work(of_views, (rows, ("left", "right"), per_visit), clips),
            "two": Work(of_views, (rows, (), per_visit), clips),
        }
        costs = in_rounds(works, scale.rounds)
        yield Figure.of(name, ratio(costs["one"], costs["two"], cpu), _VIEWS_AIM, costs_in_ms(costs))


def of_views(rows: Sequence[VideoRow], views: Sequence[str], per_visit: int, count: int) -> None:
    """Take `count` samples of two views: by one loader if `views` are named, otherwise by one for each."""
    from essp import Clip, Limits, Loader, Sampling

    left = [replace(row, id=f"{number}/left", event=f"{number}", view="left") for number, row in enumerate(rows)]
    right = [
        replace(row, id=f"{number}/right", event=f"{number}", view="right", class_name=left[number].class_name)
        for number, row in enumerate((*rows[1:], rows[0]))
    ]
    clip = Clip(frames=1)
    sampling = Sampling(kind="pooled", clips_per_epoch=count, clips_per_visit=per_visit)
    with tempfile.TemporaryDirectory(prefix="essp-benchmark-") as folder, ExitStack() as stack:
        loaders = []
        for number, own in enumerate([[*left, *right]] if views else [left, right]):
            write_catalog(DirectoryStore(folder), f"{number}.parquet", Catalog(own))
            loader = Loader(
                Path(folder) / f"{number}.parquet",
                validation_fraction=0,
                clip=dict.fromkeys(views, clip) if views else clip,
                batch_size=_BATCH,
                sampling=sampling,
                limits=Limits(epochs=1, decoders=1),
            )
            loaders.append(stack.enter_context(loader))
        taken = 0
        for batches_of_views in zip(*loaders, strict=True):
            taken += len(batches_of_views[0])
            if len({tuple(batch.meta["first_frame"]) for batch in batches_of_views}) > 1:
                raise RuntimeError("the two loaders are out of step")
    if taken != count:
        raise RuntimeError(f"{taken} samples came, and {count} were asked for")


def _rows(catalog: Path) -> list[VideoRow]:
    store, key = Stores(("file:///",)).resolve(f"file://{catalog}")
    return list(read_catalog(store, key).rows)


def together(job: NullJob, loops: int, learn_ms: float, count: int) -> None:
    """Have `loops` threads take an epoch of `count` clips each, and spend `learn_ms` of CPU time on each clip."""
    from essp import Clip, Limits, Loader, Sampling

    first = Loader(
        job.catalog,
        clip=Clip(job.frames, job.stride, job.size),
        batch_size=_BATCH,
        sampling=Sampling(clips_per_epoch=count),
        limits=Limits(epochs=1, decoders=job.processes, loops=loops),
    )
    with first, ThreadPoolExecutor(loops) as pool:
        loaders = [first, *(first.another() for _ in range(loops - 1))]
        taken = list(pool.map(lambda loader: _learn(loader, learn_ms), loaders))
        for loader in loaders[1:]:
            loader.close()
    if taken != [count] * loops:
        raise RuntimeError(f"{taken} clips came, and {count} were asked for")


def _learn(loader: Loader, learn_ms: float) -> int:
    taken = 0
    for batch in loader:
        clip, begun_s = bytes(batch.frames[0, 0].numpy()), time.thread_time()
        while 1000 * (time.thread_time() - begun_s) < learn_ms * len(batch):
            zlib.crc32(clip)  # lets other threads run, as the kernels of a network do
        taken += len(batch)
    return taken


def batches(job: NullJob, count: int) -> None:
    """Take an epoch of `count` clips, in batches."""
    with tempfile.TemporaryDirectory(prefix="essp-benchmark-") as folder, loader_of(job, count, Path(folder)) as loader:
        taken = sum(len(batch.frames) for batch in loader)
    if taken != count:
        raise RuntimeError(f"{taken} clips came, and {count} were asked for")


def loader_of(job: NullJob, count: int, folder: Path) -> Loader:
    """A loader of the clips of a job, all their frames; the job is written to `folder`."""
    from essp import Limits, Loader  # torch is in no other measured process

    spec = job.spec(count, f"file://{folder}")
    frames = spec.streams["rgb"].model_copy(update={"params": {"frames": job.frames}})
    file = folder / "job.yaml"
    file.write_text(spec.model_copy(update={"streams": {"rgb": frames}}).model_dump_json(), encoding="utf-8")
    return Loader.of(file, batch_size=_BATCH, limits=Limits(epochs=1, decoders=job.processes))


def stacked(clips: Sequence[peers.Clip], size: int, count: int) -> None:
    """Read `count` clips, one after the other, and stack them to batches of `size`."""
    read = peers.readers()[_READER]()
    for begin in range(0, count, _BATCH):
        np.stack([read(clips[index % len(clips)], size) for index in range(begin, min(count, begin + _BATCH))])
