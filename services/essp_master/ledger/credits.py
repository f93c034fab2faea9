"""Credits: the bytes of one job that may be outstanding at once.

Before a seed is published, the ledger reserves the most bytes that its clip can take up. The actual size replaces this
once it is known. Nothing is issued beyond what is free, and the actual size is no larger as long as the bound holds.
"""

from __future__ import annotations


class Credits:
    """An account of bytes against a budget."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.outstanding_bytes = 0

    @property
    def free_bytes(self) -> int:
        """How many more may be outstanding; less than 0: actual sizes have been larger than their bound."""
        return self.budget_bytes - self.outstanding_bytes

    def fits(self, size: int) -> bool:
        """Whether `size` more bytes are free; less than 0 gives bytes back."""
        return size <= 0 or size <= self.free_bytes
