"""What each pool did recently and what jobs demand of it: the input of the autoscaler. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from essp_common.runtime import ids
from essp_master.job.activity import Rate
from essp_master.pools.autoscaler import PoolLoad
from essp_master.pools.port import PoolSize
from essp_master.pools.worker_registry import PoolState
from essp_master.status.pool_demand import PoolDemand


@dataclass(frozen=True, slots=True)
class Demand:
    """What the consumers of one pool demand of it."""

    demand_per_s: float | None
    wait: float
    queue: int
    full: bool
    awaited: bool


class PoolRates:
    """Clips decoded, extracted for each feature, and scored by predictors, per second over all jobs, computed from
    their counts."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], int] = {}
        self._rates: dict[str, Rate] = {}

    def note(self, jobs: Iterable[PoolDemand], now_s: float) -> None:
        """Note the progress of the pools with each job that has not ended."""
        before, self._seen = self._seen, {(job.job, pool): done for job in jobs for pool, done in job.done.items()}
        for (job, pool), done in self._seen.items():
            rate = self._rates.setdefault(pool, Rate())
            rate.add(max(0, done - before.get((job, pool), 0)), now_s)

    def per_s(self, now_s: float) -> dict[str, float]:
        """Return the present rates by what is made: `decoder`, `extractor.<feature>`; and of `predictor`."""
        return {name: rate.per_s(now_s) for name, rate in self._rates.items()}


def loads(
    jobs: Sequence[PoolDemand],
    sizes: Mapping[str, PoolSize],
    states: Mapping[str, PoolState],
    rates: Mapping[str, float],
    hindered: Mapping[str, str] = {},
) -> list[PoolLoad]:
    """Return the load of each worker pool that the driver has. `hindered`: pools whose workers cannot work, with the
    reason."""
    running = [job for job in jobs if job.running]
    found = []
    for name, size in sizes.items():
        if ids.is_training(name):
            continue
        state = states.get(name, PoolState())
        demand = _demand(name, running, state)
        found.append(
            PoolLoad(
                name=name,
                replicas=size.replicas,
                ready=min(size.ready, state.ready) if name in states else 0,
                stuck=state.stuck,
                busy=state.busy,
                done_per_s=_done_per_s(name, rates, state),
                queue=demand.queue,
                demand_per_s=demand.demand_per_s,
                wait=demand.wait,
                full=demand.full,
                awaited=demand.awaited,
                hindered=hindered.get(name, ""),
            )
        )
    return found


def queues(jobs: Iterable[PoolDemand]) -> dict[str, int]:
    """Return `decoder`, `extractor.<feature>` -> clips of these jobs that wait there or are being made."""
    found: dict[str, int] = {}
    for job in jobs:
        for part, clips in job.backlog.items():
            made = ids.DECODER if part == ids.DECODER else ids.extractor_pool([job.streams[part]])
            found[made] = found.get(made, 0) + clips
    return found


def _demand(pool: str, running: Sequence[PoolDemand], state: PoolState) -> Demand:
    """Return what all running jobs together demand of a pool."""
    if pool == ids.PREDICTOR:
        return _demand_of_predictors(running, state)
    if pool == ids.AGGREGATOR:
        return _demand_of_aggregators(running, state)
    per_s: float | None = 0.0
    wait, queue, full, awaited = 0.0, 0, False, False
    for job in running:
        awaited = awaited or any(ids.serves(pool, work) for work in job.awaits)
        for part, streams in _parts(pool, job).items():
            one, waits = _consumption(job, streams)
            per_s = None if per_s is None or one is None else per_s + one
            wait = max(wait, waits)
            queue += job.backlog.get(part, 0)
            full = full or job.out_of_credit
    return Demand(per_s, wait, queue, full, awaited)


def _demand_of_predictors(running: Sequence[PoolDemand], state: PoolState) -> Demand:
    """Return what all running jobs together demand of predictors: they are too few if they are busy all the time, and
    no more clips may be made before they have taken some."""
    jobs = [job for job in running if job.predicts]
    held_up = any(job.out_of_credit for job in jobs) and state.busy >= _BUSY
    return Demand(
        demand_per_s=None if jobs else 0.0,
        wait=float(held_up),
        queue=sum(job.waiting for job in jobs),
        full=False,
        awaited=any(ids.PREDICTOR in job.awaits for job in jobs),
    )


def _demand_of_aggregators(running: Sequence[PoolDemand], state: PoolState) -> Demand:
    """Return what all running jobs together demand of aggregators: they are too few if all are busy and more work waits
    than they can do at the same time, each of them one job, or as many candidates of searches as it has processes."""
    jobs = sum(job.to_fuse for job in running)
    too_few = jobs > state.ready or state.queue > state.ready * (state.lanes or 1)
    return Demand(
        demand_per_s=None if jobs else 0.0,
        wait=float(too_few and state.busy >= _BUSY),
        queue=jobs + state.queue,
        full=False,
        awaited=False,
    )


def _parts(pool: str, job: PoolDemand) -> dict[str, set[str]]:
    """Return what a pool makes for a job (`decoder`, or streams), each with the streams whose trainers wait for it."""
    if pool == ids.DECODER:
        return {ids.DECODER: set(job.streams)}
    extracted = {stream: ids.extractor_pool([feature]) for stream, feature in job.streams.items() if feature != "rgb"}
    return {stream: {stream} for stream, work in extracted.items() if ids.serves(pool, work)}


def _done_per_s(pool: str, rates: Mapping[str, float], state: PoolState) -> float:
    """Return the rate of a pool: the sum over the features that it makes."""
    if pool == ids.AGGREGATOR:
        return state.busy * state.ready  # no two candidates are alike: their work is counted in seconds of it
    if pool in (ids.DECODER, ids.PREDICTOR):
        return rates.get(pool, 0.0)
    return sum(rate for made, rate in rates.items() if ids.serves(pool, made))


def _consumption(job: PoolDemand, streams: set[str]) -> tuple[float | None, float]:
    """Return what the trainers of these streams would take if they never waited, and the longest share of waiting."""
    trainers = [t for t in job.trainers if not t.final and t.stream in streams]
    if not job.trainers:  # a prediction consumes everything, unless credits show that it cannot keep up
        return None, 0.0 if job.out_of_credit else 1.0
    known = [(t.clips_per_s, t.data_wait_ratio) for t in trainers if t.clips_per_s and t.data_wait_ratio is not None]
    if len(known) < len(trainers):
        return None, max((wait for _, wait in known), default=1.0 if trainers else 0.0)
    rates = [rate / max(1.0 - wait, _LEAST_BUSY) for rate, wait in known]
    return max(rates, default=0.0), max((wait for _, wait in known), default=0.0)


_BUSY = 0.75
"""Predictors and aggregators that are busy for this share of their time are at their limit (as `Policy.busy_high`)."""
_LEAST_BUSY = 0.02
"""Below this share of work, the rate of a trainer that never waits cannot be estimated."""
