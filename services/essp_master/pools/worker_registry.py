"""Which workers are up, and how busy, from their heartbeats.

While a master waits for a server, it reads no heartbeats. That says nothing about workers, so only the time in which it
reads counts.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field

from essp_common.pb.v1.messages_pb2 import Heartbeat, Machine
from essp_common.runtime import ids
from essp_common.runtime.troubles import Kind, Troubles
from essp_engine.worker.heartbeat import INTERVAL_S

GONE_S = 4 * INTERVAL_S
"""A worker that has been silent for this long is not up any more."""
_REMEMBERED_S = 3600.0
STUCK_S = 120.0
"""A worker that holds a record for this long hangs: decoding has a limit far below."""

_TOLD = frozenset(Kind) - {
    Kind.UNASSIGNED,
    Kind.NO_WORKERS,
    Kind.CRASHING,
    Kind.HELD_UP,
    Kind.PAUSED,
    Kind.STATE_DAMAGED,
    Kind.TRIAL_SERVERS,
}
"""The troubles that workers may report. The master detects the others itself."""
_LONGEST = 500
"""Longest text of a worker, in characters: any client could send a heartbeat."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker, according to its last heartbeat."""

    name: str
    reported_s: float
    busy: float
    in_hand: int
    stuck: bool
    lanes: int | None = None
    """How many messages it handles at once, each on a core; None if it does not report that."""
    queue: int = 0
    """How much work it knows to wait for its whole pool."""
    partitions: int | None = None
    """How many partitions it owns; None if it does not report that."""
    troubles: Troubles = field(default_factory=dict)
    """What keeps its servers from working."""
    machine: Machine | None = None
    """What its process uses; None if it does not report that."""
    reports_busy: bool = True
    """Whether it reports how busy it is."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """The workers of one pool that are up."""

    workers: tuple[WorkerState, ...] = ()

    @property
    def ready(self) -> int:
        """How many workers are up."""
        return len(self.workers)

    @property
    def stuck(self) -> int:
        """How many workers hang."""
        return sum(worker.stuck for worker in self.workers)

    @property
    def queue(self) -> int:
        """How much work they know to wait for the pool."""
        return sum(worker.queue for worker in self.workers)

    @property
    def busy(self) -> float:
        """Mean share of the time for which they were busy."""
        return sum(worker.busy for worker in self.workers) / len(self.workers) if self.workers else 0.0

    @property
    def lanes(self) -> int | None:
        """How many messages one worker handles at once; None if no worker reports that."""
        return max((worker.lanes for worker in self.workers if worker.lanes), default=None)

    def idlest(self) -> list[str]:
        """Return their names, the most dispensable first."""
        return [w.name for w in sorted(self.workers, key=lambda w: (not w.stuck, w.in_hand, w.busy))]


class WorkerRegistry:
    """All workers of all pools. Thread-safe: the master's thread writes, others read."""

    def __init__(self) -> None:
        self._pools: dict[str, dict[str, WorkerState]] = {}
        self._heard: dict[str, float] = {}
        """Pool -> when one of its workers last reported."""
        self._read_s: float | None = None
        self._lock = threading.Lock()

    def note(self, worker: str, beat: Heartbeat, now_s: float) -> None:
        """Note a worker's heartbeat."""
        gauges = beat.gauges
        busy, in_hand, oldest, queue = (
            _number(gauges.get(name, 0.0)) for name in ("busy", "in_hand", "oldest", "queue")
        )
        state = WorkerState(
            worker,
            now_s,
            min(busy, 1.0),
            int(in_hand),
            stuck=oldest > STUCK_S,
            queue=int(queue),
            lanes=int(_number(gauges["lanes"])) if "lanes" in gauges else None,
            partitions=int(_number(gauges["partitions"])) if "partitions" in gauges else None,
            machine=beat.machine if beat.HasField("machine") else None,
            reports_busy="busy" in gauges,
            troubles={kind: beat.troubles[kind][:_LONGEST] for kind in _TOLD if kind in beat.troubles},
        )
        with self._lock:
            self._pools.setdefault(beat.pool, {})[worker] = state
            if beat.pool != ids.MASTER:
                self._heard[beat.pool] = now_s

    def read(self, now_s: float) -> None:
        """Note that all heartbeats received by now have been recorded."""
        with self._lock:
            self._read_s = now_s

    def heard(self) -> dict[str, float]:
        """Return when each pool that was up in the last hour last reported."""
        with self._lock:
            return dict(self._heard)

    def last_read(self, now_s: float) -> float:
        """Return the time up to which heartbeats were read."""
        with self._lock:
            return now_s if self._read_s is None else self._read_s

    def pools(self, now_s: float) -> dict[str, PoolState]:
        """Return every pool that has a worker up, but not the masters."""
        return {name: state for name, state in self.everybody(now_s).items() if name != ids.MASTER}

    def everybody(self, now_s: float) -> dict[str, PoolState]:
        """Return every pool that has a worker up, with the masters."""
        with self._lock:
            now_s = now_s if self._read_s is None else min(now_s, self._read_s)
            self._heard = {pool: last_s for pool, last_s in self._heard.items() if now_s - last_s < _REMEMBERED_S}
            for name, workers in list(self._pools.items()):
                self._pools[name] = {w.name: w for w in workers.values() if now_s - w.reported_s <= GONE_S}
                if not self._pools[name]:
                    del self._pools[name]
            return {name: PoolState(tuple(workers.values())) for name, workers in self._pools.items()}


def _number(gauge: float) -> float:
    """Return a gauge, or 0 for an implausible value."""
    return gauge if math.isfinite(gauge) and gauge > 0 else 0.0
