"""Which fault comes when, and where: a Poisson process that follows from a seed alone.

Faults come at exponentially distributed intervals. What one is aimed at is chosen evenly among what it can be aimed at:

    kill    a process           a power failure
    term    a process           an orderly shutdown
    stop    a process           a machine that freezes and then goes on as if nothing had happened: sometimes longer
                                than the session timeout of the bus, so that others have replaced it when it wakes up
    twin    a trainer           a second process of the same name, as when a node was lost only for a while
    flush   the cache           Redis loses all it has
    poison  a topic             a record that no process of ESSP writes
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from essp_common.pb.v1.messages_pb2 import TRAIN, Control, DecodeSeed, Heartbeat, Made, Progress, Seed

FaultKind = Literal["kill", "term", "stop", "twin", "flush", "poison"]
WEIGHTS: dict[FaultKind, int] = {"kill": 4, "term": 2, "stop": 3, "twin": 2, "flush": 1, "poison": 3}
_FROZEN_S = 2.5
"""Mean time of a `stop`; the session timeout of the soak's bus is 2 s."""
_LONGEST_FROZEN_S = 10.0
_LARGEST_POISON_BYTES = 900_000
"""Brokers take a mebibyte."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    at_s: float
    """Since the beginning."""
    kind: FaultKind
    victim: str
    """A process, the cache or a topic."""
    frozen_s: float = 0.0
    """How long a `stop` lasts."""
    record: bytes | None = None
    """Of `poison`; None: a record without a value."""


def faults(seed: int, mean_interval_s: float, victims: Mapping[FaultKind, Sequence[str]]) -> Iterator[Fault]:
    """The faults of a run, without end. `victims`: what each kind may hit. Equal arguments give equal faults."""
    rng = random.Random(seed)
    kinds = [kind for kind in WEIGHTS if victims.get(kind)]
    at_s = 0.0
    while True:
        at_s += rng.expovariate(1 / mean_interval_s)
        kind = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
        victim = rng.choice(victims[kind])
        if kind == "stop":
            yield Fault(at_s, kind, victim, frozen_s=min(rng.expovariate(1 / _FROZEN_S), _LONGEST_FROZEN_S))
        elif kind == "poison":
            yield Fault(at_s, kind, victim, record=_poison(rng))
        else:
            yield Fault(at_s, kind, victim)


def _poison(rng: random.Random) -> bytes | None:
    """Nothing, noise, or a message with numbers and names that there are not."""
    nobody = f"nobody-{rng.randrange(100)}"
    return rng.choice(
        [
            None,
            b"",
            rng.randbytes(rng.randrange(1, 64)),
            rng.randbytes(rng.randrange(1, _LARGEST_POISON_BYTES)),
            b"\xff" * rng.randrange(1, 64),
            DecodeSeed(job=nobody, purpose=TRAIN, seeds=[Seed(index=2**62)]).SerializeToString(),
            Control(job=nobody, command=Control.STOP, fence=2**62).SerializeToString(),
            Progress(job=nobody, made=Made(indices=[2**62], seconds=math.nan)).SerializeToString(),
            Progress(
                worker=nobody, heartbeat=Heartbeat(pool="decoder", gauges={"in_hand": math.nan})
            ).SerializeToString(),
        ]
    )
