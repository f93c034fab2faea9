"""Decides about lost bytes: whether to make the clip again, and for which consumer.

A reader learns about bytes from the message that they are in the cache, so they were there; the worker's own report may
come later, because workers report in batches. But once a clip was issued again, a reported loss may be about the
earlier seed, while the new one is being made.

A reader that has waited for a long time asks for a clip without such a message (`Failed.awaited`): the message may be
lost, or what the reader reported about it before. Then the clip is rebuilt only if it was reported as made, or as
done by this reader. Bytes of another release, during an upgrade, are reported in the same way; that is not a loss
either.
"""

from __future__ import annotations

from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import EXTRACTOR, Failed
from essp_engine.seeding.clip_parts import CLIP
from essp_master.ledger.books import Books
from essp_master.ledger.outstanding import Entry
from essp_master.ledger.states import IN_LINE, ISSUED, OUT_OF_LINE


class Losses:
    """Distinguishes real losses from late reports. Part of the ledger."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._parts = books.parts

    def lost(self, phase_index: int, event: Failed) -> Entry | None:
        """Return the clip of this phase that must be rebuilt; None if that is under way or not needed."""
        consumer, position = consumer_of(event), Position(phase_index, event.clip.index)
        entry = self._books.outstanding.get(position) or self._reopen(position, event.clip.attempt, consumer)
        if entry is None or not self._is_lost(entry, event, consumer):
            return None
        if event.awaited and event.stage != EXTRACTOR:  # regardless of the attempt
            return entry
        attempt = event.clip.attempt
        if entry.clip.attempt < attempt and self._has_trained(consumer, position):
            # It was issued again for a loop that came later: the attempts before this one will fail for the loop, too.
            entry.clip = self._books.config.plan_of(phase_index).clip(position.index, attempt)
        # A consumer that fell back asks for the first attempt, and gets the one that replaced it.
        bit = self._parts.bit.get(consumer, 0)
        fell_back = attempt == 0 and bit and not entry.left & bit
        return entry if fell_back or entry.clip.attempt == attempt else None

    def _is_lost(self, entry: Entry, event: Failed, consumer: str) -> bool:
        """Whether the clip must be rebuilt: not if that is already under way for this consumer as well."""
        bit = self._parts.bit.get(consumer, 0)
        if entry.state in IN_LINE:
            return bool(bit & ~entry.left) and self._has_trained(consumer, entry.position)
        if entry.state in OUT_OF_LINE:
            return True
        if event.stage == EXTRACTOR:
            part = self._parts.part_of_stream.get(event.stream, CLIP)
            return part != CLIP and _was_made(entry, CLIP) and not entry.made >> part & 1
        if bit & entry.left:
            part = self._parts.part[consumer]
            return bool(entry.made >> part & 1) if event.awaited else _was_made(entry, part)
        return self._has_trained(consumer, entry.position)

    def _reopen(self, position: Position, attempt: int, consumer: str) -> Entry | None:
        """Reopen a clip that a consumer had trained and needs again because it fell back."""
        if not self._has_trained(consumer, position):
            return None
        try:
            clip = self._books.config.plan_of(position.phase_index).clip(position.index, attempt)
        except (LookupError, IndexError):
            return None
        return self._books.outstanding.reopen(position.phase_index, clip)

    def _has_trained(self, consumer: str, position: Position) -> bool:
        consumption = self._books.consumption.get(consumer)
        return consumption is not None and consumption.wants(*position) and consumption.has(*position)


def _was_made(entry: Entry, part: int) -> bool:
    """Whether the current seed has made this part; for the first seed, the reader's claim is enough."""
    return entry.state == ISSUED or bool(entry.made >> part & 1)


def consumer_of(event: Failed) -> str:
    """Return the trainer or predictor that misses the bytes; empty for an extractor."""
    return "" if event.stage == EXTRACTOR else event.consumer
