"""Clips through a setup, event by event.

The master issues clips while there is credit. Each passes a pool after the other, in the order in which it comes there,
and trainers take them in the order of their indices, in batches. A clip's credit is free when all trainers are through
with its batch. On one machine, a task waits for a core once it has a worker.

How long a task takes varies around its mean; the numbers come from a seed, so a simulation can be repeated. It knows
nothing of faults, and nothing of memory and links, which `limits.py` looks at.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field, replace

from essp.capacity.setups import Setup

_SPREAD = 0.4
"""Standard deviation of the time of a task over its mean."""
_DRAWS = 4093
_STEADY = (0.2, 0.9)
"""Shares of the clips between which rates are taken: before, pipes fill; after, they run empty."""
_POINTS = 120
_DOUBLINGS = 8
CLIPS = 60_000
"""That are simulated, where the setup is large."""


@dataclass(frozen=True)
class Outcome:
    """What a setup does."""

    clips_per_s: float
    """That all trainers are through with."""
    busy: dict[str, float]
    """Share of the time that the workers of each pool, and each trainer, compute."""
    cores_busy: float
    """Share of the time that the cores of one machine compute; 0: it is no machine."""
    passed: tuple[tuple[float, int], ...]
    """Seconds since the start, and clips that all trainers were through with by then."""


def clips_for(setup: Setup) -> int:
    """So many clips that each part is passed many times."""
    workers = sum(pool.workers for pool in setup.pools)
    return min(CLIPS, max(2000, 4 * setup.credits, 40 * workers, 20 * max(c.batch for c in setup.consumers)))


def simulate(setup: Setup, clips: int = 0, seed: int = 0) -> Outcome:
    """Let so many clips pass; 0: as many as show what the setup does."""
    return _Simulation(setup, clips or clips_for(setup), seed).run()


def enough_credits(setup: Setup, rate: float) -> int:
    """Clips that have to be outstanding for so many clips a second: what there is, doubled as often as it takes.

    0: no number of clips is enough.
    """
    if min(pool.most for pool in setup.pools) < rate:
        return 0
    for _ in range(_DOUBLINGS):
        if simulate(setup).clips_per_s >= rate:
            return setup.credits
        setup = replace(setup, credits=2 * setup.credits)
    return 0


@dataclass
class _Line:
    """What stands before a pool."""

    free: int
    seconds: float
    queue: deque[int] = field(default_factory=deque)
    busy_s: float = 0.0
    then: list[int] = field(default_factory=list)
    """The pools that take its clips."""
    consumer: int = -1
    """The trainer that it feeds."""


@dataclass
class _Taker:
    """A trainer."""

    batch: int
    seconds: float
    there: bytearray
    ready: int = 0
    """All clips before this index are there."""
    taken: int = 0
    computing: bool = False
    busy_s: float = 0.0


class _Simulation:
    def __init__(self, setup: Setup, clips: int, seed: int) -> None:
        numbers = {pool.name: number for number, pool in enumerate(setup.pools)}
        self._setup = setup
        self._clips = clips
        self._lines = [_Line(pool.workers, pool.seconds) for pool in setup.pools]
        for number, pool in enumerate(setup.pools):
            if pool.source is not None:
                self._lines[numbers[pool.source]].then.append(number)
        self._takers = [_Taker(one.batch, one.seconds, bytearray(clips + 1)) for one in setup.consumers]
        for number, consumer in enumerate(setup.consumers):
            self._lines[numbers[consumer.source]].consumer = number
        sigma = math.sqrt(math.log(1 + _SPREAD**2))
        source = random.Random(seed)
        self._draws = [source.lognormvariate(-sigma * sigma / 2, sigma) for _ in range(_DRAWS)]
        self._draw = 0
        self._now = 0.0
        self._events: list[tuple[float, int, int, int]] = []
        """When, which (ties are taken in turn), whose (pools, then trainers), the clip or batch."""
        self._count = 0
        self._cores = setup.cores or 1 << 30
        self._waiting: deque[tuple[int, int, float]] = deque()
        """Tasks with a worker that wait for a core."""
        self._core_s = 0.0
        self._issued = 0
        self._outstanding = 0
        self._left = [len(self._takers)] * clips
        self._freed = 0

    def run(self) -> Outcome:
        first, last = (max(1, int(share * self._clips)) for share in _STEADY)
        marks: list[tuple[float, list[float]]] = []
        passed: list[tuple[float, int]] = [(0.0, 0)]
        every = max(1, self._clips // _POINTS)
        self._issue()
        while self._events:
            self._now, _, who, what = heapq.heappop(self._events)
            before = self._freed
            self._ended(who, what)
            if self._freed // every != before // every:
                passed.append((self._now, self._freed))
            if len(marks) < 2 and self._freed >= (first, last)[len(marks)]:
                marks.append((self._now, self._busy()))
        (begin_s, begun), (end_s, ended) = marks
        span_s = max(end_s - begin_s, 1e-9)
        *shares, core = ((b - a) / span_s for a, b in zip(begun, ended, strict=True))
        names = [
            *((pool.name, pool.workers) for pool in self._setup.pools),
            *((c.name, 1) for c in self._setup.consumers),
        ]
        busy = {name: share / workers for (name, workers), share in zip(names, shares, strict=True)}
        cores_busy = core / self._setup.cores if self._setup.cores else 0.0
        return Outcome((last - first) / span_s, busy, cores_busy, tuple(passed))

    def _busy(self) -> list[float]:
        return [*(line.busy_s for line in self._lines), *(taker.busy_s for taker in self._takers), self._core_s]

    def _issue(self) -> None:
        """As far as there is credit."""
        while self._issued < self._clips and self._outstanding < self._setup.credits:
            self._outstanding += 1
            self._issued += 1
            self._arrive(0, self._issued - 1)

    def _arrive(self, number: int, clip: int) -> None:
        line = self._lines[number]
        if line.free:
            line.free -= 1
            self._begin(number, clip, line.seconds)
        else:
            line.queue.append(clip)

    def _begin(self, who: int, what: int, mean_s: float) -> None:
        """A task has its worker; on one machine it wants a core, too."""
        self._draw = (self._draw + 1) % _DRAWS
        seconds = mean_s * self._draws[self._draw]
        if self._cores:
            self._cores -= 1
            self._compute(who, what, seconds)
        else:
            self._waiting.append((who, what, seconds))

    def _compute(self, who: int, what: int, seconds: float) -> None:
        self._core_s += seconds
        part = self._lines[who] if who < len(self._lines) else self._takers[who - len(self._lines)]
        part.busy_s += seconds
        self._count += 1
        heapq.heappush(self._events, (self._now + seconds, self._count, who, what))

    def _ended(self, who: int, what: int) -> None:
        self._cores += 1
        if self._waiting:
            self._cores -= 1
            self._compute(*self._waiting.popleft())
        if who < len(self._lines):
            self._passed(who, what)
        else:
            self._trained(who - len(self._lines), what)

    def _passed(self, number: int, clip: int) -> None:
        """A pool is through with a clip."""
        line = self._lines[number]
        if line.queue:
            self._begin(number, line.queue.popleft(), line.seconds)
        else:
            line.free += 1
        for then in line.then:
            self._arrive(then, clip)
        if line.consumer >= 0:
            self._takers[line.consumer].there[clip] = 1
            self._train(line.consumer)

    def _train(self, number: int) -> None:
        """If the next batch is there, and the last one is over."""
        taker = self._takers[number]
        while taker.there[taker.ready]:
            taker.ready += 1
        stop = min(taker.taken + taker.batch, self._clips)
        if not taker.computing and taker.ready >= stop > taker.taken:
            taker.computing = True
            self._begin(len(self._lines) + number, stop, taker.seconds * (stop - taker.taken))

    def _trained(self, number: int, stop: int) -> None:
        taker = self._takers[number]
        for clip in range(taker.taken, stop):
            self._left[clip] -= 1
            if not self._left[clip]:
                self._outstanding -= 1
                self._freed += 1
        taker.taken, taker.computing = stop, False
        self._issue()
        self._train(number)
