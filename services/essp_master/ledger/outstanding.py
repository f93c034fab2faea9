"""The outstanding clips, and their bytes against the budget.

A clip that must be rebuilt comes before anything new, and the lowest one first. If the budget has no room for it, it
preempts the furthest clips that are ready or wait in line themselves: their bytes are freed, and they are rebuilt
when there is room or a consumer asks for them. Until then nothing new is issued. Consumers take clips in index order,
so the lowest outstanding clip never waits for another one. Hence the ledger never exceeds the budget, and yet never
gets stuck.

A consumer may have read a clip that is preempted, and never ask for it: it needs the rest of its batch, which may not
be issued yet. So preempted clips are rebuilt without being asked for.

Nearly all clips are plain, and are stored in columns (`plain.py`). Looking one up by position turns it into an `Entry`.

Catch-up queues (`issue_order.py`) have shares of the budget that are reserved for them, used or not.
"""

from __future__ import annotations

import heapq
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import LedgerState, OutstandingClip, PlainColumns
from essp_engine.planning.planned_clip import PlannedClip
from essp_engine.seeding.clip_parts import CLIP, ClipParts
from essp_engine.seeding.instructions import Instruction, IssueUnits, ReleaseClip
from essp_master.ledger.issue_order import CatchUpQueue
from essp_master.ledger.plain import PlainClip, PlainClips
from essp_master.ledger.states import (
    IN_LINE,
    ISSUED,
    OUT_OF_LINE,
    REOPENED,
    REOPENED_QUEUED,
    STATES,
    WAITING,
    Event,
    after,
)


