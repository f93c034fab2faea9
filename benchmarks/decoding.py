"""Decoding: the whole embedded path against loops that do nothing else, by CPU time of a clip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks import embedded, peers
from benchmarks.embedded import NullJob
from benchmarks.figures import Aim, Figure, Scale, clips_of, costs_in_ms
from benchmarks.inputs import LARGE_SETS, LONG_GOP, SETS
from benchmarks.measure import Work, cheapest, cpu, in_rounds, ratio, wall

_OVERHEAD = Aim(most=1.05)
_SEEK = Aim(least=1.2)
_LOCALITY = Aim(least=5)
_CORES = Aim(least=1.9)
_WINDOW = 256
"""Seeds that are ordered together: with 8 videos about 32 of each, one work unit."""


def decode_overhead(scale: Scale) -> Iterator[Figure]:
    """ESSP over PyAV, the same clips one by one. PyAV keeps as many files open as ESSP does."""
    for video_set in (*SETS, *LARGE_SETS) if scale.full else SETS:
        job = NullJob(scale.catalog(video_set))
        # Where a clip takes little, more of them tell it as exactly in the same time.
        clips = scale.clips * (3 if video_set.width <= 320 and not scale.quick else 1)
        works = {
            "essp": _essp(job, clips),
            "pyav": _peer("pyav_open", job, clips),
            "pyav_reopen": _peer("pyav", job, clips),
        }
        costs = in_rounds(works, scale.rounds)
        over = ratio(costs["essp"], costs["pyav"], cpu)
        yield Figure.of(f"decode_overhead.{video_set.name}", over, _OVERHEAD, costs_in_ms(costs))


def decode_seek(scale: Scale) -> Iterator[Figure]:
    """The cheapest of all peers over ESSP, clips one by one, few keyframes."""
    yield _against_best("decode_seek", NullJob(scale.catalog(LONG_GOP)), scale.clips, _SEEK, scale)


def decode_locality(scale: Scale) -> Iterator[Figure]:
    """The same with a locality window: seeds of a video are decoded together."""
    job = NullJob(scale.catalog(LONG_GOP), locality=8 if scale.quick else _WINDOW)
    # Whole windows only: the last, incomplete one would share less.
    yield _against_best("decode_locality", job, job.locality, _LOCALITY, scale)


def cores(scale: Scale) -> Iterator[Figure]:
    """Clips a second with two decode processes over one. Means nothing while others use the machine."""
    job = NullJob(scale.catalog(LONG_GOP))
    works = {"one": _essp(job, scale.clips), "two": _essp(replace(job, processes=2), scale.clips)}
    costs = in_rounds(works, scale.rounds)
    yield Figure.of("cores", ratio(costs["one"], costs["two"], wall), _CORES, costs_in_ms(costs))


def _against_best(name: str, job: NullJob, clips: int, aim: Aim, scale: Scale) -> Figure:
    works = {"essp": _essp(job, clips)} | {reader: _peer(reader, job, scale.clips) for reader in peers.readers()}
    costs = in_rounds(works, scale.rounds)
    best, cost = cheapest(costs, list(peers.readers()), cpu)
    return Figure.of(name, ratio(cost, costs["essp"], cpu), aim, {"best_peer": best, **costs_in_ms(costs)})


def _essp(job: NullJob, clips: int) -> Work:
    return Work(embedded.run, (job,), clips)


def _peer(reader: str, job: NullJob, clips: int) -> Work:
    return Work(peers.loop, (reader, clips_of(job, 3 * clips), job.size), clips)
