"""What each pool did lately and what is wanted of it: from jobs and workers to what the autoscaler decides by. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.master.activity import Rate
from services.master.pools.autoscaler import PoolLoad
from services.master.pools.port import PoolSize
from services.master.pools.roster import PoolState
from services.master.status import JobState, JobStatus

DECODER = "decoder"


@dataclass(frozen=True, slots=True)
class Want:
    """What the consumers of one pool want of it."""

    demand_per_s: float | None
    wait: float
    queue: int
    full: bool


class PoolRates:
    """Clips that each pool finished a second, over all jobs, from their counts."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], int] = {}
        self._rates: dict[str, Rate] = {}

    def note(self, jobs: Iterable[JobStatus], now_s: float) -> None:
        """Take notice of how far the pools are with each job."""
        for job in jobs:
            for pool in job.pools:
                key = (job.name, pool.name)
                rate = self._rates.setdefault(pool.name, Rate())
                rate.add(max(0, pool.done - self._seen.get(key, 0)), now_s)
                self._seen[key] = pool.done

    def per_s(self, pool: str, now_s: float) -> float:
        """The present rate of a pool."""
        return self._rates[pool].per_s(now_s) if pool in self._rates else 0.0


def loads(
    jobs: Sequence[JobStatus],
    sizes: Mapping[str, PoolSize],
    states: Mapping[str, PoolState],
    rates: Mapping[str, float],
) -> list[PoolLoad]:
    """One load for each pool of workers that the driver has."""
    running = [job for job in jobs if job.state is JobState.RUNNING]
    found = []
    for name, size in sizes.items():
        if name.startswith("trainer."):
            continue
        want = _want(name, running)
        state = states.get(name, PoolState())
        found.append(
            PoolLoad(
                name=name,
                replicas=size.replicas,
                ready=min(size.ready, state.ready) if name in states else 0,
                stuck=state.stuck,
                busy=state.busy,
                done_per_s=rates.get(name, 0.0),
                queue=want.queue,
                demand_per_s=want.demand_per_s,
                wait=want.wait,
                full=want.full,
            )
        )
    return found


def _want(pool: str, running: Sequence[JobStatus]) -> Want:
    """What all running jobs want of a pool together."""
    demand: float | None = 0.0
    wait, queue, full = 0.0, 0, False
    for job in running:
        streams = {stream for stream, feature in job.streams.items() if _serves(pool, feature)}
        if not streams and pool != DECODER:
            continue
        one, waits = _consumption(job, streams if pool != DECODER else None)
        demand = None if demand is None or one is None else demand + one
        wait = max(wait, waits)
        queue += job.backlog.get(DECODER, 0) if pool == DECODER else sum(job.backlog.get(s, 0) for s in streams)
        full = full or job.credits.waiting
    return Want(demand, wait, queue, full)


def _serves(pool: str, feature: str) -> bool:
    """Whether a pool (`extractor.flow`, `extractor.flow+hof`) makes this feature."""
    kind, _, made = pool.partition(".")
    return kind == "extractor" and feature in made.split("+")


def _consumption(job: JobStatus, streams: set[str] | None) -> tuple[float | None, float]:
    """What the trainers of these streams (None: all) would take if they never waited, and how long one waits."""
    trainers = [t for t in job.trainers if not t.final and (streams is None or t.stream in streams)]
    if not job.trainers:  # a prediction: whoever scores takes all there is, unless credits say that he does not keep up
        return None, 0.0 if job.credits.waiting else 1.0
    known = [(t.clips_per_s, t.data_wait_ratio) for t in trainers if t.clips_per_s and t.data_wait_ratio is not None]
    if len(known) < len(trainers):
        return None, max((wait for _, wait in known), default=1.0 if trainers else 0.0)
    rates = [rate / max(1.0 - wait, _LEAST_BUSY) for rate, wait in known]
    return max(rates, default=0.0), max((wait for _, wait in known), default=0.0)


_LEAST_BUSY = 0.02
"""Below this share of work the rate of a trainer that never waited cannot be told."""
