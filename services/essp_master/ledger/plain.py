"""Plain clips: outstanding, and nothing unusual has happened to them. Nearly all clips stay plain.

A plain clip was issued once, in its turn, as planned, and no consumer has read a part of it that was not reported as
made. So its state fits into columns by index, and a report about many clips takes a few set operations instead of a
pass over objects. If anything else happens to a clip, `Outstanding.get` removes it from the columns and makes it an
`Entry` for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import filterfalse, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from essp_common.pb.v1.messages_pb2 import PlainColumns
from essp_engine.planning.planned_clip import PlannedClip
from essp_engine.seeding.clip_parts import CLIP, ClipParts


class PlainClip(NamedTuple):
    """A clip's values in the columns, named as in `outstanding.Entry`."""

    clip: PlannedClip
    left: int
    sizes: list[int]
    made: int


class PlainClips:
    """The plain clips of one phase."""

    def __init__(self, parts: ClipParts) -> None:
        self.clips: dict[int, tuple[PlannedClip, int]] = {}
        """Index -> the clip, and all who had to ack it when it was issued (bits of `ClipParts`)."""
        self._parts = parts
        self._unmade: list[set[int]] = [set() for _ in parts.ackers]
        """For each part: the clips whose part is wanted and was not reported as made."""
        self._left: dict[int, set[int]] = {bit: set() for bit in parts.bit.values()}
        """By the bit of each consumer: the clips that it is not done with."""
        self._sizes: list[dict[int, int]] = [{} for _ in parts.ackers]
        """For each part: index -> the bytes that it occupies, or that are reserved for it."""
        self._parts_by_number = list(zip(self._unmade, parts.ackers, (0, *parts.extractor), strict=True))
        """For each part: its column, the bits of its readers, and the bit of its extractor, if it has one."""
        self._consumers = [
            [self._left[bit] for name, bit in parts.bit.items() if parts.part[name] == part]
            for part in range(len(parts.ackers))
        ]
        """For each part: the columns of its consumers."""
        self._readers = [[*self._consumers[CLIP], *self._unmade[1:]], *self._consumers[1:]]
        """For each part: the columns of all who have yet to read it. An extractor has read the clip once its own part
        is made."""

    def add(self, clips: Sequence[PlannedClip], left: int, sizes: Sequence[int]) -> None:
        """Add issued clips. `left`, `sizes`: of each clip, as in `Entry`."""
        indices = [clip.index for clip in clips]
        self.clips.update(zip(indices, zip(clips, repeat(left)), strict=True))
        for bit, wanted in self._left.items():
            if left & bit:
                wanted.update(indices)
        for part, ackers in enumerate(self._parts.ackers):
            if left & ackers:
                self._unmade[part].update(indices)
                self._sizes[part].update(zip(indices, repeat(sizes[part])))

    def look(self, index: int) -> PlainClip:
        """Return the state of a clip."""
        clip, asked = self.clips[index]
        left = made = 0
        for bit, wanted in self._left.items():
            if index in wanted:
                left |= bit
        for part, (unmade, readers, extractor) in enumerate(self._parts_by_number):
            if index in unmade:
                left |= extractor
            elif asked & readers:
                made |= 1 << part
        return PlainClip(clip, left, [sizes.get(index, 0) for sizes in self._sizes], made)

    def remove(self, index: int) -> PlainClip:
        """Remove a clip and return its state."""
        found = self.look(index)
        del self.clips[index]
        for column in (*self._left.values(), *self._unmade):
            column.discard(index)
        for sizes in self._sizes:
            sizes.pop(index, None)
        return found

    # --- reports ---

    def made(self, part: int, sizes: Mapping[int, int]) -> tuple[set[int], int, int]:
        """A part of clips was made; `sizes`: index -> bytes. Returns which of them are plain and were missing this
        part, how many of those a consumer can read now, and how many more bytes they occupy. Other clips are not
        changed."""
        unmade, held = self._unmade[part], self._sizes[part]
        fresh = unmade.intersection(sizes)
        unmade -= fresh
        more = 0
        for index in fresh:
            if (reserved := held.get(index)) is not None:  # else all its readers are done with it already
                size = held[index] = sizes[index]
                more += size - reserved
        unread = fresh
        for wanted in self._consumers[part]:
            unread = _without(unread, wanted)
        if part != CLIP:
            more -= self._free(CLIP, fresh)
        return fresh, len(fresh) - len(unread), more

    def read(self, bit: int, part: int, indices: Iterable[int]) -> tuple[set[int], int, int]:
        """A consumer is done with this part of clips. Returns which of them are plain, made, and not yet done for it;
        how many bytes this frees; and how many clips leave the columns because it was their last consumer."""
        left = self._left[bit]
        fresh = _without(left.intersection(indices), self._unmade[part])
        if part != CLIP:
            fresh = _without(fresh, self._unmade[CLIP])
        left -= fresh
        freed = self._free(part, fresh)
        closed = fresh
        for wanted in self._left.values():
            if wanted is not left:
                closed = _without(closed, wanted)
        for index in closed:
            del self.clips[index]
        return fresh, freed, len(closed)

    def _free(self, part: int, indices: set[int]) -> int:
        """Free a part of these clips unless it still has a reader. Returns the freed bytes."""
        for readers in self._readers[part]:
            indices = _without(indices, readers)
        return sum(map(self._sizes[part].pop, indices, repeat(0)))

    # --- for reading ---

    def columns(self, phase_index: int) -> PlainColumns:
        """Return all clips as one message. Much cheaper than a message for each clip."""
        indices = sorted(self.clips)
        count = len(indices)
        asked = np.fromiter((self.clips[index][1] for index in indices), np.uint64, count)
        left, made = np.zeros((2, count), np.uint64)
        for bit, wanted in self._left.items():
            left |= _bits(bit, wanted, indices)
        for part, (unmade, readers, extractor) in enumerate(self._parts_by_number):
            to_make = _bits(1, unmade, indices)
            left |= to_make * np.uint64(extractor)
            made |= ((asked & np.uint64(readers) != 0) & (to_make == 0)) * np.uint64(1 << part)
        sizes = [PlainColumns.Sizes(bytes=map(held.get, indices, repeat(0))) for held in self._sizes]
        return PlainColumns(
            phase_index=phase_index, indices=indices, left=left.tolist(), made=made.tolist(), sizes=sizes
        )

    def is_left(self, bit: int, end: int | None) -> bool:
        """Whether a consumer is not done with a clip before the index `end`; None: with any clip."""
        left = self._left[bit]
        return bool(left) if end is None else any(index < end for index in left)

    def backlog(self) -> list[int]:
        """Return, for each part, how many clips could be made by now, but are not."""
        clip, *streams = self._unmade
        return [len(clip), *(len(unmade - clip) for unmade in streams)]


def _bits(bit: int, column: set[int], indices: Sequence[int]) -> NDArray[np.uint64]:
    """For each index: `bit` if the column contains it, else 0."""
    return np.fromiter(map(column.__contains__, indices), bool, len(indices)) * np.uint64(bit)


def _without(indices: set[int], column: set[int]) -> set[int]:
    """Return the indices that are not in a column, possibly the same set. Usually these are all or none, which is cheap
    to detect. `indices - column` would walk the whole table of a column that was long once.
    """
    if not column:
        return indices
    if column.issuperset(indices):  # stops at the first index that is missing
        return set()
    return set(filterfalse(column.__contains__, indices))
