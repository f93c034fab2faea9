"""Which offset of a partition may be committed while its records finish in any order.

A commit means "everything below is done", so it may only advance to the first unfinished record. Offsets of one
partition are delivered in ascending order but may have gaps (a real broker leaves them), so the delivered offsets are
tracked instead of counted. Not thread-safe: each adapter already has a lock.
"""

from __future__ import annotations

from collections import deque


class Watermark:
    """One partition from the view of one subscriber."""

    def __init__(self, position: int, delivery: int = 0) -> None:
        """`position`: the first offset that will be delivered. `delivery`: the `Record.delivery` of these records."""
        self.delivery = delivery
        self.start = self._position = position
        """The first offset to be delivered."""
        self._waiting: deque[int] = deque()
        self._done: set[int] = set()

    @property
    def position(self) -> int:
        """The offset after the last delivered one."""
        return self._position

    @property
    def committable(self) -> int:
        """The offset below which everything delivered is done."""
        return self._waiting[0] if self._waiting else self._position

    def delivered(self, offset: int) -> None:
        """A record was delivered; offsets only grow."""
        if offset < self._position:
            raise ValueError(f"offset {offset} was delivered before; the next is {self._position} or later")
        self._waiting.append(offset)
        self._position = offset + 1

    def done(self, offset: int) -> bool:
        """A record is finished. Returns True if that advanced `committable`.

        An offset that was not delivered here (before a rebalance), or is already done, changes nothing.
        """
        if not self._waiting or not self._waiting[0] <= offset < self._position:
            return False
        self._done.add(offset)
        moved = False
        while self._waiting and self._waiting[0] in self._done:
            self._done.remove(self._waiting.popleft())
            moved = True
        return moved
