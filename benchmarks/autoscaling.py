"""The autoscaler against plain rules, in a simulated cluster: how soon the trainers are fed, and at what cost.

    trace            what happens
    step_load        trainers take 20 clips/s, then 80
    slow_start       a new worker needs 90 s to come up
    stuck_worker     a quarter of the workers hang, holding their clips, and are replaced after ten minutes
    oscillation      trainers change between two speeds every 90 s
    epoch_end        after each 300 s of training, 60 s in which nothing is taken

Rules compared: `essp` (`services/essp_master/pools/autoscaler.py`), `hpa_cpu` (HorizontalPodAutoscaler on 80 % CPU:
every 15 s, tolerance 0.1, at most doubling in 15 s, down to the largest wish of the last 300 s), `keda_lag` (KEDA's
Kafka scaler: workers = waiting clips / 10, its default, through the same HPA rules) and `keda_tuned` (the best of 2, 5,
10, 20, 40 in place of that 10, found by trying them all on the very trace: better than anybody could set it
beforehand).

The cluster is a fluid model in steps of a second: one pool of decoders that feeds one extractor pool that feeds the
trainers, bounded by credits. A worker burns CPU while it works; one that waits for its input does not.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from benchmarks.figures import Figure, Scale
from essp_master.pools.autoscaler import Autoscaler, Limits, PoolLoad

_PERIOD_S = 10
_LAG = 10
"""Clips waiting for each worker: KEDA's default."""
_LAGS = (2, 5, 10, 20, 40)
_FED = 0.95
"""Trainers count as fed when they get this share of what they could take..."""
_FOR_S = 30
"""...for so long."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What happens in a simulated cluster."""

    seconds: int
    demand: Callable[[int], float]
    """Clips a second that trainers take at most, by time."""
    start_s: int = 20
    """How long a worker takes to come up."""
    stuck: tuple[int, int, float] = (0, 0, 0.0)
    """`(begin_s, end_s, share)`: in this time, this share of the workers hangs."""
    credits: int = 400
    """Clips that may be outstanding."""


TRACES = {
    "step_load": Trace(seconds=1800, demand=lambda s: 20.0 if s < 300 else 80.0),
    "slow_start": Trace(seconds=1800, demand=lambda s: 60.0, start_s=90),
    "stuck_worker": Trace(seconds=1800, demand=lambda s: 40.0, stuck=(600, 1200, 0.25)),
    "oscillation": Trace(seconds=2400, demand=lambda s: 60.0 if s // 90 % 2 else 30.0),
    "epoch_end": Trace(seconds=2400, demand=lambda s: 0.0 if s % 360 >= 300 else 50.0),
}
RATES = {"decoder": 5.0, "extractor.flow": 2.5}
"""Clips a second of one worker."""


@dataclass
class Pool:
    """A simulated pool."""

    rate: float
    start_s: int
    ready: int = 1
    coming: deque[int] = field(default_factory=deque)
    stuck: int = 0
    done: float = 0.0
    """Clips of the last second."""
    queue: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_PERIOD_S))

    @property
    def replicas(self) -> int:
        """Workers asked for."""
        return self.ready + len(self.coming)

    @property
    def busy(self) -> float:
        """Share of the last seconds in which the workers worked."""
        able = self.ready * self.rate * max(1, len(self.recent))
        return min(1.0, sum(self.recent) / able) if able else 0.0

    def scale(self, wanted: int, now_s: int) -> None:
        """Ask for `wanted` workers. To have fewer, those that are still coming up are cancelled first."""
        while self.replicas > wanted:
            if self.coming:
                self.coming.pop()
            else:
                self.ready -= 1
        while self.replicas < wanted:
            self.coming.append(now_s + self.start_s)

    def work(self, now_s: int, room: float) -> float:
        """One second of it; what was made."""
        while self.coming and self.coming[0] <= now_s:
            self.coming.popleft()
            self.ready += 1
        self.stuck = min(self.stuck, self.ready)
        self.done = max(0.0, min((self.ready - self.stuck) * self.rate, self.queue, room))
        self.queue -= self.done
        self.recent.append(self.done)
        return self.done


class Rule(Protocol):
    """Decides about the pools every second, if it wants to."""

    def decide(self, cluster: Cluster, now_s: int) -> None:
        """Scale the cluster's pools."""


