"""Detects pools that cannot work, from heartbeats and from what only shows across workers.

Either work waits for a pool and none of its workers is up, or workers are up but the broker has not assigned them all
partitions, so that messages on the others wait forever. A single worker cannot detect the latter: it may rightly have
no partitions if there are enough workers.

Workers share their servers with the master, so troubles that the master sees itself are not repeated for each pool.
While the master does not read heartbeats, or the broker delivers none, nothing is known about workers, and none are
reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from essp_common import topics
from essp_common.runtime import ids
from essp_common.runtime.conditions import Lasting, Subject
from essp_common.runtime.troubles import Kind, Troubles
from essp_engine.worker.heartbeat import INTERVAL_S
from essp_master.pools.commands import command_of
from essp_master.pools.load import queues
from essp_master.pools.worker_registry import PoolState, WorkerRegistry
from essp_master.status.pool_demand import PoolDemand

AFTER_S = 20.0
"""Troubles that pass within this time are not a condition: a worker that starts, a group that rebalances. Together with
the intervals of heartbeats and checks, users learn of a trouble within `conditions.SEEN_S`."""
GONE_AFTER_S = 24.0
"""A pool that has not reported for this long, while clips waited for it, has no workers. The master needs less time to
find out that the broker is silent, which looks the same at first."""
_DEAF_S = 5.0
"""A master that has read nothing for this long does not know which workers are up."""
_NEXT_BEAT_S = 2 * INTERVAL_S
_CARRIES_NOTHING = (Kind.BUS_SILENT, Kind.BUS_STALLED)


class PoolWatch:
    """A source of conditions (`essp_common/runtime/conditions.py`). Not thread-safe: called by one thread."""

    def __init__(
        self,
        jobs: Callable[[], Sequence[PoolDemand]],
        worker_registry: WorkerRegistry,
        own: Callable[[], Troubles] = dict,
        clock: Callable[[], float] = time.monotonic,
        starts: bool = False,
        partitions: int = topics.DATA_PARTITIONS,
    ) -> None:
        """`own`: returns the troubles that the master itself has with the servers. `starts`: whether the platform
        starts the workers, and not a person. `partitions`: of the topics that workers share."""
        self._starts = starts
        self._partitions = partitions
        self._jobs = jobs
        self._registry = worker_registry
        self._own = own
        self._clock = clock
        self._lasting = Lasting(AFTER_S, clock)
        self._hears_since_s = clock()
        self._own_until_s: dict[Kind, float] = {}
        """By kind: when the master last saw the trouble itself."""
        self._waits_since_s: dict[str, float] = {}
        """Pool -> since when clips have waited for it at each check."""

    def __call__(self) -> Mapping[Subject, str]:
        """Return the present troubles."""
        now_s, own = self._clock(), self._own()
        states = self._registry.pools(now_s)
        self._own_until_s |= dict.fromkeys(own, now_s)
        said = self._said(states, now_s)
        if now_s - self._registry.last_read(now_s) >= _DEAF_S or any(kind in own for kind in _CARRIES_NOTHING):
            self._hears_since_s = now_s
            self._lasting.of({})
            return said
        jobs = [job for job in self._jobs() if job.running]
        waiting = queues(jobs)
        return (
            said
            | self._gone(_waits(jobs, waiting), now_s)
            | self._lasting.of(_undealt(waiting, states, self._partitions))
        )

    def _gone(self, waits: Mapping[str, str], now_s: float) -> dict[Subject, str]:
        """Return the pools that have no worker up. `waits`: what waits for them, in words."""
        self._waits_since_s = {made: self._waits_since_s.get(made, now_s) for made in waits}
        heard = self._registry.heard()
        found: dict[Subject, str] = {}
        for made, since_s in self._waits_since_s.items():
            last_s = max((heard[pool] for pool in heard if ids.serves(pool, made)), default=None)
            if now_s - max(since_s, self._hears_since_s, last_s or since_s) >= GONE_AFTER_S:
                silent = "is up" if last_s is None else f"has reported for {now_s - last_s:.0f} s"
                start = f"start one ({' '.join(('essp', *command_of(made)))}), or see"
                if self._starts:
                    start = "`essp pool ls` says what keeps it from being started; else see"
                found[Kind.NO_WORKERS, made] = (
                    f"{waits[made]}, and no worker of the pool {silent}; {start} in the logs why none starts, or why "
                    "it does not reach the broker"
                )
        return found

    def _said(self, states: Mapping[str, PoolState], now_s: float) -> dict[Subject, str]:
        """Return the troubles that workers report, once for each pool. After the master itself stops seeing a trouble,
        their next heartbeats show whether they still have it."""
        own = {kind for kind, until_s in self._own_until_s.items() if now_s - until_s < _NEXT_BEAT_S}
        found: dict[Subject, str] = {}
        for pool, state in states.items():
            for worker in state.workers:
                for kind, words in worker.troubles.items():
                    if kind not in own:
                        many = sum(kind in other.troubles for other in state.workers)
                        found[kind, pool] = f"{many} of {state.ready} workers ({worker.name}, ...): {words}"
        return found


def _waits(jobs: Sequence[PoolDemand], queued: Mapping[str, int]) -> dict[str, str]:
    """Describe what waits for each pool: clips, or a job that has not begun, or has trained all that it trains.

    Jobs are not named: users of other teams read this, too.
    """
    begins = dict.fromkeys((pool for job in jobs for pool in job.awaits), "a job waits to begin")
    fuses = "a job waits to be fused and tested, which all its trainers are ready for"
    ends = {ids.AGGREGATOR: fuses} if any(job.to_fuse for job in jobs) else {}
    return begins | ends | {made: f"clips wait ({clips})" for made, clips in queued.items() if clips}


def _undealt(waiting: Mapping[str, int], states: Mapping[str, PoolState], partitions: int) -> dict[Subject, str]:
    """Return the pools that are up but own too few partitions for the waiting clips."""
    found: dict[Subject, str] = {}
    for made, clips in waiting.items():
        for pool in states if clips else ():
            if ids.serves(pool, made) and (words := _lacking(states[pool], clips, partitions)):
                found[Kind.UNASSIGNED, pool] = words
    return found


def _lacking(state: PoolState, clips: int, partitions: int) -> str:
    """Describe what is wrong with the partitions of the workers; empty if nothing is, or if they do not report them."""
    owned = [worker.partitions for worker in state.workers if worker.partitions is not None]
    if len(owned) < state.ready or sum(owned) >= partitions:
        return ""
    remedy = "look at the log of the broker that coordinates the group; restart it, or the workers of the pool"
    if not any(owned):
        return (
            f"workers are up ({state.ready}) and clips wait ({clips}), but the broker has assigned them no "
            "partitions, so "
            f"they get no work; {remedy}"
        )
    return (
        f"workers are up ({state.ready}) and clips wait ({clips}), but they own {sum(owned)} of "
        f"{partitions} partitions, so messages on the others are not processed; {remedy}"
    )
