"""CPU and wall time of a clip, start-up left out: what twice the clips cost more.

Each run is a process of its own and its children are counted, so a piece of work has to end what it started. Other
load on the machine hits whatever runs at that moment; so pieces of work that are to be compared take turns, and what
is reported is the median of the ratios, round by round.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any


@dataclass(frozen=True, slots=True)
class Cost:
    """What one clip costs."""

    cpu_ms: float
    wall_ms: float


@dataclass(frozen=True, slots=True)
class Work:
    """A function of a module and its arguments; it is called with the number of clips to make as one more."""

    function: Callable[..., None]
    arguments: tuple[Any, ...]
    clips: int
    """Clips of the shorter of the two runs that make a cost."""


Costs = Mapping[str, Sequence[Cost]]
"""What each piece of work cost, round by round."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two costs over the rounds: median, least and greatest."""

    median: float
    low: float
    high: float


def cpu(cost: Cost) -> float:
    """The processor time of a clip."""
    return cost.cpu_ms


def wall(cost: Cost) -> float:
    """The time from one clip to the next."""
    return cost.wall_ms


def in_rounds(works: Mapping[str, Work], rounds: int) -> dict[str, list[Cost]]:
    """Each piece of work `rounds` times, taking turns."""
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            costs[name].append(per_clip(work))
    return costs


def per_clip(work: Work) -> Cost:
    """The cost of a clip, from a run with `work.clips` and one with three times as many."""
    return marginal(_run(work, work.clips), _run(work, 3 * work.clips), 2 * work.clips)


def marginal(less: Cost, more: Cost, clips: int) -> Cost:
    """What each of the `clips` that the second run makes beyond the first costs."""
    return Cost((more.cpu_ms - less.cpu_ms) / clips, (more.wall_ms - less.wall_ms) / clips)


def ratio(over: Sequence[Cost], under: Sequence[Cost], figure: Callable[[Cost], float]) -> Ratio:
    """How many times as much the first costs as the second."""
    return spread([figure(a) / figure(b) for a, b in zip(over, under, strict=True)])


def spread(values: Sequence[float]) -> Ratio:
    """The median, and between what the values lie."""
    return Ratio(statistics.median(values), min(values), max(values))


def cheapest(costs: Costs, names: Sequence[str], figure: Callable[[Cost], float]) -> tuple[str, Sequence[Cost]]:
    """Of these pieces of work, the one with the least median cost."""
    name = min(names, key=lambda name: statistics.median(map(figure, costs[name])))
    return name, costs[name]


def _run(work: Work, clips: int) -> Cost:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(sender, work.function, (*work.arguments, clips)))
    process.start()
    sender.close()
    try:
        cost: Cost = receiver.recv()
    except EOFError:
        raise RuntimeError(f"{work.function.__name__} died; its error stands above") from None
    finally:
        process.join()
    return cost


def _measured(sender: Connection, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    multiprocessing.set_start_method(None, force=True)  # workers start as in a program of one's own
    begin = time.perf_counter()
    function(*arguments)
    wall_s = time.perf_counter() - begin
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    sender.send(Cost(1000 * sum(usage.ru_utime + usage.ru_stime for usage in usages), 1000 * wall_s))
