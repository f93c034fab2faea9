"""The history of a job in its output: append-only, written by its masters, read by their successors and by audits.

    history/0000000001, 0000000002, ...          segments: some seconds of the job each, and the ledger at their end
    history/chapters/0000000001-0000000128       older segments joined, without ledgers

Segments are a numbered log (`objects/numbered_log.py`): each number is written once. If two masters append at once, one
wins and the other gets `Fenced`, so the history has one order and its fences never decrease. A successor needs only the
newest segment to know where the job stands. A write that is repeated because its answer was lost finds its own bytes
and counts as done.

Joining keeps the number of objects small. A chapter is complete before its segments are removed, and readers skip
segments that a chapter already contains. A master that was suspended during all this could write a number that was
already joined, so it must check the fences first (`fences_above`).

Segments are protobuf, compressed with Zstandard. Indices are run-length encoded, so a clip without incident takes a
fraction of a byte.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain

import zstandard
from google.protobuf.message import DecodeError

from essp_common.artifacts import layout
from essp_common.compression import decompressed
from essp_common.errors import Conflict, Fenced, NotFound, PermanentError
from essp_common.objects.numbered_log import NumberedLog
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import HistorySegment, Runs

log = logging.getLogger(__name__)

_LEVEL = 3
_MOST_BYTES = 2**30
"""The largest unpacked segment; one that claims to be larger is not ours."""
_SEGMENT = re.compile(re.escape(layout.HISTORY) + "(?:chapters/([0-9]{10})-)?([0-9]{10})")
_CHAPTERS = layout.HISTORY + "chapters/"
_REMEDY = "restore it from a backup"
_READS = 5
"""How often a reader starts again if segments are joined while it reads."""


class BadHistory(PermanentError):
    """A history that cannot be read."""

    kind = "damaged"


@dataclass(frozen=True, slots=True, order=True)
class Stored:
    """An object of the history."""

    first: int
    last: int
    key: str

    @property
    def joined(self) -> bool:
        """Whether it is a chapter."""
        return self.key.startswith(_CHAPTERS)


class History:
    """The history below one output. As thread-safe as its store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._log = NumberedLog(store, layout.HISTORY)

    def newest(self) -> HistorySegment | None:
        """The last segment, or None if there is none yet."""
        for _ in range(_READS):
            stored = [found for found in self.stored() if not found.joined]
            if not stored:
                return None
            try:
                return self._read(stored[-1])
            except NotFound:  # joined since the listing, so there is a newer one
                continue
        raise BadHistory(f"{self._store.uri(layout.SPEC)}: its history changes faster than it can be read")

    def last_of(self, since: int) -> HistorySegment | None:
        """The last segment of the run that began with this fence, or None if it does not exist or was joined."""
        for found in reversed([found for found in self.stored() if not found.joined]):
            segment = self._read(found)
            if segment.since <= since:
                return segment if segment.since == since else None
        return None

    def last(self) -> int:
        """The number of the last segment; 0 if there is none."""
        stored = self.stored()
        return stored[-1].last if stored else 0

    def append(self, segment: HistorySegment) -> int:
        """Add the next segment, durably; returns its size in bytes. Raises `Fenced` if this number already exists with
        other content."""
        data = pack(segment)
        try:
            self._log.write(segment.last, data)
        except Conflict:
            present = self._log.read(segment.last)
            if present != data:
                uri = self._log.uri(segment.last)
                other = unpack(present, uri)
                raise Fenced(f"{uri} was written by {other.writer} (fence {other.fence})", other.fence) from None
        return len(data)

    def read(self) -> Iterator[HistorySegment]:
        """All segments from the beginning; those appended meanwhile may be missing. Raises `BadHistory` for a gap."""
        after = 0
        for _ in range(_READS):
            try:
                for stored in self.stored():
                    if stored.last <= after:
                        continue
                    if stored.first != after + 1 and after:
                        raise BadHistory(f"{self._log.uri(after + 1)} is missing; {_REMEDY}")
                    segment = self._read(stored)
                    yield segment
                    after = stored.last
                return
            except NotFound:
                continue
        raise BadHistory(f"{self._store.uri(layout.SPEC)}: its history changes faster than it can be read")

    def stored(self) -> list[Stored]:
        """The objects to read, in order: chapters, then the segments that no chapter contains."""
        found = list(filter(None, (_parsed(info.key) for info in self._store.list(layout.HISTORY))))
        # If a master was suspended while it joined, its chapter may be contained in a chapter of the next master:
        # longest first.
        chapters = sorted((one for one in found if one.joined), key=lambda one: (one.first, -one.last))
        joined = max((one.last for one in chapters), default=0)
        return chapters + sorted(stored for stored in found if not stored.joined and stored.last > joined)

    def join(self, before: int, least: int) -> int:
        """Join the segments with numbers below `before` into a chapter, if there are at least `least`; returns how many
        were joined."""
        stored = [found for found in self.stored() if not found.joined and found.last < before]
        if len(stored) < least:
            return 0
        segments = [self._read(found) for found in stored]
        chapter = HistorySegment(
            first=stored[0].first,
            last=stored[-1].last,
            fence=segments[-1].fence,
            since=segments[-1].since,
            writer=segments[-1].writer,
            entries=chain.from_iterable(segment.entries for segment in segments),
        )
        self._store.put(layout.chapter(chapter.first, chapter.last), pack(chapter))
        for info in list(self._store.list(layout.HISTORY)):
            found = _parsed(info.key)
            if found is not None and found.last <= chapter.last and not found.joined:
                self._store.delete(info.key)
        return len(stored)

    def fences_above(self, fence: int) -> int:
        """The highest fence taken for the job, if it is higher than this one; otherwise 0."""
        newest = NumberedLog(self._store, layout.FENCES).newest()
        return newest if newest > fence else 0

    @contextmanager
    def understood(self, number: int) -> Iterator[None]:
        """Turn errors in the block, which processes the segment of this number, into `BadHistory`.

        Such a segment is intact but its content is inconsistent: no master of this version wrote it; it was edited, or
        belongs to another job.
        """
        try:
            yield
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            raise BadHistory(
                f"{self._log.uri(number)} is damaged: what it says does not fit together ({type(error).__name__}: "
                f"{error}); {_REMEDY}, or start the job again: it resumes from its last checkpoint"
            ) from error

    def _read(self, stored: Stored) -> HistorySegment:
        uri = self._store.uri(stored.key)
        segment = unpack(self._store.get(stored.key), uri)
        if (segment.first, segment.last) != (stored.first, stored.last):
            raise BadHistory(f"{uri} holds segments {segment.first} to {segment.last}; {_REMEDY}")
        return segment


