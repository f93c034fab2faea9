"""The clips that are outstanding, and their bytes against the budget.

What has to be made again comes before anything new, the lowest first. If there is no room for it, the furthest clips
that are ready, or wait to be made again themselves, give way: their bytes are freed, and they are made again when their
turn comes or a consumer asks for them; until then nothing new is issued. Consumers take clips in index order, so the
lowest one outstanding never waits for another. Hence the budget is never passed, and yet nothing can get stuck.

Lanes (`lanes.py`) have shares of the budget that are kept free for them, whether they use them or not.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from essp_common.pb.v1.messages_pb2 import OutstandingClip
from essp_common.pb.v1.messages_pb2 import Position as PositionMessage
from essp_common.planning.plan import PlannedClip
from essp_master.ledger.catch_up import Lane
from essp_master.ledger.credits import Credits
from essp_master.ledger.instructions import Instruction, IssueUnit, ReleaseClip
from essp_master.ledger.order import Place
from essp_master.ledger.parts import CLIP, ClipParts


@dataclass(slots=True)
class Entry:
    """A clip that is outstanding."""

    place: Place
    clip: PlannedClip
    left: int
    """Who has yet to ack a part of it (bits of `ClipParts`)."""
    sizes: list[int]
    """Bytes reserved for each part."""
    made: int = 0
    """Which parts are in the cache (bits by part number)."""
    counted: int = 0
    """Which parts are known to have been made since it was issued last: those, and what was read before that."""
    reissued: bool = False
    """Was issued more than once, so what is said of it may be about an earlier time."""
    queued: bool = False
    """To be issued again, and waiting for its turn."""
    shed: bool = False
    """Gave way, and nobody has asked for it yet."""
    again: bool = False
    """Done by all before, or owed to others, and made again for a consumer that fell back: it is not counted."""
    losses: int = 0
    lane: Lane | None = None
    """Whose share of the budget it takes up."""

    def expects(self, attempt: int) -> bool:
        """Whether news of this attempt is about what is being made, or is made."""
        return self.clip.attempt == attempt and not self.queued and not self.shed


class Outstanding:
    """The entries of one job."""

    def __init__(self, parts: ClipParts, bounds: Sequence[Sequence[int]], budget_bytes: int) -> None:
        """`bounds`: for each phase, the most bytes of each part of a clip."""
        self.credits = Credits(budget_bytes)
        self.lanes: dict[str, Lane] = {}
        """By consumer."""
        self._parts = parts
        self._ackers = parts.ackers
        self._bounds = bounds
        self._entries: dict[Place, Entry] = {}
        self.get: Callable[[Place], Entry | None] = self._entries.get
        """The entry of a clip, if it is outstanding."""
        self._again: list[Place] = []  # a heap
        self._shed = 0
        self._needs: dict[tuple[int, int], tuple[int, list[int], int]] = {}  # by phase and consumers

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def in_common(self) -> int:
        """Clips that are in no lane."""
        return len(self._entries) - sum(len(lane.places) for lane in self.lanes.values())

    def entries(self) -> list[Entry]:
        """All of them, the lowest first."""
        return [self._entries[place] for place in sorted(self._entries)]

    def state(self) -> list[OutstandingClip]:
        """All entries, as messages."""
        return [_message(entry) for entry in self._entries.values()]

    def restore(self, state: OutstandingClip, clip: PlannedClip) -> None:
        """Take up an entry that `state` told of."""
        place = (state.position.phase_index, state.position.index)
        entry = Entry(
            place,
            clip,
            state.left,
            list(state.sizes),
            made=state.made,
            counted=state.counted | state.made,
            reissued=state.reissued,
            queued=state.queued,
            shed=state.shed,
            again=state.again,
            losses=state.losses,
        )
        self._entries[place] = entry
        self._shed += entry.shed
        if entry.queued:
            heapq.heappush(self._again, place)
        self.credits.outstanding_bytes += sum(entry.sizes)
        if state.lane:
            self.move(entry, self.lanes[state.lane])

    @property
    def settled(self) -> bool:
        """Nothing waits to be made again: there may be something new."""
        return not self._shed and not self._again

    def unmade(self) -> list[Entry]:
        """What was issued and is not ready for its consumers yet."""
        return [e for e in self._entries.values() if not (e.queued or e.shed) and not self.ready(e)]

    def backlog(self) -> list[int]:
        """For each part, how many were issued and can be made by now, but are not."""
        waiting = [0] * len(self._parts.ackers)
        for entry in self._entries.values():
            if entry.queued or entry.shed:
                continue
            if not entry.made & 1:
                waiting[CLIP] += 1
                continue
            for part in range(1, len(waiting)):
                waiting[part] += bool(entry.left & self._parts.ackers[part]) and not entry.made >> part & 1
        return waiting

    def lowest(self) -> list[Entry]:
        """For each consumer the lowest clip that it is not done with."""
        found: dict[int, Entry] = {}
        for place in sorted(self._entries):
            entry = self._entries[place]
            for bit in self._parts.bit.values():
                if entry.left & bit:
                    found.setdefault(bit, entry)
        return [e for e in {e.place: e for e in found.values()}.values() if not e.queued]

    # --- the life of an entry ---

    def issue(self, number: int, clips: Sequence[PlannedClip], consumers: int, lane: Lane | None = None) -> bool:
        """Take up the clips of a unit, if there is credit for them all; in a lane, within its share."""
        left, sizes, size = self._needs.get((number, consumers)) or self._need(number, consumers)
        size *= len(clips)
        if self.lanes and size > self._room(lane):
            return False
        if not self.credits.reserve(size):
            return False
        for clip in clips:
            place = (number, clip.index)
            self._entries[place] = entry = Entry(place, clip, left, sizes[:])
            if lane is not None:
                self.move(entry, lane)
        return True

    def lacking(self, number: int, clips: int, consumers: int, lane: Lane) -> int:
        """How many bytes of a lane have to be free before `issue` takes up so many clips more; 0: none."""
        size = clips * self.bound(number, consumers)
        free = self.credits.budget_bytes - self.credits.outstanding_bytes
        return max(0, size - min(self._room(lane), free))

    def move(self, entry: Entry, lane: Lane | None) -> None:
        """Have a clip take up another share of the budget; None: what all have in common."""
        size = sum(entry.sizes)
        if entry.lane is not None:
            entry.lane.places.remove(entry.place)
            entry.lane.bytes -= size
        entry.lane = lane
        if lane is not None:
            lane.add(entry.place)
            lane.bytes += size

    def reopen(self, place: Place, clip: PlannedClip) -> Entry:
        """Take up a clip that was done before; for whom, `issue_again` says."""
        entry = Entry(place, clip, 0, [0] * len(self._parts.ackers), again=True)
        self._entries[place] = entry
        return entry

    def made(self, entry: Entry, part: int, size: int) -> None:
        """A part is in the cache, and so large."""
        entry.made |= 1 << part
        sizes = entry.sizes
        actual = size if entry.left & self._ackers[part] else 0
        more = actual - sizes[part]
        if more:
            self.credits.outstanding_bytes += more
            sizes[part] = actual
            if entry.lane is not None:
                entry.lane.bytes += more

    def acked(self, entry: Entry, bit: int, part: int) -> None:
        """One of those who read a part is done with it; after the last one its bytes are free."""
        entry.left &= ~bit
        sizes = entry.sizes
        size = sizes[part]
        if size and not entry.left & self._ackers[part]:
            self.credits.outstanding_bytes -= size
            sizes[part] = 0
            if entry.lane is not None:
                entry.lane.bytes -= size

    def close(self, entry: Entry) -> None:
        """Every consumer is done with it."""
        del self._entries[entry.place]
        self._shed -= entry.shed
        if any(entry.sizes):
            self._take(entry, -sum(entry.sizes))
        if entry.lane is not None:
            entry.lane.places.remove(entry.place)

    # --- making it again ---

    def issue_again(self, entry: Entry, consumers: int) -> None:
        """Put a clip in line to be made again, for these consumers."""
        entry.left = self._parts.demand(consumers)
        self._shed -= entry.shed
        entry.shed = False
        if not entry.queued:
            entry.queued = True
            heapq.heappush(self._again, entry.place)

    def next_again(self, out: list[Instruction]) -> bool:
        """Issue the first in line again; False: there is none, or no room for it."""
        while self._again:
            entry = self._entries.get(self._again[0])
            if entry is None or not entry.queued:
                heapq.heappop(self._again)
                continue
            if not self._admit(entry, out):
                return False
            heapq.heappop(self._again)
            return True
        return False

    def _admit(self, entry: Entry, out: list[Instruction]) -> bool:
        entry.left = self._parts.demand(entry.left & self._parts.everyone)
        sizes = self._sizes(entry.place[0], entry.left)
        while not self.credits.fits(sum(sizes) - sum(entry.sizes)):
            if not self._give_way(entry.place, out):
                return False
        self._take(entry, sum(sizes) - sum(entry.sizes))
        entry.sizes, entry.made, entry.queued = sizes, 0, False
        entry.counted, entry.reissued = 0, True
        out.append(IssueUnit(entry.place[0], (entry.clip,), self._parts.names(entry.left)))
        return True

    def _give_way(self, place: Place, out: list[Instruction]) -> bool:
        """Free the furthest clip beyond `place` that is ready, or in line itself; False: there is none."""
        idle = [e for e in self._entries.values() if e.place > place and any(e.sizes) and (e.queued or self.ready(e))]
        if not idle:
            return False
        entry = max(idle, key=lambda e: e.place)
        self._take(entry, -sum(entry.sizes))
        entry.sizes, entry.made = [0] * len(entry.sizes), 0
        entry.left &= self._parts.everyone
        if not entry.queued:
            entry.shed = True
            self._shed += 1
        out.append(ReleaseClip(entry.place[0], entry.clip, self._parts.names(entry.left)))
        return True

    def bound(self, number: int, consumers: int) -> int:
        """The most bytes of a clip that is made for these consumers."""
        return (self._needs.get((number, consumers)) or self._need(number, consumers))[2]

    def ready(self, entry: Entry) -> bool:
        """Whether everything that its consumers wait for is in the cache."""
        return self._parts.complete(entry.left, entry.made)

    def _take(self, entry: Entry, size: int) -> None:
        """Have an entry take up so many bytes more."""
        self.credits.outstanding_bytes += size
        if entry.lane is not None:
            entry.lane.bytes += size

    def _room(self, lane: Lane | None) -> int:
        """What may still be issued in a lane, or else beside the lanes."""
        if lane is not None:
            return lane.share_bytes - lane.bytes
        kept = sum(max(0, other.share_bytes - other.bytes) for other in self.lanes.values())
        return self.credits.budget_bytes - self.credits.outstanding_bytes - kept

    def _need(self, number: int, consumers: int) -> tuple[int, list[int], int]:
        """Who will ack a clip for these consumers, its bytes by parts, and all of them."""
        left = self._parts.demand(consumers)
        sizes = self._sizes(number, left)
        need = self._needs[(number, consumers)] = (left, sizes, sum(sizes))
        return need

    def _sizes(self, number: int, left: int) -> list[int]:
        bounds = self._bounds[number]
        return [bound if left & ackers else 0 for bound, ackers in zip(bounds, self._parts.ackers, strict=True)]


def _message(entry: Entry) -> OutstandingClip:
    return OutstandingClip(
        position=PositionMessage(phase_index=entry.place[0], index=entry.place[1]),
        attempt=entry.clip.attempt,
        left=entry.left,
        made=entry.made,
        counted=entry.counted,
        reissued=entry.reissued,
        sizes=entry.sizes,
        queued=entry.queued,
        shed=entry.shed,
        again=entry.again,
        losses=entry.losses,
        lane=entry.lane.consumer if entry.lane is not None else "",
    )
