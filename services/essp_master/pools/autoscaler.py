"""How many workers each pool should have, and why: pure, so that it can be simulated.

The signal is the trainers' wait for data, not the CPU: a pool that works flat out while no trainer waits is large
enough, and one that idles since it waits for its own input would not help by being larger. Each pool is one of

    bottleneck   trainers wait, and this pool is busy: it gets more workers
    starved      trainers wait, and this pool is idle: what feeds it is too small, not the pool
    buffered     no trainer waits, and what the pool makes is not taken (credits are used up): it may shrink
    balanced     none of these

Sizes come from measured rates. What a trainer would take if it never waited is its rate divided by the share of time
in which it did not wait; what a worker makes is the pool's rate divided by the workers that were busy. Both are
smoothed. Growing is stepwise: half as much again each time, and where the rate of a worker is not known yet, one at a
time and only when the one before has come up. Shrinking is slower: only after a surplus has lasted, never soon after a
start, never below one worker while there is work.

The idea of classifying pools by their queues follows Cosmos-Xenna's saturation-aware scheduler; scaling by the
starvation of consumers follows Cachew (Graur et al., USENIX ATC 2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Saturation(StrEnum):
    """What holds a pool, or whom it holds."""

    STARVED = "starved"
    BOTTLENECK = "bottleneck"
    BUFFERED = "buffered"
    BALANCED = "balanced"


@dataclass(frozen=True, kw_only=True)
class PoolLoad:
    """What one pool did in the last seconds."""

    name: str
    replicas: int
    """Workers that were asked for."""
    ready: int
    """Workers that are up."""
    stuck: int = 0
    """Of these, how many hold work and have finished nothing for long."""
    busy: float
    """Share of the time in which the ready workers worked, 0 to 1."""
    done_per_s: float
    """Clips finished a second."""
    queue: int
    """Clips that wait for this pool or are in its hands."""
    demand_per_s: float | None
    """Clips a second that the consumers of what it makes would take if they never waited; None: not known yet."""
    wait: float
    """Largest share of its time that one of those consumers waited for clips, 0 to 1."""
    full: bool = False
    """Credits are used up: nothing more may be made before something is taken."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The bounds of a pool's size."""

    min: int = 0
    max: int = 64
    max_because: str = "the setting"
    """What sets `max`, for people: partitions, the quota, the setting."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How eagerly pools are changed."""

    wait_high: float = 0.05
    """Trainers that wait longer than this share of their time are short of data."""
    busy_high: float = 0.75
    """A pool that is busy for this share of its time is at its limit."""
    headroom: float = 1.15
    """Workers are counted for so much more than is needed, since times of clips vary."""
    growth: float = 0.5
    """A step up is at most this share of the present size, and at least two."""
    start_s: float = 120.0
    """How long workers that were asked for may take to come up before others are asked for."""
    surplus_s: float = 120.0
    """A surplus has to last so long before the pool shrinks."""
    grace_s: float = 60.0
    """How long after its last growth came up a pool is not shrunk."""
    shrink: float = 0.2
    """A step down is at most this share of the present size, and at least one."""
    smoothing: float = 0.3
    """Weight of the newest measurement."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to become of one pool."""

    pool: str
    saturation: Saturation
    replicas: int
    """As it was."""
    wanted: int
    reason: str
    """One sentence, for people."""