class Credits:
    """The bytes of one job that may be outstanding at once.

    Before a seed is published, the ledger reserves the largest size that its clip can have. The actual size replaces
    this once it is known. Nothing is issued beyond the free bytes, and actual sizes are no larger as long as the bound
    holds.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.outstanding_bytes = 0

    @property
    def free_bytes(self) -> int:
        """How many more bytes may be outstanding; negative if actual sizes have exceeded their bound."""
        return self.budget_bytes - self.outstanding_bytes

    def fits(self, size: int) -> bool:
        """Whether `size` more bytes are free; a negative size gives bytes back and always fits."""
        return size <= 0 or size <= self.free_bytes


@dataclass(slots=True)
class Entry:
    """An outstanding clip that is not plain."""

    phase_index: int
    clip: PlannedClip
    left: int
    """Who has yet to ack a part of the clip (bits of `ClipParts`)."""
    sizes: list[int]
    """Bytes reserved for each part."""
    state: OutstandingClip.State = ISSUED
    made: int = 0
    """The parts that are in the cache (bits by part number)."""
    counted: int = 0
    """The parts counted as made since the last issue: those reported, and those read before they were reported."""
    losses: int = 0
    catch_up: CatchUpQueue | None = None
    """The catch-up queue whose share of the budget it is charged to."""

    @property
    def position(self) -> Position:
        """Its position in the plan."""
        return Position(self.phase_index, self.clip.index)

    def expects(self, attempt: int) -> bool:
        """Whether a report of this attempt is about the current seed."""
        return self.clip.attempt == attempt and self.state not in WAITING

    def message(self) -> OutstandingClip:
        """Return the entry as a message."""
        return OutstandingClip(
            position={"phase_index": self.phase_index, "index": self.clip.index},
            attempt=self.clip.attempt,
            state=self.state,
            left=self.left,
            made=self.made,
            counted=self.counted,
            sizes=self.sizes,
            losses=self.losses,
            catch_up=self.catch_up.consumer if self.catch_up is not None else "",
        )


class Outstanding:
    """The outstanding clips of one job."""

    def __init__(self, parts: ClipParts, bounds: Sequence[Sequence[int]], budget_bytes: int) -> None:
        """`bounds`: for each phase, the largest size in bytes of each part of a clip."""
        self.credits = Credits(budget_bytes)
        self.catch_up_queues: dict[str, CatchUpQueue] = {}
        """By consumer."""
        self._parts = parts
        self._ackers = parts.ackers
        self._bounds = bounds
        self._plain: dict[int, PlainClips] = defaultdict(partial(PlainClips, parts))
        """By `phase_index`."""
        self._entries: dict[tuple[int, int], Entry] = {}
        """The clips that are not plain."""
        self._line: list[Position] = []
        """A heap of the clips in line to be rebuilt. Entries that were closed in the meantime are skipped."""
        self._preempted: set[tuple[int, int]] = set()
        """Positions of clips that are out of line: nothing new is issued until they have been rebuilt. Clips of
        catch-up queues are excluded, since they block no one."""
        self._needs: dict[tuple[int, int], tuple[int, list[int], int]] = {}
        """(`phase_index`, consumers) -> `_need`."""

    def __len__(self) -> int:
        return len(self._entries) + sum(len(plain.clips) for plain in self._plain.values())

    @property
    def in_step(self) -> int:
        """Number of clips that are in no catch-up queue."""
        return len(self) - sum(len(queue.positions) for queue in self.catch_up_queues.values())

    @property
    def lacks_shares(self) -> bool:
        """Whether other clips occupy bytes that are reserved for catch-up queues."""
        return self._room(None) < 0

    def get(self, position: tuple[int, int]) -> Entry | None:
        """Return the clip at a position if it is outstanding. It is not plain from then on."""
        entry = self._entries.get(position)
        if entry is None:
            phase_index, index = position
            plain = self._plain.get(phase_index)
            if plain is not None and index in plain.clips:
                entry = self._entries[phase_index, index] = _entry(phase_index, plain.remove(index))
                if not plain.clips:
                    del self._plain[phase_index]
        return entry

    def entries(self) -> list[Entry]:
        """Return all entries, the lowest first. No clip is plain from then on."""
        for phase_index, plain in list(self._plain.items()):
            for index in list(plain.clips):
                self.get((phase_index, index))
        return [self._entries[position] for position in sorted(self._entries)]

    def to_count(self) -> dict[int, list[int]]:
        """Return, by phase, the clips whose end is counted when they are closed."""
        clips = defaultdict(list, {phase_index: list(plain.clips) for phase_index, plain in self._plain.items()})
        for entry in self._entries.values():
            if entry.state not in REOPENED:
                clips[entry.phase_index].append(entry.clip.index)
        return clips

    def reopened(self) -> list[Entry]:
        """Return the clips whose end is not counted."""
        return [entry for entry in self._entries.values() if entry.state in REOPENED]

    def state(self) -> tuple[list[OutstandingClip], list[PlainColumns]]:
        """Return all clips as messages: those that are not plain, the lowest first, and the plain ones."""
        plain = [plain.columns(phase_index) for phase_index, plain in sorted(self._plain.items()) if plain.clips]
        return [self._entries[position].message() for position in sorted(self._entries)], plain

    def restore(self, state: OutstandingClip, clip: PlannedClip) -> None:
        """Add the entry from a message. Raises `ValueError` if no valid entry would produce it."""
        parts = len(self._ackers)
        known = state.state in STATES and not state.left >> self._parts.readers and not state.made >> parts
        if not known or len(state.sizes) != parts or (state.position.phase_index, clip.index) in self._entries:
            raise ValueError(f"clip {clip.index} of phase {state.position.phase_index} is outstanding as none can be")
        entry = Entry(
            state.position.phase_index,
            clip,
            state.left,
            list(state.sizes),
            state=state.state,
            made=state.made,
            counted=state.counted,
            losses=state.losses,
        )
        self._entries[entry.position] = entry
        self._note(entry)
        if entry.state in IN_LINE:
            heapq.heappush(self._line, entry.position)
        self.credits.outstanding_bytes += sum(entry.sizes)
        if state.catch_up:
            self.move(entry, self.catch_up_queues[state.catch_up])

    def is_left_before(self, bit: int, position: Position) -> bool:
        """Whether a clip before this position is outstanding for a consumer."""
        phase_index, index = position
        return any(entry.left & bit and entry.position < position for entry in self._entries.values()) or any(
            plain.is_left(bit, index if other == phase_index else None)
            for other, plain in self._plain.items()
            if other <= phase_index
        )

    @property
    def in_line(self) -> bool:
        """Whether clips wait in line to be rebuilt."""
        return bool(self._line)

    @property
    def settled(self) -> bool:
        """Whether nothing waits to be rebuilt, so that something new may be issued."""
        return not self._preempted and not self._line

    def unmade(self) -> list[Entry]:
        """Return the issued clips that are not ready for their consumers yet."""
        return [entry for entry in self.entries() if entry.state not in WAITING and not self.ready(entry)]

    def backlog(self) -> list[int]:
        """Return, for each part, how many clips were issued and could be made by now, but are not."""
        backlog = [0] * len(self._parts.ackers)
        for plain in self._plain.values():
            backlog = [count + more for count, more in zip(backlog, plain.backlog(), strict=True)]
        for entry in self._entries.values():
            if entry.state in WAITING:
                continue
            if not entry.made & 1:
                backlog[CLIP] += 1
                continue
            for part in range(1, len(backlog)):
                backlog[part] += bool(entry.left & self._parts.ackers[part]) and not entry.made >> part & 1
        return backlog

    # --- the life of an entry ---

    def room(self, phase_index: int, consumers: int) -> int:
        """Return the number of clips for these consumers that the credit allows."""
        size = self.bound(phase_index, consumers)
        return max(0, self._free()) // size if size else sys.maxsize

    def issue(self, phase_index: int, clips: Sequence[PlannedClip], consumers: int) -> None:
        """Add clips in their turn. There must be `room` for them."""
        left, sizes, size = self._needs.get((phase_index, consumers)) or self._need(phase_index, consumers)
        self.credits.outstanding_bytes += size * len(clips)
        self._plain[phase_index].add(clips, left, sizes)

    def catch_up(self, phase_index: int, clips: Sequence[PlannedClip], queue: CatchUpQueue) -> None:
        """Add clips to a catch-up queue, whose share must have room for them (`lacking`)."""
        left, sizes, size = self._needs.get((phase_index, queue.bit)) or self._need(phase_index, queue.bit)
        self.credits.outstanding_bytes += size * len(clips)
        for clip in clips:
            self._entries[phase_index, clip.index] = entry = Entry(phase_index, clip, left, sizes[:])
            self.move(entry, queue)

    def lacking(self, phase_index: int, clips: int, consumers: int, queue: CatchUpQueue) -> int:
        """Return how many more bytes a catch-up queue needs before it can add this many clips; 0 if it has room."""
        size = clips * self.bound(phase_index, consumers)
        free = self.credits.free_bytes
        return max(0, size - min(self._room(queue), free))

    def move(self, entry: Entry, queue: CatchUpQueue | None) -> None:
        """Charge a clip to the share of this catch-up queue; None: to the common part of the budget."""
        size = sum(entry.sizes)
        if entry.catch_up is not None:
            entry.catch_up.positions.remove(entry.position)
            entry.catch_up.bytes -= size
        entry.catch_up = queue
        self._note(entry)
        if queue is not None:
            queue.add(entry.position)
            queue.bytes += size

    def reopen(self, phase_index: int, clip: PlannedClip) -> Entry:
        """Put a clip that is no longer outstanding in line; `request` then says for which consumers."""
        entry = Entry(phase_index, clip, 0, [0] * len(self._parts.ackers), REOPENED_QUEUED)
        self._entries[phase_index, clip.index] = entry
        heapq.heappush(self._line, entry.position)
        return entry

    def owe(self, entry: Entry) -> None:
        """A consumer that is still owed this clip gets it too, so its end is counted."""
        if entry.state in REOPENED:
            entry.state = after(entry.state, Event.OWE)

    def made(self, entry: Entry, part: int, size: int) -> None:
        """A part is in the cache, with this size."""
        entry.made |= 1 << part
        sizes = entry.sizes
        actual = size if entry.left & self._ackers[part] else 0
        more = actual - sizes[part]
        if more:
            self.credits.outstanding_bytes += more
            sizes[part] = actual
            if entry.catch_up is not None:
                entry.catch_up.bytes += more

    def acked(self, entry: Entry, bit: int, part: int) -> None:
        """One reader of a part is done with it; after the last reader, the part's bytes are free."""
        entry.left &= ~bit
        sizes = entry.sizes
        size = sizes[part]
        if size and not entry.left & self._ackers[part]:
            self.credits.outstanding_bytes -= size
            sizes[part] = 0
            if entry.catch_up is not None:
                entry.catch_up.bytes -= size

    def close(self, entry: Entry) -> None:
        """Remove a clip and free its bytes."""
        del self._entries[entry.phase_index, entry.clip.index]
        self._preempted.discard((entry.phase_index, entry.clip.index))
        if any(entry.sizes):
            self._take(entry, -sum(entry.sizes))
        if entry.catch_up is not None:
            entry.catch_up.positions.remove(entry.position)

    # --- reports of plain clips ---

    def plain_made(self, phase_index: int, part: int, sizes: Mapping[int, int]) -> tuple[set[int], int]:
        """A part of clips was made; `sizes`: index -> bytes. Returns which of them are plain, and accounted for by this
        call; and how many of those a consumer can read now."""
        plain = self._plain.get(phase_index)
        if plain is None:
            return set(), 0
        fresh, readable, more = plain.made(part, sizes)
        self.credits.outstanding_bytes += more
        return fresh, readable

    def plain_read(self, phase_index: int, bit: int, part: int, indices: Iterable[int]) -> tuple[set[int], int]:
        """A consumer is done with this part of clips. Returns which of them are plain, and accounted for by this call;
        and how many of those it was the last consumer of, so that they are no longer outstanding."""
        plain = self._plain.get(phase_index)
        if plain is None:
            return set(), 0
        fresh, freed, closed = plain.read(bit, part, indices)
        self.credits.outstanding_bytes -= freed
        if not plain.clips:
            del self._plain[phase_index]
        return fresh, closed

    # --- making it again ---

    def request(self, entry: Entry, consumers: int) -> None:
        """Put a clip in line to be rebuilt for these consumers."""
        entry.left = self._parts.demand(consumers)
        if entry.state not in IN_LINE:
            heapq.heappush(self._line, entry.position)
        entry.state = after(entry.state, Event.REQUEST)
        self._note(entry)

    def resume_preempted(self) -> bool:
        """Put preempted clips in line again, lowest position first, until there is no more room. Returns False if none
        fits."""
        waiting, free = list(self._preempted), self._free()
        heapq.heapify(waiting)
        any_fits = False
        while waiting:
            entry = self._entries[heapq.heappop(waiting)]
            consumers = entry.left & self._parts.everyone
            free -= self.bound(entry.phase_index, consumers)
            if free < 0:
                break
            self.request(entry, consumers)
            any_fits = True
        return any_fits

    def reissue(self, out: list[Instruction]) -> int:
        """Issue the clips in line again, the lowest first, as far as the budget allows. Returns how many."""
        furthest: list[tuple[int, int]] | None = None
        count = 0
        while self._line:
            entry = self._entries.get(self._line[0])
            if entry is not None and entry.state in IN_LINE:
                entry.left = self._parts.demand(entry.left & self._parts.everyone)
                sizes = self._sizes(entry.phase_index, entry.left)
                # Make room for the lowest clip at the expense of the furthest. The sorted positions are computed once
                # per call: nothing is reported in between, so no clip becomes ready.
                while not self.credits.fits(sum(sizes) - sum(entry.sizes)):
                    furthest = self._positions() if furthest is None else furthest
                    if not self._preempt_beyond(entry.position, furthest, out):
                        return count
                self._reissue(entry, sizes, out)
                count += 1
            heapq.heappop(self._line)
        return count

    def _reissue(self, entry: Entry, sizes: list[int], out: list[Instruction]) -> None:
        self._take(entry, sum(sizes) - sum(entry.sizes))
        entry.state = after(entry.state, Event.REISSUE)
        entry.sizes, entry.made, entry.counted = sizes, 0, 0
        out.append(IssueUnits(entry.phase_index, ((entry.clip,),), self._parts.names(entry.left)))

    def _preempt_beyond(self, position: Position, furthest: list[tuple[int, int]], out: list[Instruction]) -> bool:
        """Free the furthest clip beyond `position` that is ready or in line. Returns False if there is none left.

        `furthest`: positions of outstanding clips, ascending. Positions that were tried are removed: until something is
        reported, none of them becomes ready.
        """
        while furthest and furthest[-1] > position:
            entry = self.get(furthest.pop())
            if entry is not None and any(entry.sizes) and (entry.state in IN_LINE or self.ready(entry)):
                self._preempt(entry, out)
                return True
        return False

    def _preempt(self, entry: Entry, out: list[Instruction]) -> None:
        self._take(entry, -sum(entry.sizes))
        entry.sizes, entry.made = [0] * len(entry.sizes), 0
        # Extractors have no claim on bytes that are gone; those that are needed again get one with the next issue.
        entry.left &= self._parts.everyone
        entry.state = after(entry.state, Event.PREEMPT)
        self._note(entry)
        out.append(ReleaseClip(entry.phase_index, entry.clip, self._parts.names(entry.left)))

    def _note(self, entry: Entry) -> None:
        """Update `_preempted` after the state or the catch-up queue of a clip has changed."""
        if entry.state in OUT_OF_LINE and entry.catch_up is None:
            self._preempted.add(entry.position)
        else:
            self._preempted.discard(entry.position)

    def _positions(self) -> list[tuple[int, int]]:
        """Return the positions of all outstanding clips, in order."""
        plain = ((phase_index, index) for phase_index, plain in self._plain.items() for index in plain.clips)
        return sorted([*self._entries, *plain])

    def bound(self, phase_index: int, consumers: int) -> int:
        """Return the largest size in bytes of a clip that is made for these consumers."""
        return (self._needs.get((phase_index, consumers)) or self._need(phase_index, consumers))[2]

    def ready(self, entry: Entry) -> bool:
        """Whether the cache has everything that the clip's consumers wait for."""
        return self._parts.complete(entry.left, entry.made)

    def _take(self, entry: Entry, size: int) -> None:
        """Charge an entry with `size` more bytes."""
        self.credits.outstanding_bytes += size
        if entry.catch_up is not None:
            entry.catch_up.bytes += size

    def _free(self) -> int:
        """Return the bytes that may still be issued outside the catch-up queues."""
        free = self.credits.free_bytes
        return min(free, self._room(None)) if self.catch_up_queues else free

    def _room(self, queue: CatchUpQueue | None) -> int:
        """Return the bytes that may still be issued in a catch-up queue, or outside all of them."""
        if queue is not None:
            return queue.share_bytes - queue.bytes
        kept = sum(max(0, other.share_bytes - other.bytes) for other in self.catch_up_queues.values())
        return self.credits.free_bytes - kept

    def _need(self, phase_index: int, consumers: int) -> tuple[int, list[int], int]:
        """Return who will ack a clip for these consumers (bits), the sizes of its parts, and their sum."""
        left = self._parts.demand(consumers)
        sizes = self._sizes(phase_index, left)
        need = self._needs[(phase_index, consumers)] = (left, sizes, sum(sizes))
        return need

    def _sizes(self, phase_index: int, left: int) -> list[int]:
        bounds = self._bounds[phase_index]
        return [bound if left & ackers else 0 for bound, ackers in zip(bounds, self._parts.ackers, strict=True)]


def outstanding_clips(state: LedgerState) -> list[OutstandingClip]:
    """Return all clips of a ledger's state, one by one, the lowest first."""
    clips = [*state.outstanding, *(clip for columns in state.plain for clip in _each(columns))]
    return sorted(clips, key=lambda clip: (clip.position.phase_index, clip.position.index))


def _each(columns: PlainColumns) -> Iterable[OutstandingClip]:
    sizes = zip(*(part.bytes for part in columns.sizes), strict=True)
    for index, left, made, held in zip(columns.indices, columns.left, columns.made, sizes, strict=True):
        position = {"phase_index": columns.phase_index, "index": index}
        yield OutstandingClip(position=position, state=ISSUED, left=left, made=made, counted=made, sizes=held)


def _entry(phase_index: int, plain: PlainClip) -> Entry:
    clip, left, sizes, made = plain
    return Entry(phase_index, clip, left, sizes, ISSUED, made, counted=made)
