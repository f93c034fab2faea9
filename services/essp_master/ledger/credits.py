"""Credits: the bytes of one job that may be outstanding at once.

Before a seed is published, the ledger reserves the most bytes that its clip can take up. The actual size replaces this
once it is known. `reserve` never exceeds the budget, and the actual size is no larger as long as the bound holds.
"""

from __future__ import annotations


class Credits:
    """An account of bytes against a budget."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.outstanding_bytes = 0

    def fits(self, size: int) -> bool:
        """Whether `size` more bytes are free; less than 0 gives bytes back."""
        return size <= 0 or self.outstanding_bytes + size <= self.budget_bytes

    def reserve(self, size: int) -> bool:
        """Take `size` bytes if they are free; False if they are not."""
        if not self.fits(size):
            return False
        self.outstanding_bytes += size
        return True
