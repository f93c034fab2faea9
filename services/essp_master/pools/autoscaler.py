"""Decides how many workers each pool should have, and why. Pure, so that it can be simulated.

The signal is how long trainers wait for data, not CPU usage. If no trainer waits, a pool is large enough, however busy
it is. If a pool waits for its own input, more workers would not help. Each pool is in one of four states:

    bottleneck   trainers wait, and this pool is busy: it gets more workers
    starved      trainers wait, and this pool is idle: the pool that feeds it is too small
    buffered     no trainer waits, and credits are used up: the pool may shrink
    balanced     otherwise

Sizes come from measured rates, which are smoothed. The demand of a trainer is its rate divided by the share of time in
which it did not wait. The rate of a worker is the rate of the pool divided by the number of busy workers.

 A pool grows to the size that the rates suggest. It does not grow further while workers are pending: the next step
follows once all workers of the previous one are up and have had time to show their rate. While the rate of a worker is
unknown, a pool that has a worker does not grow, since nothing suggests a size; while only the demand is unknown, it
grows by one worker at a time. A pool whose workers cannot work (`essp_common/runtime/conditions.py`) does not grow
either. A pool shrinks more slowly: only after a surplus has lasted, not soon after it grew, and not below one worker
while there is work. If its bounds allow it, a pool without work shrinks to zero, and gets a worker as soon as there is
work again.

The idea of classifying pools by their queues follows Cosmos-Xenna's saturation-aware scheduler; scaling by the
starvation of consumers follows Cachew (Graur et al., USENIX ATC 2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from essp_common.quantities import counted, percent


class Saturation(StrEnum):
    """How a pool relates to its input and its consumers; see the module's docstring."""

    STARVED = "starved"
    BOTTLENECK = "bottleneck"
    BUFFERED = "buffered"
    BALANCED = "balanced"


@dataclass(frozen=True, kw_only=True)
class PoolLoad:
    """Measurements of one pool over the last few seconds."""

    name: str
    replicas: int
    """Workers requested."""
    ready: int
    """Workers that are running."""
    stuck: int = 0
    """Running workers that have work in progress and have finished nothing for a long time."""
    busy: float
    """Share of their time that the ready workers were busy, 0 to 1."""
    done_per_s: float
    """Clips finished per second."""
    queue: int
    """Clips that wait for this pool or are being processed by it."""
    demand_per_s: float | None
    """Clips per second that the pool's consumers would take if they never waited; None: not known yet."""
    wait: float
    """Share of its time, 0 to 1, for which the longest-waiting consumer waited for clips."""
    awaited: bool = False
    """Whether a job waits for the pool's first worker before it begins."""
    full: bool = False
    """Whether credits are used up: no more clips may be made before consumers ack some."""
    hindered: str = ""
    """What keeps its workers from working, however many there are; empty if nothing does."""

    @property
    def wanted(self) -> bool:
        """Whether the pool has work, or will have as soon as it has a worker."""
        return self.queue > 0 or self.awaited


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The bounds of a pool's size."""

    min: int = 0
    max: int = 64
    max_because: str = ""
    """Why no more than `max` workers are allowed, for users, if `max` is not the maximum that they know; else
    empty."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Thresholds and rates of change."""

    wait_high: float = 0.05
    """A trainer that waits for more than this share of its time is short of data."""
    busy_high: float = 0.75
    """A pool that is busy for this share of its time is at its limit."""
    headroom: float = 1.15
    """Factor by which the target exceeds the demand, because the time per clip varies."""
    show_s: float = 20.0
    """How long new workers are given to show their rate: longer than the time over which rates are measured."""
    surplus_s: float = 120.0
    """How long a surplus must last before the pool shrinks."""
    grace_s: float = 60.0
    """How long a pool does not shrink after new workers became ready."""
    shrink: float = 0.2
    """A pool shrinks by at most this share of its size, or by one worker if that is more."""
    smoothing: float = 0.3
    """Weight of the newest measurement."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The size that one pool should have."""

    pool: str
    saturation: Saturation
    replicas: int
    """The present size."""
    wanted: int
    reason: str
    """One sentence, for users."""