class Autoscaler:
    """Decides about all pools. Remembers a little of each; time is passed in."""

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._pools: dict[str, _Memory] = {}

    def decide(self, loads: Iterable[tuple[PoolLoad, Limits]], now_s: float) -> list[Decision]:
        """One decision for each pool. Call it every few seconds."""
        return [self._one(load, limits, now_s) for load, limits in loads]

    def _one(self, load: PoolLoad, limits: Limits, now_s: float) -> Decision:
        memory = self._pools.setdefault(load.name, _Memory())
        memory.learn(load, self._policy, now_s)
        saturation = classify(load, self._policy)
        needed = memory.needed(load, self._policy)
        if saturation is Saturation.BOTTLENECK or needed > load.replicas:
            wanted, reason = self._grow(load, memory, saturation, needed, now_s)
        else:
            wanted, reason = self._shrink(load, memory, needed, now_s)
        wanted, reason = _bounded(load, limits, wanted, reason)
        if wanted != load.replicas:
            memory.surplus_since_s = None
        if wanted > load.replicas:
            memory.asked_s = now_s
        return Decision(load.name, saturation, load.replicas, wanted, f"{saturation}: {reason}")

    def _grow(
        self, load: PoolLoad, memory: _Memory, saturation: Saturation, needed: int, now_s: float
    ) -> tuple[int, str]:
        policy = self._policy
        memory.surplus_since_s = None
        if load.wait <= policy.wait_high and load.ready and load.replicas:
            return load.replicas, f"no trainer waits for more than {policy.wait_high:.0%} of its time"
        if saturation is Saturation.STARVED and load.ready >= load.replicas:
            return (
                load.replicas,
                f"trainers wait {load.wait:.0%}, but it is busy for {load.busy:.0%} only: so is its input",
            )
        if memory.per_worker is None or load.demand_per_s is None:
            if load.ready < load.replicas and now_s - memory.asked_s < policy.start_s:
                return load.replicas, "the rate of a worker is not known yet, and the last one is still starting"
            return load.replicas + 1, "the rate of a worker is not known yet, so one step more"
        missing = load.replicas - load.ready if now_s - memory.asked_s >= policy.start_s else 0
        target = needed + missing
        step = max(2, math.floor(load.replicas * policy.growth))
        return max(load.replicas, min(target, load.replicas + step)), (
            f"trainers wait {load.wait:.0%} and could take {memory.demand:.1f} clips/s; a worker makes "
            f"{memory.per_worker:.1f}, so {needed} are needed"
            + f", {load.stuck} of them for stuck ones" * (load.stuck > 0)
            + f", and {missing} for those that do not come up" * (missing > 0)
        )

    def _shrink(self, load: PoolLoad, memory: _Memory, needed: int, now_s: float) -> tuple[int, str]:
        policy = self._policy
        floor = 1 if load.queue else 0
        target = max(needed, floor)
        if target >= load.replicas:
            memory.surplus_since_s = None
            return load.replicas, "as many as are needed"
        if memory.surplus_since_s is None:
            memory.surplus_since_s = now_s
        lasted_s = now_s - memory.surplus_since_s
        if lasted_s < policy.surplus_s:
            return load.replicas, f"{target} would do; waits until that has held for {policy.surplus_s:.0f} s"
        if now_s - memory.grown_s < policy.grace_s:
            return load.replicas, f"{target} would do; it grew {now_s - memory.grown_s:.0f} s ago"
        step = max(1, math.floor(load.replicas * policy.shrink))
        return max(target, load.replicas - step), f"{target} have sufficed for {lasted_s:.0f} s"


@dataclass(slots=True)
class _Memory:
    """What is remembered of a pool between decisions."""

    per_worker: float | None = None
    demand: float = 0.0
    ready: int = 0
    asked_s: float = -math.inf
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
        """Workers that meet the demand, as far as it is known; otherwise as many as there are."""
        if load.demand_per_s is None:
            return load.replicas
        if self.demand < _NOTHING and not load.queue:
            return 0
        if self.per_worker is None:
            return max(load.replicas, 1)
        return math.ceil(self.demand * policy.headroom / self.per_worker - _ROUNDING) + load.stuck


_EVIDENCE = 0.2
"""Workers' worth of work that has to be seen before a rate is believed."""
_NOTHING = 1e-3
"""Clips a second that count as none."""
_ROUNDING = 1e-6


def classify(load: PoolLoad, policy: Policy) -> Saturation:
    """What holds this pool, or whom it holds."""
    if load.wait > policy.wait_high:
        working = load.ready - load.stuck
        if load.busy >= policy.busy_high or (load.queue and not working) or load.queue > 4 * max(1, load.ready) > 0:
            return Saturation.BOTTLENECK
        return Saturation.STARVED
    if load.full:
        return Saturation.BUFFERED
    return Saturation.BALANCED


def _bounded(load: PoolLoad, limits: Limits, wanted: int, reason: str) -> tuple[int, str]:
    if wanted > limits.max:
        return max(limits.max, limits.min), f"{reason}; the maximum is {limits.max} ({limits.max_because})"
    if wanted < limits.min:
        return limits.min, f"{reason}; the minimum is {limits.min}"
    return wanted, reason
