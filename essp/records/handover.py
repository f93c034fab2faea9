"""Decides which process has which batch of a shared loader: pure logic over an array of integers.

    free ──written──▶ ready ──taken──▶ held by a member ──it asks for the next──▶ free
                        ▲                    │
                        └── the member died ─┘

A *member* is a process that takes batches. It holds one at a time; that one counts as used when the member asks for the
next one, or leaves the epoch. The batch of a member that has died goes back to the front of the queue.

An epoch is *over* when all of its batches have been written and used, so no member sees it end while another one may
still give a batch back. Members ask for epochs by number. A member that comes late finds finished epochs empty, so all
members use the same numbers. The next epoch begins when the present one is over, or when every member has left it; in
that case the rest of it is dropped.

Every method is one step. The caller (`ring.py`) performs it under a lock on a copy of the integers, and switches to the
copy with a single store: a step happens completely or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

MOST_SLOTS = 64
"""More batches ahead would not reduce waiting."""

WAIT, OVER, ENDED = -1, -2, -3
"""The answers of `take` without a slot: no batch is ready; the epoch is over; the loader has ended."""

_STATUS, _EPOCH, _FED_EPOCH, _FED_STOP, _SLOTS, _HEAD, _READY, _FREE = range(8)
_MEMBERS_WAIT, _FEEDER_WAITS, _JOINED, _TEXT, _TEXT_BYTES = range(8, 13)
_FIXED = 13
READY_WORD = _READY
"""Index of the word that counts the batches ready to be taken."""
_SLOT_WORDS = 5
"""Epoch, start and stop in it, place and bytes in memory."""
_MEMBER_WORDS = 3
"""Its process (0: free), the epoch that it is in, and the slot that it holds."""
_NONE = -1


class Status(IntEnum):
    """The status of the loader."""

    OPEN = 0
    CLOSED = 1
    FAILED = 2


class Slot(NamedTuple):
    """A batch that was written."""

    epoch: int
    start: int
    """Index of its first record in the epoch."""
    stop: int
    place: int
    """Where its bytes begin in memory."""
    size: int


class Standing(NamedTuple):
    """The progress of an epoch."""

    epoch: int
    written: int | None
    """The index up to which batches have been written; None: all of them."""
    unused: list[tuple[int, int]]
    """Start and stop of the batches that were written but not used, ascending."""


class Board:
    """The integers, and the steps on them. `wake_members` and `wake_feeder` say which processes must be woken
    afterwards."""

    def __init__(self, members: int) -> None:
        """`members`: the largest number of simultaneous members."""
        self.members = members
        self.most_slots = max(MOST_SLOTS, 2 * members + 2)
        self._ready = _FIXED
        self._free = self._ready + self.most_slots
        self._rows = self._free + self.most_slots
        self._people = self._rows + _SLOT_WORDS * self.most_slots
        self.size = self._people + _MEMBER_WORDS * members
        """The number of integers."""
        self.words: memoryview[int] | list[int] = []
        self.wake_members = 0
        self.wake_feeder = False

    # --- the whole loader ---

    def begin(self, epoch: int, index: int, text: int, text_bytes: int) -> bool:
        """Start from there, unless a member has joined. `text` points to a text for the members (`ring.py`)."""
        w = self.words
        if w[_JOINED]:
            return False
        for row in range(self.members):
            w[self._member(row) + 1] = w[self._member(row) + 2] = _NONE
        w[_EPOCH] = w[_FED_EPOCH] = epoch
        w[_FED_STOP] = index
        w[_TEXT], w[_TEXT_BYTES] = text, text_bytes
        return True

    def end(self, status: Status, text: int = 0, text_bytes: int = 0) -> None:
        """Announce that no more batches come."""
        w = self.words
        if w[_STATUS] == Status.OPEN:
            w[_STATUS] = status
            if text_bytes:
                w[_TEXT], w[_TEXT_BYTES] = text, text_bytes
        self._wake_all()
        self.wake_feeder = True

    @property
    def status(self) -> Status:
        """The status of the loader."""
        return Status(self.words[_STATUS])

    @property
    def joined(self) -> bool:
        """Whether any member has ever joined."""
        return bool(self.words[_JOINED])

    @property
    def epoch(self) -> int:
        """The epoch from which members take at present."""
        return self.words[_EPOCH]

    @property
    def fed_epoch(self) -> int:
        """The epoch whose batches are being written, or must be written next."""
        return self.words[_FED_EPOCH]

    def text(self) -> tuple[int, int]:
        """Place and length in bytes of the text for the members."""
        return self.words[_TEXT], self.words[_TEXT_BYTES]

    @property
    def ready_slots(self) -> int:
        """Batches that can be taken, from this epoch or a later one."""
        return self.words[_READY]

    @property
    def free_slots(self) -> int:
        """Slots that can be written."""
        return self.words[_FREE]

    def slot(self, slot: int) -> Slot:
        """The contents of a slot that a member holds."""
        row = self._slot(slot)
        return Slot(*self.words[row : row + _SLOT_WORDS])

    def standing(self, mine: int | None) -> Standing:
        """The progress of the present epoch; the batch that member `mine` holds counts as used."""
        w = self.words
        slots = [*self._ready_slots(), *(held for member, held in self._held() if member != mine)]
        unused = sorted((slot.start, slot.stop) for slot in map(self.slot, slots) if slot.epoch == w[_EPOCH])
        return Standing(w[_EPOCH], w[_FED_STOP] if w[_FED_EPOCH] == w[_EPOCH] else None, unused)

    # --- the feeder ---

    def open_slots(self, slots: int) -> None:
        """Use this many slots from now on."""
        w = self.words
        w[_SLOTS] = w[_FREE] = slots
        for slot in range(slots):
            w[self._free + slot] = slot

    def reserve(self) -> int:
        """A free slot to write to, or `WAIT`."""
        w = self.words
        if not w[_FREE]:
            w[_FEEDER_WAITS] = 1
            return WAIT
        w[_FREE] -= 1
        return w[self._free + w[_FREE]]

    def publish(self, slot: int, written: Slot) -> int:
        """Offer the batch written to a reserved slot, and reserve another slot.

        Returns the same slot, unused, if members have moved on to another epoch meanwhile (`fed_epoch`).
        """
        w = self.words
        if written.epoch != w[_FED_EPOCH]:
            return slot
        row = self._slot(slot)
        for place, word in enumerate(written):
            w[row + place] = word
        w[self._ready + (w[_HEAD] + w[_READY]) % self.most_slots] = slot
        w[_READY] += 1
        w[_FED_STOP] = written.stop
        self._wake_one()
        return self.reserve()

    def end_epoch(self, epoch: int) -> None:
        """Note that all batches of this epoch have been written."""
        w = self.words
        if epoch == w[_FED_EPOCH]:
            w[_FED_EPOCH], w[_FED_STOP] = epoch + 1, 0
            self._wake_all()

    # --- the members ---

    def free_member(self) -> int:
        """A place for one more member, or `WAIT`."""
        return next((member for member in range(self.members) if not self.words[self._member(member)]), WAIT)

    def join(self, member: int, process: int) -> None:
        """Take a free place."""
        row = self._member(member)
        self.words[row], self.words[row + 1], self.words[row + 2] = process, _NONE, _NONE
        self.words[_JOINED] = 1
        self.wake_feeder = True

    def processes(self) -> list[tuple[int, int]]:
        """Members, and the process of each."""
        found = ((member, self.words[self._member(member)]) for member in range(self.members))
        return [(member, process) for member, process in found if process]

    def holders(self) -> list[int]:
        """The processes that hold a batch."""
        return [self.words[self._member(member)] for member, _ in self._held()]

    def take(self, member: int, epoch: int, waits: bool = True) -> int:
        """Take a batch of that epoch: its slot, or `WAIT`, `OVER` or `ENDED`. The batch that the member held counts as
        used.

        `waits`: the member will wait if there is no batch, so it must be woken.
        """
        w = self.words
        row = self._member(member)
        held = w[row + 2]
        if held >= 0:
            w[row + 2] = _NONE
            self._release(held)
        if w[_STATUS]:
            return ENDED
        if epoch > w[_EPOCH]:
            w[row + 1] = _NONE
            if not self._begin_epoch(epoch):
                return self._wait(waits)
        if epoch == w[_EPOCH]:
            if w[_READY]:
                slot = w[self._ready + w[_HEAD]]
                if w[self._slot(slot)] == epoch:
                    w[_HEAD] = (w[_HEAD] + 1) % self.most_slots
                    w[_READY] -= 1
                    w[row + 1], w[row + 2] = epoch, slot
                    return slot
            if not self._is_over():
                w[row + 1] = epoch
                return self._wait(waits)
        w[row + 1] = _NONE
        self._wake_all()
        return OVER

    def leave(self, member: int, used: bool) -> None:
        """Leave the epoch. The batch that the member holds was used, or is returned."""
        w = self.words
        row = self._member(member)
        held = w[row + 2]
        w[row + 1] = w[row + 2] = _NONE
        if held >= 0 and (used or w[self._slot(held)] < w[_EPOCH]):
            self._release(held)
        elif held >= 0:
            w[_HEAD] = (w[_HEAD] - 1) % self.most_slots
            w[self._ready + w[_HEAD]] = held
            w[_READY] += 1
        self._wake_all()

    def bury(self, member: int) -> None:
        """Remove a member that has died or ended: its place becomes free, and its batch goes to the others."""
        self.leave(member, used=False)
        self.words[self._member(member)] = 0

    # --- internals ---

    def _begin_epoch(self, epoch: int) -> bool:
        """Move on to that epoch if no member is in the present one, or it is over. Returns whether members now take
        from it."""
        w = self.words
        inside = any(w[self._member(member) + 1] == w[_EPOCH] for member in range(self.members))
        if inside and not self._is_over():
            return False
        while w[_READY] and w[self._slot(w[self._ready + w[_HEAD]])] < epoch:
            dropped = w[self._ready + w[_HEAD]]
            w[_HEAD] = (w[_HEAD] + 1) % self.most_slots
            w[_READY] -= 1
            self._release(dropped)
        w[_EPOCH] = epoch
        self._wake_all()  # the previous epoch is over for members that were still in it
        if w[_FED_EPOCH] < epoch:
            w[_FED_EPOCH], w[_FED_STOP] = epoch, 0
            self.wake_feeder = True
        return True

    def _is_over(self) -> bool:
        """Whether the present epoch was fully written and none of its batches is ready or held."""
        w = self.words
        if w[_FED_EPOCH] <= w[_EPOCH]:
            return False
        first = w[self._ready + w[_HEAD]] if w[_READY] else _NONE
        if first >= 0 and w[self._slot(first)] == w[_EPOCH]:
            return False
        return not any(w[self._slot(held)] == w[_EPOCH] for _, held in self._held())

    def _release(self, slot: int) -> None:
        w = self.words
        w[self._free + w[_FREE]] = slot
        w[_FREE] += 1
        # Wake the feeder for half of the slots at a time: waking a process costs more than writing a small batch.
        if w[_FEEDER_WAITS] and 2 * w[_FREE] >= w[_SLOTS] - self.members:
            w[_FEEDER_WAITS] = 0
            self.wake_feeder = True

    def _wait(self, waits: bool) -> int:
        self.words[_MEMBERS_WAIT] = min(self.words[_MEMBERS_WAIT] + waits, self.members)
        return WAIT

    def _wake_one(self) -> None:
        if self.words[_MEMBERS_WAIT]:
            self.words[_MEMBERS_WAIT] -= 1
            self.wake_members += 1

    def _wake_all(self) -> None:
        self.wake_members += self.words[_MEMBERS_WAIT]
        self.words[_MEMBERS_WAIT] = 0

    def _ready_slots(self) -> Iterator[int]:
        w = self.words
        return (w[self._ready + (w[_HEAD] + i) % self.most_slots] for i in range(w[_READY]))

    def _held(self) -> Iterator[tuple[int, int]]:
        """Members, and the slot that each holds."""
        found = ((member, self.words[self._member(member) + 2]) for member, _ in self.processes())
        return ((member, slot) for member, slot in found if slot >= 0)

    def _slot(self, slot: int) -> int:
        return self._rows + _SLOT_WORDS * slot

    def _member(self, member: int) -> int:
        return self._people + _MEMBER_WORDS * member
