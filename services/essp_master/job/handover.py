"""What a master still owes to a run that it took over: read the remaining messages, then reissue what no worker made.

A new master publishes a marker behind the messages that its predecessor left unread. When the marker comes back, all of
them are accounted for. Until then the master issues after each message instead of once per batch: the old master had
issued a clip before any message could refer to it, and a ledger that has not issued the clip would not recognise those
messages. Decoders drop the work units of the old master. So everything that is still outstanding afterwards is issued
again, once, as soon as the job has work to do.
"""

from __future__ import annotations


class Handover:
    """The two steps, for one run."""

    def __init__(self, taken_over: bool) -> None:
        """`taken_over`: False for a run that this master started itself, which owes nothing."""
        self._unread = taken_over
        self._unissued = taken_over

    @property
    def reads(self) -> bool:
        """Whether messages that the previous master left are still to come."""
        return self._unread

    def mark_read(self) -> None:
        """Note that all messages left by the previous master are accounted for."""
        self._unread = False

    def is_due(self, works: bool) -> bool:
        """Whether to reissue now, given whether the job works. Returns True only once."""
        due = self._unissued and not self._unread and works
        self._unissued = self._unissued and not due
        return due
