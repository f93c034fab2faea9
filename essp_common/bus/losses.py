"""What a reader has missed: records that were gone from their topic before they were read.

They expired, or they or their topic were deleted. Reading continues with the records that remain, and the master issues
the lost work again. Only users can prevent the next loss, so they have to learn of this one. Pure: time is passed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from essp_common.runtime.troubles import Kind

_TOLD_S = 600.0
"""For how long a loss is reported. It is over at once, and users would not see it."""


class Losses:
    """Used by one thread; `troubles` by any."""

    def __init__(self, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._clock = clock
        self._lost = 0
        self._last: tuple[str, float] | None = None
        """The last loss in words, and when it was noticed."""

    def expired(self, topic: str, records: int) -> None:
        """The next `records` to be read no longer exist."""
        self._lost += records
        self._note(
            f"group {self._group} has missed {self._lost} records, the last ones of {topic}: they expired, or were "
            f"deleted, before they were read; raise retention.ms and retention.bytes of {topic}"
        )

    def made_anew(self, topic: str) -> None:
        """The topic was replaced by a new one of the same name."""
        self._note(
            f"{topic} was deleted and made again, or the broker has lost its log: what group {self._group} had not "
            "read of it is lost; it is read from its beginning"
        )

    def troubles(self) -> dict[Kind, str]:
        """Report the last loss for a while."""
        if self._last is None or self._clock() - self._last[1] > _TOLD_S:
            return {}
        return {Kind.BUS_LOSES: self._last[0] + "; what was lost is issued again"}

    @property
    def words(self) -> str:
        """The last loss; empty if there was none."""
        return self._last[0] if self._last else ""

    def _note(self, words: str) -> None:
        self._last = words, self._clock()
