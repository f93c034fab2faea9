"""Bytes that were gone when somebody wanted them: whether the clip has to be made again, and for whom.

Who misses bytes was told of them, so they were there; their worker may say so only later, since it reports in batches.
But what was issued again is being made while news of the time before still come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from essp_common.pb.v1.messages_pb2 import EXTRACTOR, Failed
from essp_common.planning.plan import Plan
from essp_master.ledger.consumption import Consumption
from essp_master.ledger.order import Place
from essp_master.ledger.outstanding import Entry, Outstanding
from essp_master.ledger.parts import CLIP, ClipParts


class Losses:
    """Tells real losses from late news. Part of the ledger."""

    def __init__(
        self,
        parts: ClipParts,
        outstanding: Outstanding,
        consumption: Mapping[str, Consumption],
        plan_of: Callable[[int], Plan],
    ) -> None:
        self._parts = parts
        self._outstanding = outstanding
        self._consumption = consumption
        self._plan_of = plan_of

    def missed(self, number: int, event: Failed) -> Entry | None:
        """The clip of phase `number` that has to be made again; None: it is under way, or not needed."""
        consumer, place = missing_consumer(event), (number, event.clip.index)
        entry = self._outstanding.get(place) or self._fallen_back(place, event.clip.attempt, consumer)
        if entry is None or not self._is_missed(entry, event, consumer):
            return None
        # Who fell back asks for the first attempt, and has to be given the one that took its place.
        bit = self._parts.bit.get(consumer, 0)
        fell_back = event.clip.attempt == 0 and bit and not entry.left & bit
        return entry if fell_back or entry.clip.attempt == event.clip.attempt else None

    def _is_missed(self, entry: Entry, event: Failed, consumer: str) -> bool:
        """Whether making the clip again is called for: not while that is under way, for this consumer too."""
        bit = self._parts.bit.get(consumer, 0)
        if entry.queued:
            return bool(bit & ~entry.left) and self._has_trained(consumer, entry.place)
        if entry.shed or not entry.left:
            return True
        if event.stage == EXTRACTOR:
            part = self._parts.part_of_stream.get(event.stream, CLIP)
            return part != CLIP and _was_made(entry, CLIP) and not entry.made >> part & 1
        if bit & entry.left:
            return _was_made(entry, self._parts.part[consumer])
        return self._has_trained(consumer, entry.place)

    def _fallen_back(self, place: Place, attempt: int, consumer: str) -> Entry | None:
        """An entry for a clip that was done, and that a consumer needs once more."""
        if not self._has_trained(consumer, place):
            return None
        try:
            return self._outstanding.reopen(place, self._plan_of(place[0]).clip(place[1], attempt))
        except (LookupError, IndexError):
            return None

    def _has_trained(self, consumer: str, place: Place) -> bool:
        consumption = self._consumption.get(consumer)
        return consumption is not None and consumption.wants(*place) and consumption.has(*place)


def _was_made(entry: Entry, part: int) -> bool:
    return not entry.reissued or bool(entry.made >> part & 1)


def missing_consumer(event: Failed) -> str:
    """The trainer or predictor that misses the bytes; empty: it is an extractor."""
    return "" if event.stage == EXTRACTOR else event.consumer
