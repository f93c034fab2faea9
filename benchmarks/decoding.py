"""Decoding: the whole embedded path against loops that do nothing else, by CPU time of a clip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from benchmarks import embedded, peers
from benchmarks.embedded import NullJob
from benchmarks.figures import Aim, Figure, Scale, clips_of, costs_in_ms
from benchmarks.inputs import ALL_SETS, LONG, LONG_GOP, REAL, SETS, Videos
from benchmarks.measure import Costs, Work, cheapest, cpu, in_rounds, ratio, wall

_OVERHEAD = Aim(most=1.05)
_SEEK = Aim(least=1.2)
_LOCALITY = Aim(least=5)
_CORES = Aim(least=1.85)
_WINDOW = 256
"""Seeds that are ordered together: with 8 videos about 32 of each, one work unit."""
_NEAR = 1.4
"""A peer that costs more than this many times as much as the cheapest in the first round is left out of the others."""
_LOOP = "pyav_open"
"""The loop that keeps as many files open as ESSP does."""


def decode_overhead(scale: Scale) -> Iterator[Figure]:
    """ESSP over the PyAV loop, the same clips one by one, where a group of pictures is short."""
    for videos in SETS:
        # Where a clip takes little, more of them tell it as exactly in the same time.
        clips = scale.clips * (3 if videos.width <= 320 and not scale.quick else 1)
        job = NullJob(scale.catalog(videos))
        works = {"essp": _essp(job, clips), _LOOP: _peer(_LOOP, job, clips)}
        yield _overhead(videos, in_rounds(works, scale.rounds))


def decode_peers(scale: Scale) -> Iterator[Figure]:
    """The cheapest of all peers over ESSP: clips one by one, and with a locality window; long groups, real clips."""
    for videos in ALL_SETS if scale.full else (LONG_GOP, REAL):
        job = NullJob(scale.catalog(videos))
        works = {"essp": _essp(job, scale.clips)}
        works |= {reader: _peer(reader, job, scale.clips) for reader in peers.readers()}
        if videos is LONG_GOP:
            # Whole windows only: the last, incomplete one would share less.
            window = replace(job, locality=8 if scale.quick else _WINDOW)
            works["essp_locality"] = _essp(window, window.locality)
        costs = _of_contenders(works, scale.rounds)
        yield _overhead(videos, costs)
        yield _against_best(f"decode_seek.{videos.name}", "essp", _SEEK, costs)
        if videos is LONG_GOP:
            yield _against_best(f"decode_locality.{videos.name}", "essp_locality", _LOCALITY, costs)


def _of_contenders(works: Mapping[str, Work], rounds: int) -> Costs:
    """Costs in rounds, of peers only if they come near to the cheapest of them in the first."""
    first = in_rounds(works, 1)
    readers = [name for name in works if name in peers.readers()]
    _, cheapest_cost = cheapest(first, readers, cpu)
    near = [name for name in readers if cpu(first[name][0]) <= _NEAR * cpu(cheapest_cost[0])]
    left = {name: work for name, work in works.items() if name not in readers or name in near or name == _LOOP}
    more = in_rounds(left, rounds - 1)
    return {name: first[name] + more[name] for name in left}


def cores(scale: Scale) -> Iterator[Figure]:
    """Clips a second with two decode processes over one: of many videos, and of a single long one, by visits of eight
    clips. Means nothing while others use the machine.

    Runs are longer than elsewhere: at the end of each, one of the processes is through before the other.
    """
    visits = NullJob(scale.catalog(LONG), frames=16, stride=8, clips_per_visit=8, window=64)
    jobs = (
        ("cores", NullJob(scale.catalog(LONG_GOP)), 3 * scale.clips),
        ("cores_long_video", visits, (1 if scale.quick else 2) * visits.window),
    )
    for name, job, clips in jobs:
        works = {"one": _essp(job, clips), "two": _essp(replace(job, processes=2), clips)}
        costs = in_rounds(works, scale.rounds)
        yield Figure.of(name, ratio(costs["one"], costs["two"], wall), _CORES, costs_in_ms(costs))


def _overhead(videos: Videos, costs: Costs) -> Figure:
    over = ratio(costs["essp"], costs[_LOOP], cpu)
    return Figure.of(f"decode_overhead.{videos.name}", over, _OVERHEAD, _detail(costs, ("essp", _LOOP)))


def _against_best(name: str, ours: str, aim: Aim, costs: Costs) -> Figure:
    readers = [name for name in costs if name in peers.readers()]
    best, cost = cheapest(costs, readers, cpu)
    detail = {"best_peer": best, **_detail(costs, (ours, *readers))}
    return Figure.of(name, ratio(cost, costs[ours], cpu), aim, detail)


def _detail(costs: Costs, names: Iterable[str]) -> dict[str, float | str]:
    return costs_in_ms({name: costs[name] for name in names})


def _essp(job: NullJob, clips: int) -> Work:
    return Work(embedded.run, (job,), clips)


def _peer(reader: str, job: NullJob, clips: int) -> Work:
    return Work(peers.loop, (reader, clips_of(job, 3 * clips), job.size), clips)