def _parsed(key: str) -> Stored | None:
    """None if the key does not belong to the history."""
    found = _SEGMENT.fullmatch(key)
    return None if found is None else Stored(int(found[1] or found[2]), int(found[2]), key)


def pack(segment: HistorySegment) -> bytes:
    """A segment in its stored form."""
    return zstandard.ZstdCompressor(_LEVEL, write_checksum=True).compress(segment.SerializeToString(deterministic=True))


def unpack(data: bytes, uri: str) -> HistorySegment:
    """The inverse of `pack`. `uri`: its location, for the message. Raises `BadHistory`."""
    try:
        return HistorySegment.FromString(decompressed(data, _MOST_BYTES))
    except (zstandard.ZstdError, DecodeError, MemoryError) as error:  # it may claim any size
        raise BadHistory(f"{uri} is not a segment of a history ({error}); {_REMEDY}") from error


def runs_of(indices: Iterable[int]) -> Runs:
    """Encode distinct indices, in any order, as runs."""
    lengths: list[int] = []
    end = 0
    for index in sorted(indices):
        if index == end and lengths:
            lengths[-1] += 1
        else:
            lengths += (index - end, 1)
        end = index + 1
    return Runs(lengths=lengths)


def spans_of(runs: Runs) -> Iterator[tuple[int, int]]:
    """The runs as (first index, index after the last). Raises `BadHistory`."""
    edges = list(accumulate(runs.lengths))
    if len(edges) % 2:
        raise BadHistory(f"runs of clips in a history lack their last end; {_REMEDY}")
    return zip(edges[::2], edges[1::2], strict=True)
