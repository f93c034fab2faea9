"""Simulates clips through a setup, event by event.

The master issues clips as long as there is credit. Each clip passes through one pool after another, first come, first
served. Trainers take clips in index order, in batches. The credit of a clip is returned when all trainers have finished
its batch. On one machine, a task that has a worker also waits for a core.

The duration of a task varies around its mean. The random numbers come from a seed, so a simulation can be repeated.
Faults are not simulated, and neither are memory and links, which `limits.py` covers.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field, replace

from essp.capacity.setups import Setup

_SPREAD = 0.4
"""Standard deviation of a task's duration, relative to its mean."""
_DRAWS = 4093
_STEADY = (0.2, 0.9)
"""The shares of all clips between which rates are measured: pipelines fill before, and drain after."""
_POINTS = 120
_DOUBLINGS = 8
CLIPS = 60_000
"""Maximum number of clips to simulate."""


@dataclass(frozen=True)
class Outcome:
    """The performance of a setup."""

    clips_per_s: float
    """Rate of clips that all trainers have finished."""
    busy: dict[str, float]
    """Share of time that the workers of each pool, and each trainer, compute."""
    cores_busy: float
    """Share of time that the cores of one machine compute; 0 for a cluster."""
    passed: tuple[tuple[float, int], ...]
    """Seconds since the start, and the number of clips that all trainers had finished by then."""


def clips_for(setup: Setup) -> int:
    """A number of clips with which each part is passed many times."""
    workers = sum(pool.workers for pool in setup.pools)
    return min(CLIPS, max(2000, 4 * setup.credits, 40 * workers, 20 * max(c.batch for c in setup.consumers)))


def simulate(setup: Setup, clips: int = 0, seed: int = 0) -> Outcome:
    """Simulate this number of clips; 0: enough to show the performance of the setup."""
    return _Simulation(setup, clips or clips_for(setup), seed).run()


def enough_credits(setup: Setup, rate: float) -> int:
    """Number of outstanding clips needed for this rate, found by doubling the present number.

    Returns 0 if no number is enough.
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
    """The state of a pool and its queue."""

    free: int
    seconds: float
    queue: deque[int] = field(default_factory=deque)
    busy_s: float = 0.0
    then: list[int] = field(default_factory=list)
    """Indices of the pools that take its clips."""
    consumer: int = -1
    """Index of the trainer that it feeds."""


@dataclass
class _Taker:
    """The state of a trainer."""

    batch: int
    seconds: float
    there: bytearray
    ready: int = 0
    """All clips before this index have arrived."""
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
        """Time, sequence number (breaks ties), index of the pool or trainer (pools come first), clip or batch."""
        self._count = 0
        self._cores = setup.cores or 1 << 30
        self._waiting: deque[tuple[int, int, float]] = deque()
        """Tasks that have a worker and wait for a core."""
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
        """Issue clips as long as there is credit."""
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
        """Begin a task that has its worker. On one machine it also needs a core."""
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
        """Handle a clip that a pool has finished."""
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
        """Begin the next batch if it is complete and the previous one is finished."""
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