class Cluster:
    """Decoders, extractors and trainers over one budget of credits."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.pools = {name: Pool(rate, trace.start_s) for name, rate in RATES.items()}
        self.ready = 0.0
        """Clips that trainers may take."""
        self.taken = 0.0
        self.wanted = 0.0
        self.waits: deque[tuple[float, float]] = deque(maxlen=_PERIOD_S)

    def second(self, now_s: int) -> None:
        """Let a second pass."""
        begin, end, share = self.trace.stuck
        decoder, extractor = self.pools.values()
        for pool in self.pools.values():
            pool.stuck = math.ceil(pool.ready * share) if now_s == begin and share else pool.stuck
            pool.stuck = 0 if now_s == end else pool.stuck
        outstanding = decoder.queue + extractor.queue + self.ready
        decoder.queue += max(0.0, self.trace.credits - outstanding)
        extractor.queue += decoder.work(now_s, math.inf)
        self.ready += extractor.work(now_s, math.inf)
        self.wanted = self.trace.demand(now_s)
        self.taken = min(self.wanted, self.ready)
        self.ready -= self.taken
        self.waits.append((self.taken, self.wanted))

    @property
    def wait(self) -> float:
        """Share of the last seconds in which trainers waited."""
        wanted = sum(w for _, w in self.waits)
        return 1.0 - sum(t for t, _ in self.waits) / wanted if wanted else 0.0


class Essp:
    """The autoscaler of ESSP."""

    def __init__(self) -> None:
        self._autoscaler = Autoscaler()

    def decide(self, cluster: Cluster, now_s: int) -> None:
        """Every ten seconds, from what the master would know."""
        if now_s % _PERIOD_S:
            return
        taken, wait = sum(t for t, _ in cluster.waits) / len(cluster.waits), cluster.wait
        demand = taken / (1 - wait) if wait < 1 else None
        loads = [
            PoolLoad(
                name=name,
                replicas=pool.replicas,
                ready=pool.ready,
                stuck=pool.stuck,
                busy=min(1.0, pool.busy + pool.stuck / max(1, pool.ready)),
                done_per_s=sum(pool.recent) / len(pool.recent),
                queue=round(pool.queue),
                demand_per_s=demand,
                wait=wait,
                full=cluster.ready >= 0.5 * cluster.trace.credits,
            )
            for name, pool in cluster.pools.items()
        ]
        for decision in self._autoscaler.decide([(load, Limits(min=1)) for load in loads], now_s):
            cluster.pools[decision.pool].scale(decision.wanted, now_s)


class Hpa:
    """The rules of a HorizontalPodAutoscaler over some measure of each pool."""

    def __init__(self, wish: Callable[[Pool], float], period_s: int = 15, down_s: int = 300) -> None:
        """`wish`: present size of a pool -> the size its metric asks for."""
        self._wish = wish
        self._period_s = period_s
        self._wishes: dict[str, deque[int]] = {name: deque(maxlen=down_s // period_s) for name in RATES}

    def decide(self, cluster: Cluster, now_s: int) -> None:
        """Every period: within the tolerance nothing, up at once, down to the largest wish of the window."""
        if now_s % self._period_s:
            return
        for name, pool in cluster.pools.items():
            ratio = self._wish(pool) / max(1, pool.replicas)
            size = pool.replicas if abs(ratio - 1) <= 0.1 else math.ceil(ratio * pool.replicas)
            size = min(max(1, size), max(2 * pool.replicas, pool.replicas + 4), 64)
            self._wishes[name].append(size)
            pool.scale(size if size > pool.replicas else min(pool.replicas, max(self._wishes[name])), now_s)


def keda(lag: int) -> Rule:
    """KEDA's Kafka scaler: one worker for each `lag` clips that wait."""
    return Hpa(lambda pool: pool.queue / lag, period_s=30)


RULES: dict[str, tuple[Callable[[], Rule], ...]] = {
    "essp": (Essp,),
    "hpa_cpu": (lambda: Hpa(lambda pool: pool.replicas * pool.busy / 0.8),),
    "keda_lag": (lambda: keda(_LAG),),
    "keda_tuned": tuple(partial(keda, lag) for lag in _LAGS),
}
"""Of several settings of a rule the best counts."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a rule did on a trace."""

    fed: float
    """Share of the clips that trainers could have taken which they got."""
    first_fed_s: int | None
    """How long until trainers were fed for the first time; None: never."""
    waste: float
    """Worker seconds beyond what the demand needed, as a share of what it needed."""
    changes: int
    """How often a pool's size was changed."""


def simulate(trace: Trace, rule: Rule) -> Outcome:
    """Let a rule run a cluster through a trace."""
    cluster = Cluster(trace)
    taken = wanted = used = needed = 0.0
    first: int | None = None
    changes = fed_s = 0
    for now_s in range(trace.seconds):
        cluster.second(now_s)
        before = [pool.replicas for pool in cluster.pools.values()]
        rule.decide(cluster, now_s)
        changes += before != [pool.replicas for pool in cluster.pools.values()]
        taken, wanted = taken + cluster.taken, wanted + cluster.wanted
        fed_s = fed_s + 1 if cluster.taken >= _FED * cluster.wanted else 0
        if first is None and fed_s == _FOR_S:
            first = now_s - _FOR_S + 1
        used += sum(pool.replicas for pool in cluster.pools.values())
        needed += sum(cluster.wanted / pool.rate for pool in cluster.pools.values())
    return Outcome(fed=taken / wanted, first_fed_s=first, waste=max(0.0, used - needed) / needed, changes=changes)


def best(trace: Trace, settings: tuple[Callable[[], Rule], ...]) -> Outcome:
    """The outcome of the setting that feeds the trainers best."""
    return max((simulate(trace, build()) for build in settings), key=lambda outcome: outcome.fed)


def autoscaling(scale: Scale) -> Iterator[Figure]:
    """Each rule on each trace."""
    for name, trace in TRACES.items():
        for rule, settings in RULES.items():
            outcome = best(trace, settings)
            yield Figure(f"autoscaling.{name}.{rule}.fed", outcome.fed, "share of what trainers could take")
            yield Figure(f"autoscaling.{name}.{rule}.first", outcome.first_fed_s or math.inf, "s until they were fed")
            yield Figure(f"autoscaling.{name}.{rule}.waste", outcome.waste, "worker seconds beyond need / needed")
            yield Figure(f"autoscaling.{name}.{rule}.changes", outcome.changes, "changes of size")
