"""How far the reading of many files is, for users who wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

_SHOWS = 0.01
"""The share of the work after which the rest of its duration can be estimated."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Files that did not need reading count only in `reused`."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    reused: int
    problems: int
    """Files that were read but cannot be used."""
    elapsed_s: float

    @property
    def rate(self) -> float:
        """Files a second."""
        return self.files_done / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        """Seconds left, by bytes if sizes are known. None before `_SHOWS` of the work is done: a small file does not
        predict the time for a huge one, nor for a sparse one."""
        done, total = self.bytes_done, self.bytes_total
        if not total:
            done, total = self.files_done, self.files_total
        return self.elapsed_s * (total - done) / done if done and done >= _SHOWS * total else None


Tell = Callable[[Progress], None]


class Tally:
    """Counts what is done and reports it."""

    def __init__(self, files: int, size_bytes: int, reused: int, started: float, tell: Tell | None) -> None:
        """`started`: on the monotonic clock."""
        self._now = Progress(0, files, 0, size_bytes, reused, 0, 0.0)
        self._started = started
        self._tell = tell or _silent
        self._tell(self._now)

    def count(self, size_bytes: int, problem: bool) -> None:
        """One more file is done."""
        self._now = replace(
            self._now,
            files_done=self._now.files_done + 1,
            bytes_done=self._now.bytes_done + size_bytes,
            problems=self._now.problems + problem,
            elapsed_s=time.monotonic() - self._started,
        )
        self._tell(self._now)


def _silent(_: Progress) -> None:
    return None
