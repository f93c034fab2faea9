"""Credits: the bytes of one job that may be outstanding at once.

A reservation is made before a seed is published, at the most its clip can take up, and corrected to what it does take
up once that is known. `reserve` never goes beyond the budget; a correction only shrinks, as long as the bound holds.
"""

from __future__ import annotations


class Credits:
    """An account of bytes against a budget."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.outstanding_bytes = 0

    def reserve(self, size: int) -> bool:
        """Take `size` bytes (fewer than 0 gives back) if they are there."""
        if size > 0 and self.outstanding_bytes + size > self.budget_bytes:
            return False
        self.outstanding_bytes += size
        return True

    def correct(self, reserved: int, actual: int) -> None:
        """What was reserved turned out to be `actual` bytes."""
        self.outstanding_bytes += actual - reserved

    def release(self, size: int) -> None:
        """`size` bytes are free again."""
        self.outstanding_bytes -= size
