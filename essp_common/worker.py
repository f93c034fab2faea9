"""The loop of every pool worker: consume, handle, retry, dead-letter, drain.

One thread polls; `lanes` threads each own a `Stage` and handle one record at a time. What must hold:

- a record is `done` only after its effects are published, so a killed worker loses nothing;
- a transient error is retried in place with back-off (and the polling goes on, so the group keeps us);
- a permanent error, or `attempts` transient ones that are not back-pressure, ends in the stage's `reject`;
- `drain` takes nothing new, finishes what is in hand, and returns the rest to the group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from essp_common.bus.port import Record, Subscription
from essp_common.errors import EsspError


class Stage(Protocol):
    """What one lane of a worker does with a record. Used from one thread."""

    def setup(self) -> None:
        """Allocate what the lane needs (a child process, a library)."""

    def handle(self, record: Record) -> None:
        """Do the work and publish its result. Doing it twice for the same record is harmless."""

    def reject(self, record: Record, error: EsspError, attempts: int) -> None:
        """Report a record that cannot be processed: `Failed` to the master, `DeadLetter` for people."""

    def close(self) -> None:
        """Release what `setup` took; also after a `setup` that failed."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker runs."""

    lanes: int = 1
    attempts: int = 3
    """Tries of one record before it is rejected; back-pressure (`CacheFull`) does not count."""
    poll_timeout_s: float = 0.1


class Worker:
    """Runs stages over a subscription until drained."""

    def __init__(
        self, name: str, subscription: Subscription, stage: Callable[[], Stage], options: WorkerOptions
    ) -> None:
        raise NotImplementedError

    def run(self) -> None:
        """Consume until `drain` is called; raises what a lane's `setup` raised."""
        raise NotImplementedError

    def drain(self) -> None:
        """Finish what is in hand, then let `run` return. Thread-safe, idempotent."""
        raise NotImplementedError

    @property
    def in_hand(self) -> int:
        """Records being handled now."""
        raise NotImplementedError
