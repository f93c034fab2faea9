"""What an aggregator reports in its heartbeats: how busy it is, and how many candidates wait for aggregators.

The master sizes the pool by these (`essp_master/pools/load.py`). A search may last for hours, so that a candidate is in
progress for long does not mean that its process hangs: its age is not reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from essp_engine.worker.heartbeat import LaneLoad


class AggregatorLoad:
    """The load of one aggregator. Thread-safe."""

    def __init__(self, processes: int) -> None:
        """`processes`: the maximum number of candidates that it tries at a time."""
        self._processes = processes
        self._threads = LaneLoad(1)
        self.waiting = 0
        """Candidates of the search that it shares with the others which have no result yet."""

    @contextmanager
    def working(self) -> Iterator[None]:
        """The calling thread fuses a job, or tries candidates."""
        self._threads.begin()
        try:
            yield
        finally:
            self._threads.end()

    def gauges(self) -> dict[str, float]:
        """The gauges of a heartbeat."""
        taken = self._threads.take()
        return {
            "busy": taken["busy"],
            "in_hand": taken["in_hand"],
            "lanes": float(self._processes),
            "queue": float(self.waiting),
        }
