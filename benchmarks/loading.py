"""`essp.Loader` against a bare loop over the same decode: what it costs to have clips made by other processes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import peers
from benchmarks.embedded import NullJob
from benchmarks.figures import Aim, Figure, Scale, clips_of, costs_in_ms
from benchmarks.inputs import LONG_GOP, SETS
from benchmarks.measure import Work, cpu, in_rounds, ratio

if TYPE_CHECKING:
    from essp import Loader

_AIM = Aim(most=1.05)
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


def batches(job: NullJob, count: int) -> None:
    """Take so many clips, an epoch of them, in batches."""
    with tempfile.TemporaryDirectory(prefix="essp-benchmark-") as folder, loader_of(job, count, Path(folder)) as loader:
        taken = sum(len(batch.frames) for batch in loader)
    if taken != count:
        raise RuntimeError(f"{taken} clips came, and {count} were asked for")


def loader_of(job: NullJob, count: int, folder: Path) -> Loader:
    """A loader of the clips of a job, all their frames; the job is written to `folder`."""
    from essp import Loader  # torch is in no other measured process

    spec = job.spec(count, f"file://{folder}")
    frames = spec.streams["rgb"].model_copy(update={"params": {"frames": job.frames}})
    file = folder / "job.yaml"
    file.write_text(spec.model_copy(update={"streams": {"rgb": frames}}).model_dump_json(), encoding="utf-8")
    return Loader.of(file, batch_size=_BATCH, decoders=job.processes)


def stacked(clips: Sequence[peers.Clip], size: int, count: int) -> None:
    """Read so many clips, one after the other, and stack them to batches."""
    read = peers.readers()[_READER]()
    for begin in range(0, count, _BATCH):
        np.stack([read(clips[index % len(clips)], size) for index in range(begin, min(count, begin + _BATCH))])
