"""Who is hit when, and how: a Poisson process that follows from a seed alone.

Faults come at exponentially distributed intervals, each to a process chosen evenly. `kill` is a power failure, `term`
an orderly shutdown, `stop` a machine that freezes for a while and then goes on as if nothing had happened: sometimes
longer than the session timeout of the bus, so that it wakes up as one that others have replaced.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["kill", "term", "stop"]
KINDS: tuple[FaultKind, ...] = ("kill", "term", "stop")
_WEIGHTS = (4, 2, 3)
_FROZEN_S = 2.5
"""Mean time of a `stop`; the session timeout of the soak's bus is 2 s."""
_LONGEST_FROZEN_S = 10.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    at_s: float
    """Since the beginning."""
    victim: str
    kind: FaultKind
    frozen_s: float
    """How long a `stop` lasts."""


def faults(seed: int, mean_interval_s: float, victims: Sequence[str]) -> Iterator[Fault]:
    """The faults of a run, without end. Equal arguments give equal faults."""
    rng = random.Random(seed)
    at_s = 0.0
    while True:
        at_s += rng.expovariate(1 / mean_interval_s)
        victim = rng.choice(victims)
        kind = rng.choices(KINDS, _WEIGHTS)[0]
        frozen_s = min(rng.expovariate(1 / _FROZEN_S), _LONGEST_FROZEN_S)
        yield Fault(at_s, victim, kind, frozen_s)
