"""What a master still owes a run that it took over: read what was left, then issue again what no worker made.

A new master publishes a mark behind the messages that its predecessor left unread. Once the mark comes back, all of
them are accounted for. Until then it issues after each of them, not after many together: the older master had issued a
clip before anybody could speak of it, and a ledger that has not does not know what they speak of. Decoders drop the
work units of the older master, so what is outstanding of these then is issued again, once, and as soon as the job has
work to do.
"""

from __future__ import annotations


class Handover:
    """The two steps, for one run."""

    def __init__(self, taken_over: bool) -> None:
        """`taken_over`: False for a run that this master has started itself; then it owes nothing."""
        self._unread = taken_over
        self._unissued = taken_over

    @property
    def reads(self) -> bool:
        """Whether messages that the previous master left are still to come."""
        return self._unread

    def mark_read(self) -> None:
        """All messages that the previous master left are accounted for."""
        self._unread = False

    def is_due(self, works: bool) -> bool:
        """Whether to issue again now, if the job works; True once."""
        due = self._unissued and not self._unread and works
        self._unissued = self._unissued and not due
        return due
