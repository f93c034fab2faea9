"""Pools that cannot work: what workers say in their heartbeats, and what only shows across them.

Work waits for a pool, and no worker of it is up; or workers are up, and the broker has dealt them no partitions, or
not all of them, so that what lies on the others waits for ever. A worker cannot know that: it may well have no
partitions where there are enough workers.

Workers share their servers with the master. What it sees itself is not said again for each pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from essp_common import topics
from essp_common.runtime import ids
from essp_common.runtime.conditions import Kind, Lasting, Subject, Troubles
from essp_master.job.pool_demand import PoolDemand
from essp_master.pools.load import queues, serves
from essp_master.pools.worker_registry import PoolState, WorkerRegistry

AFTER_S = 20.0
"""What is over within so long is no condition: a worker that starts, a group that deals its partitions anew. With the
time between two heartbeats and two looks it leaves people less than `conditions.SEEN_S` in the dark."""


class PoolWatch:
    """A source of conditions (`essp_common/runtime/conditions.py`). Not thread-safe: one thread looks."""

    def __init__(
        self,
        jobs: Callable[[], Sequence[PoolDemand]],
        worker_registry: WorkerRegistry,
        own: Callable[[], Troubles] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`own`: what the master sees of the servers itself."""
        self._jobs = jobs
        self._registry = worker_registry
        self._own = own
        self._clock = clock
        self._lasting = Lasting(AFTER_S, clock)

    def __call__(self) -> Mapping[Subject, str]:
        """What is wrong now."""
        states = self._registry.pools(self._clock())
        return self._said(states) | self._lasting.of(_unable(self._jobs(), states))

    def _said(self, states: Mapping[str, PoolState]) -> dict[Subject, str]:
        """What workers say, once for each pool."""
        own = self._own()
        found: dict[Subject, str] = {}
        for pool, state in states.items():
            for worker in state.workers:
                for kind, words in worker.troubles.items():
                    if kind not in own:
                        many = sum(kind in other.troubles for other in state.workers)
                        found[kind, pool] = f"{many} of {state.ready} workers ({worker.name}, ...): {words}"
        return found


def _unable(jobs: Sequence[PoolDemand], states: Mapping[str, PoolState]) -> dict[Subject, str]:
    """The pools for which work waits that nobody can take."""
    running = [job for job in jobs if job.running]
    found: dict[Subject, str] = {}
    for made, clips in queues(running).items():
        able = [pool for pool in states if pool == made or any(serves(pool, f) for f in ids.features_of(made))]
        if clips and not able:
            found[Kind.NO_WORKERS, made] = (
                f"clips wait ({clips}), and no worker of the pool is up; start one, or see in the logs why none starts"
            )
        for pool in able if clips else ():
            if words := _lacking(states[pool], clips):
                found[Kind.UNASSIGNED, pool] = words
    return found


def _lacking(state: PoolState, clips: int) -> str:
    """What is wrong with the partitions that the workers own; empty: nothing, or they do not say."""
    owned = [worker.partitions for worker in state.workers if worker.partitions is not None]
    if len(owned) < state.ready or sum(owned) >= topics.DATA_PARTITIONS:
        return ""
    remedy = "look at the log of the broker that coordinates the group; restart it, or the workers of the pool"
    if not any(owned):
        return (
            f"workers are up ({state.ready}) and clips wait ({clips}), but the broker has dealt them no partitions, so "
            f"none of them gets work; {remedy}"
        )
    return (
        f"workers are up ({state.ready}) and clips wait ({clips}), but they own {sum(owned)} of "
        f"{topics.DATA_PARTITIONS} partitions, so what lies on the others is not worked on; {remedy}"
    )