class Autoscaler:
    """Decides the size of all pools. Keeps a short memory of each pool; the caller passes the time."""

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._pools: dict[str, _Memory] = {}

    def decide(self, loads: Iterable[tuple[PoolLoad, Limits]], now_s: float) -> list[Decision]:
        """Return one decision for each pool. Call this every few seconds."""
        return [self._one(load, limits, now_s) for load, limits in loads]

    def _one(self, load: PoolLoad, limits: Limits, now_s: float) -> Decision:
        memory = self._pools.setdefault(load.name, _Memory())
        memory.learn(load, self._policy, now_s)
        saturation = classify(load, self._policy)
        # never shrinks below the minimum
        needed = max(memory.needed(load, self._policy), min(limits.min, load.replicas))
        if saturation is Saturation.BOTTLENECK or needed > load.replicas:
            wanted, reason = self._grow(load, memory, saturation, needed, now_s)
        else:
            wanted, reason = self._shrink(load, memory, needed, now_s)
        wanted, reason = _bounded(load, limits, wanted, reason)
        if wanted != load.replicas:
            memory.surplus_since_s = None
        return Decision(load.name, saturation, load.replicas, wanted, f"{saturation}: {reason}")

    def _grow(
        self, load: PoolLoad, memory: _Memory, saturation: Saturation, needed: int, now_s: float
    ) -> tuple[int, str]:
        policy = self._policy
        memory.surplus_since_s = None
        if load.wait <= policy.wait_high and load.ready and load.replicas:
            return load.replicas, f"no trainer waits for more than {percent(policy.wait_high, 0)} of its time"
        if load.hindered and load.replicas:
            return load.replicas, f"more workers would not help: {load.hindered}"
        if load.ready < load.replicas:
            pending = load.replicas - load.ready
            return load.replicas, f"{pending} of {load.replicas} workers are not up yet, and none is added to them"
        if load.replicas and now_s - memory.grown_s < policy.show_s:
            return load.replicas, f"it grew {now_s - memory.grown_s:.0f} s ago, and what it makes now is not known yet"
        if saturation is Saturation.STARVED:
            return (
                load.replicas,
                f"trainers wait {percent(load.wait, 0)}, but this pool is only {percent(load.busy, 0)} busy: "
                "its input is too slow",
            )
        if memory.per_worker is None and load.replicas:
            return load.replicas, "its workers have made nothing yet, so it is unknown whether more would help"
        if memory.per_worker is None or load.demand_per_s is None:
            return load.replicas + 1, "it is not known how much is wanted, so one worker more"
        return max(load.replicas, needed), (
            f"trainers wait {percent(load.wait, 0)} and could take {memory.demand:.1f} clips/s; a busy worker makes "
            f"{memory.per_worker:.1f}, so {_needed(needed, load.replicas)}"
            + f", including {load.stuck} to replace stuck ones"
            * (load.stuck > 0)
        )

    def _shrink(self, load: PoolLoad, memory: _Memory, needed: int, now_s: float) -> tuple[int, str]:
        policy = self._policy
        if needed >= load.replicas:
            memory.surplus_since_s = None
            return load.replicas, "as many workers as needed"
        if memory.surplus_since_s is None:
            memory.surplus_since_s = now_s
        lasted_s = now_s - memory.surplus_since_s
        if lasted_s < policy.surplus_s:
            return load.replicas, f"{needed} would suffice; it shrinks if that lasts {policy.surplus_s:.0f} s"
        if now_s - memory.grown_s < policy.grace_s:
            return load.replicas, f"{needed} would suffice, but it grew {now_s - memory.grown_s:.0f} s ago"
        step = max(1, math.floor(load.replicas * policy.shrink))
        return max(needed, load.replicas - step), f"{needed} have sufficed for {lasted_s:.0f} s"


@dataclass(slots=True)
class _Memory:
    """The state of a pool between decisions."""

    per_worker: float | None = None
    demand: float = 0.0
    ready: int = 0
    grown_s: float = -math.inf
    surplus_since_s: float | None = None

    def learn(self, load: PoolLoad, policy: Policy, now_s: float) -> None:
        if load.ready > self.ready:
            self.grown_s = now_s
        self.ready = load.ready
        if load.demand_per_s is not None:
            self.demand += (load.demand_per_s - self.demand) * (policy.smoothing if self.demand else 1.0)
        working = (load.ready - load.stuck) * load.busy
        if working >= _EVIDENCE and load.done_per_s > _NOTHING:
            rate = load.done_per_s / working
            self.per_worker = (
                rate if self.per_worker is None else (self.per_worker + policy.smoothing * (rate - self.per_worker))
            )

    def needed(self, load: PoolLoad, policy: Policy) -> int:
        """Return the number of workers needed for the demand, at least one while there is work. If the demand is
        unknown, the present number."""
        if load.demand_per_s is None:
            return load.replicas
        if self.demand < _NOTHING and not load.wanted:
            return 0
        if self.per_worker is None:
            return max(load.replicas, 1)
        enough = math.ceil(self.demand * policy.headroom / self.per_worker - _ROUNDING)
        return max(enough + load.stuck, int(load.wanted))


_EVIDENCE = 0.2
"""Number of busy workers (full-time equivalents) required for a measured rate to count."""
_NOTHING = 1e-3
"""Rates below this many clips per second count as zero."""
_ROUNDING = 1e-6


def classify(load: PoolLoad, policy: Policy) -> Saturation:
    """Return the state of a pool; see the module's docstring."""
    # no worker is there, so neither the trainers' waits nor used-up credits count
    if load.wanted and not load.replicas:
        return Saturation.BOTTLENECK
    if load.wait > policy.wait_high:
        working = load.ready - load.stuck
        if load.busy >= policy.busy_high or (load.queue and not working) or load.queue > 4 * max(1, load.ready) > 0:
            return Saturation.BOTTLENECK
        return Saturation.STARVED
    if load.full:
        return Saturation.BUFFERED
    return Saturation.BALANCED


def _needed(needed: int, replicas: int) -> str:
    if needed <= replicas:
        return f"the {counted(replicas, 'worker')} that it has should do; what waits is worked off first"
    return f"{counted(needed, 'worker')} {'is' if needed == 1 else 'are'} needed"


def _bounded(load: PoolLoad, limits: Limits, wanted: int, reason: str) -> tuple[int, str]:
    if wanted > limits.max:
        return limits.max, f"{reason}; {limits.max_because or f'the maximum is {limits.max}'}"
    if wanted < limits.min:
        return limits.min, f"{reason}; the minimum is {limits.min}"
    return wanted, reason
