"""The pooled plan on as many videos as real sets have, against peers that read clip by clip, and against its limit."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import embedded, peers
from benchmarks.embedded import NullJob
from benchmarks.figures import Aim, Figure, Scale, clips_of, costs_in_ms, units_of
from benchmarks.inputs import MANY
from benchmarks.measure import Costs, Work, cheapest, cpu, in_rounds, ratio

_VISITS = 16
"""Of a window. Runs are of whole windows, since the last, incomplete one shares less."""
_AIMS = {1: Aim(least=0.95), 8: Aim(least=2), 32: Aim(least=5)}
_LIMITS = {8: Aim(most=1.2), 32: Aim(most=1.3)}
_FRAMES, _STRIDE = 16, 8


def planned(scale: Scale) -> Iterator[Figure]:
    """CPU of a clip: cheapest peer, clip by clip / ESSP; and ESSP / a loop that decodes and scales nothing twice."""
    catalog = scale.catalog(MANY)
    single = NullJob(catalog, frames=_FRAMES, stride=2 if scale.quick else _STRIDE)
    readers = {name: _peer(name, single, scale.clips) for name in peers.readers()}
    costs: Costs = in_rounds(readers | {"essp_k1": _essp(single, scale.clips)}, scale.rounds)
    best, cost = cheapest(costs, tuple(readers), cpu)
    detail = {"best_peer": best, **costs_in_ms(costs)}
    yield Figure.of("planned_k1", ratio(cost, costs["essp_k1"], cpu), _AIMS[1], detail)
    for per_visit, aim in _LIMITS.items():
        window = per_visit * (2 if scale.quick else _VISITS)
        job = NullJob(catalog, frames=_FRAMES, stride=single.stride, clips_per_visit=per_visit, window=window)
        works = {best: readers[best], "essp": _essp(job, window)}
        works["limit"] = Work(peers.limit, (units_of(job, 3 * window), job.size), window)
        costs = in_rounds(works, scale.rounds)
        detail = {"best_peer": best, **costs_in_ms(costs)}
        yield Figure.of(f"planned_k{per_visit}", ratio(costs[best], costs["essp"], cpu), _AIMS[per_visit], detail)
        yield Figure.of(f"planned_k{per_visit}_limit", ratio(costs["essp"], costs["limit"], cpu), aim, detail)


def _essp(job: NullJob, clips: int) -> Work:
    return Work(embedded.run, (job,), clips)


def _peer(reader: str, job: NullJob, clips: int) -> Work:
    return Work(peers.loop, (reader, clips_of(job, 3 * clips), job.size), clips)
