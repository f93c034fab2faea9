"""Detects that a job has stalled: clips are outstanding, and no worker has reported anything for a long time.

Each stall in a row doubles the wait for the next one, up to an hour. Pure: time is passed in.
"""

from __future__ import annotations

_MAX_WAIT_S = 3600.0


class StallWatch:
    """Remembers when a worker last reported something."""

    def __init__(self, now_s: float) -> None:
        self._reported_s = now_s
        self._stalls = 0

    def reported(self, now_s: float) -> None:
        """Work was done."""
        self._reported_s, self._stalls = now_s, 0

    def restarted(self, now_s: float) -> None:
        """The job has entered another state: the wait starts again."""
        self._reported_s = now_s

    def has_stalled(self, now_s: float, stall_s: float) -> bool:
        """Whether nothing was reported for `stall_s`, or longer after previous stalls."""
        return now_s - self._reported_s >= min(stall_s * 2.0**self._stalls, _MAX_WAIT_S)

    def acted(self, now_s: float) -> None:
        """The stall was handled; the wait for the next one doubles."""
        self._reported_s = now_s
        self._stalls += 1
