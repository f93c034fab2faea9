"""CPU and wall time of a clip, start-up left out: what twice the clips cost more.

Each run is a process of its own and its children are counted, so `work(clips)` has to end what it started.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cost:
    """What one clip costs."""

    cpu_ms: float
    wall_ms: float


Work = tuple[Callable[..., None], tuple[Any, ...]]
"""A function and its arguments; the number of clips to make is its last argument."""


def per_clip(work: Work, clips: int) -> Cost:
    """The cost of a clip, from a run with `clips` and one with three times as many."""
    less, more = _run(work, clips), _run(work, 3 * clips)
    return Cost(1000 * (more[0] - less[0]) / (2 * clips), 1000 * (more[1] - less[1]) / (2 * clips))


def in_rounds(works: Mapping[str, Work], clips: int, rounds: int) -> dict[str, list[Cost]]:
    """Each piece of work `rounds` times, taking turns, so that a slow spell of the machine hits all of them."""
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            costs[name].append(per_clip(work, clips))
    return costs


def ratio(over: list[Cost], under: list[Cost], figure: Callable[[Cost], float]) -> float:
    """Median of the ratios, round by round."""
    return statistics.median(figure(a) / figure(b) for a, b in zip(over, under, strict=True))


def _run(work: Work, clips: int) -> tuple[float, float]:
    function, arguments = work
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(sender, function, (*arguments, clips)))
    process.start()
    sender.close()
    try:
        cpu_s, wall_s = receiver.recv()
    except EOFError:
        raise RuntimeError(f"{function.__name__} died; its error stands above") from None
    finally:
        process.join()
    return cpu_s, wall_s


def _measured(sender: Any, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    begin = time.perf_counter()
    function(*arguments)
    wall_s = time.perf_counter() - begin
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    sender.send((sum(usage.ru_utime + usage.ru_stime for usage in usages), wall_s))
