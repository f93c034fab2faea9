"""Who has which batch of a loader that several processes share: decisions alone, over a row of integers.

    free ──written──▶ ready ──taken──▶ held by a member ──it asks for the next──▶ free
                        ▲                    │
                        └── the member died ─┘

A *member* is a process that takes batches. It holds one at a time; that one counts as used when the member asks for the
next, or leaves the epoch. A member that has died gives its batch back, to the front.

An epoch is *over* when all of its batches have been written and used, so no member is told that it is over while
another one may still give a batch back. Members ask for epochs by number: one that comes late finds those that are over
empty, so that all of them count alike. The next epoch begins when the present one is over, or when every member has
left it: then what is left of it is dropped.

Every method is one step. Whoever calls it (`ring.py`) does so on a copy of the integers under a lock, and puts the copy
in place with one store: a step happens or does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

MOST_SLOTS = 64
"""With more batches ahead nobody waits less."""

WAIT, OVER, ENDED = -1, -2, -3
"""What `take` answers in place of a slot: nothing is ready; the epoch is over; the loader is."""

_STATUS, _EPOCH, _FED_EPOCH, _FED_STOP, _SLOTS, _HEAD, _READY, _FREE = range(8)
_MEMBERS_WAIT, _FEEDER_WAITS, _JOINED, _TEXT, _TEXT_BYTES = range(8, 13)
_FIXED = 13
READY_WORD = _READY
"""Where the number of batches that can be taken stands."""
_SLOT_WORDS = 5
"""Epoch, start and stop in it, place and bytes in the memory."""
_MEMBER_WORDS = 3
"""Its process (0: free), the epoch that it is in, and the slot that it holds."""
_NONE = -1


class Status(IntEnum):
    """Of the loader."""

    OPEN = 0
    CLOSED = 1
    FAILED = 2


class Slot(NamedTuple):
    """A batch that was written."""

    epoch: int
    start: int
    """Index in the epoch of its first record."""
    stop: int
    place: int
    """Where its bytes begin, in the memory."""
    size: int


class Standing(NamedTuple):
    """How far an epoch is."""

    epoch: int
    written: int | None
    """Up to which index batches have been written; None: all of them."""
    unused: list[tuple[int, int]]
    """Start and stop of those that were written and are not used, ascending."""


class Board:
    """The integers, and the steps on them. `wake_members` and `wake_feeder` say who has to look again afterwards."""

    def __init__(self, members: int) -> None:
        """`members`: how many there may be at a time."""
        self.members = members
        self.most_slots = max(MOST_SLOTS, 2 * members + 2)
        self._ready = _FIXED
        self._free = self._ready + self.most_slots
        self._rows = self._free + self.most_slots
        self._people = self._rows + _SLOT_WORDS * self.most_slots
        self.size = self._people + _MEMBER_WORDS * members
        """How many integers."""
        self.words: memoryview[int] | list[int] = []
        self.wake_members = 0
        self.wake_feeder = False

    # --- the whole ---

    def begin(self, epoch: int, index: int, text: int, text_bytes: int) -> bool:
        """Start from there, unless a member has joined. Behind `text` lies what members should know (`ring.py`)."""
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
        """Nothing comes any more."""
        w = self.words
        if w[_STATUS] == Status.OPEN:
            w[_STATUS] = status
            if text_bytes:
                w[_TEXT], w[_TEXT_BYTES] = text, text_bytes
        self._wake_all()
        self.wake_feeder = True

    @property
    def status(self) -> Status:
        """Of the loader."""
        return Status(self.words[_STATUS])

    @property
    def joined(self) -> bool:
        """Some member has joined so far."""
        return bool(self.words[_JOINED])

    @property
    def epoch(self) -> int:
        """From which members take at present."""
        return self.words[_EPOCH]

    @property
    def fed_epoch(self) -> int:
        """From which batches are written, or have to be."""
        return self.words[_FED_EPOCH]

    def text(self) -> tuple[int, int]:
        """Place and bytes of what members should know."""
        return self.words[_TEXT], self.words[_TEXT_BYTES]

    @property
    def ready_slots(self) -> int:
        """Batches that can be taken, of this epoch or a later one."""
        return self.words[_READY]

    @property
    def free_slots(self) -> int:
        """Slots that can be written into."""
        return self.words[_FREE]

    def slot(self, slot: int) -> Slot:
        """What is in a slot that a member holds."""
        row = self._slot(slot)
        return Slot(*self.words[row : row + _SLOT_WORDS])

    def standing(self, mine: int | None) -> Standing:
        """Of the present epoch; what the member `mine` holds counts as used."""
        w = self.words
        slots = [*self._ready_slots(), *(held for member, held in self._held() if member != mine)]
        unused = sorted((slot.start, slot.stop) for slot in map(self.slot, slots) if slot.epoch == w[_EPOCH])
        return Standing(w[_EPOCH], w[_FED_STOP] if w[_FED_EPOCH] == w[_EPOCH] else None, unused)

    # --- who writes ---

    def open_slots(self, slots: int) -> None:
        """Have so many from now on."""
        w = self.words
        w[_SLOTS] = w[_FREE] = slots
        for slot in range(slots):
            w[self._free + slot] = slot

    def reserve(self) -> int:
        """A free slot to write into, or `WAIT`."""
        w = self.words
        if not w[_FREE]:
            w[_FEEDER_WAITS] = 1
            return WAIT
        w[_FREE] -= 1
        return w[self._free + w[_FREE]]

    def publish(self, slot: int, written: Slot) -> int:
        """Offer what was written into a reserved slot, and reserve another one.

        That is the same one, unused, if members have gone on to another epoch meanwhile (`fed_epoch`).
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
        """All batches of this epoch have been written."""
        w = self.words
        if epoch == w[_FED_EPOCH]:
            w[_FED_EPOCH], w[_FED_STOP] = epoch + 1, 0
            self._wake_all()

    # --- who takes ---

    def free_member(self) -> int:
        """A place for one more, or `WAIT`."""
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
        """The processes that have a batch in hand."""
        return [self.words[self._member(member)] for member, _ in self._held()]

    def take(self, member: int, epoch: int, waits: bool = True) -> int:
        """A batch of that epoch, its slot, or `WAIT`, `OVER` or `ENDED`. The one that the member holds is used.

        `waits`: it is going to, so it is to be woken.
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
        """Leave the epoch. What the member holds was used, or is given back."""
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
        """A member has died, or ended: its place is free, and what it held goes to the others."""
        self.leave(member, used=False)
        self.words[self._member(member)] = 0

    # --- how ---

    def _begin_epoch(self, epoch: int) -> bool:
        """Whether members take from that epoch now: nobody is in the present one, or it is over."""
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
        self._wake_all()  # for whoever was in the last one, it is over
        if w[_FED_EPOCH] < epoch:
            w[_FED_EPOCH], w[_FED_STOP] = epoch, 0
            self.wake_feeder = True
        return True

    def _is_over(self) -> bool:
        """The present epoch: all was written, and nothing of it is ready or held."""
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
        # Half of the slots at a time: to wake a process costs more than to write a small batch.
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
