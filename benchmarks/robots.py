"""Frames of robots: each of them once an epoch, in an order that is shuffled, against random reads and one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks import embedded, peers
from benchmarks.embedded import NullJob
from benchmarks.figures import Aim, Figure, Scale, clips_of, costs_in_ms
from benchmarks.inputs import ROBOTS
from benchmarks.measure import Costs, Work, cheapest, cpu, in_rounds, ratio

_VISITS = 2
"""Of a window; runs are of whole windows."""
_WINDOWS = 5
"""Of the shorter run: a few more than the budget holds. Until then the memory of clips is new, then used again."""
_VISIT = 240
"""Frames that a visit decodes in one pass, at least."""
_FRAMES = 8
"""Of the longer windows, which follow one another."""
_READ = 8
"""Windows of the shorter run of a peer."""


def robot(scale: Scale) -> Iterator[Figure]:
    """Frames a second of a core: ESSP / the cheapest peer's windows at random; ESSP / a loop that decodes a file once.

    Windows of one frame, as policies without a history take them, and of eight; each frame is shown once an epoch.
    """
    for videos in ROBOTS:
        catalog = scale.catalog(videos)
        for frames in (1, _FRAMES):
            visit = (40 if scale.quick else max(_VISIT, 2 * videos.gop)) // frames
            job = NullJob(catalog, frames=frames, clips_per_visit=visit, window=_VISITS * visit, step=frames)
            yield from _figures(scale, job, videos.name + ("" if frames == 1 else f".{frames}"))


def _figures(scale: Scale, job: NullJob, name: str) -> Iterator[Figure]:
    asked = clips_of(replace(job, clips_per_visit=1, window=64), 3 * _READ)  # as a shuffled order has them
    count = 2 if scale.quick else _READ
    able = [reader for reader, make in peers.readers().items() if _reads(make, asked[0], job.size)]
    works = {reader: Work(peers.loop, (reader, asked, job.size), count) for reader in able}
    several = (1 if scale.quick else _WINDOWS) * job.window
    works["essp"] = Work(embedded.run, (job,), several)
    paths = sorted({clip.path for clip in asked})
    works["one_pass"] = Work(peers.one_pass, (paths, job.size, job.frames), several)
    costs: Costs = in_rounds(works, scale.rounds)
    best, cost = cheapest(costs, able, cpu)
    detail: dict[str, float | str] = {"best_peer": best, **costs_in_ms(costs)}
    aim = Aim(least=5) if job.frames == 1 else None  # a longer window shares its decode among its own frames
    yield Figure.of(f"robot_frames.{name}", ratio(cost, costs["essp"], cpu), aim, detail)
    yield Figure.of(f"robot_limit.{name}", ratio(costs["one_pass"], costs["essp"], cpu), Aim(least=0.85), detail)


def _reads(make: Callable[[], peers.ReadClip], clip: peers.Clip, size: int) -> bool:
    """Whether a peer has a decoder for this kind of video: OpenCV's wheels have none for AV1 in software."""
    try:
        make()(clip, size)
    except Exception:  # noqa: BLE001  each peer has errors of its own
        return False
    return True
