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

    def fits(self, size: int) -> bool:
        """Whether `size` bytes (fewer than 0 gives back) are there."""
        return size <= 0 or self.outstanding_bytes + size <= self.budget_bytes

    def reserve(self, size: int) -> bool:
        """Take `size` bytes if they are there."""
        if not self.fits(size):
            return False
        self.outstanding_bytes += size
        return True
