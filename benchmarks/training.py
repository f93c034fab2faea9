"""Feeding trainers: samples a second by ESSP over those by torch DataLoaders with PyAV, on the same cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks import embedded, peers
from benchmarks.embedded import NullJob
from benchmarks.figures import Aim, Figure, Scale, clips_of, costs_in_ms
from benchmarks.inputs import LONG_GOP
from benchmarks.measure import Ratio, Work, cpu, in_rounds, ratio, wall
from essp_common.runtime.cores import cpu_count

_STREAMS = ("rgb", "flow", "frame_diff")
_THREE = Aim(least=2.5)
_THREE_WITH_LOCALITY = Aim(least=5)
_WINDOW = 64


def dataloader_one_stream(scale: Scale) -> Iterator[Figure]:
    """One training on rgb. Nothing can be shared, so this is what it costs to have a path between processes."""
    if scale.full:
        yield from _compared("dataloader_one_stream", ("rgb",), 0, None, scale)


def three_streams(scale: Scale) -> Iterator[Figure]:
    """Trainers on rgb, flow and frame differences at once: decoded once, or once by each DataLoader."""
    yield from _compared("three_streams", _STREAMS, 0, _THREE, scale)


def three_streams_locality(scale: Scale) -> Iterator[Figure]:
    """The same with a locality window."""
    yield from _compared("three_streams_locality", _STREAMS, _WINDOW, _THREE_WITH_LOCALITY, scale)


def _compared(name: str, features: Sequence[str], locality: int, aim: Aim | None, scale: Scale) -> Iterator[Figure]:
    clips = 8 if scale.quick else max(locality, scale.clips)
    job = NullJob(scale.catalog(LONG_GOP), tuple(features), locality=locality, processes=cpu_count(), collate=True)
    workers = max(1, cpu_count() // len(features))
    loaders = Work(peers.data_loaders, (clips_of(job, 3 * clips), job.size, features, workers), clips)
    costs = in_rounds({"essp": Work(embedded.run, (job,), clips), "loaders": loaders}, scale.rounds)
    by_wall, by_cpu = (ratio(costs["loaders"], costs["essp"], figure) for figure in (wall, cpu))
    yield Figure.of(name, by_wall, aim, costs_in_ms(costs))
    yield _cpu_figure(f"{name}.cpu", by_cpu)


def _cpu_figure(name: str, ratio: Ratio) -> Figure:
    """What the ratio of samples a second comes to where all cores are busy; other load does not move it."""
    return Figure.of(name, ratio, None, {})
