"""What is told of many clips at once: that they were made, and that a consumer is done with them.

Nearly all of what a ledger hears is this, so what is done here for each clip is what a clip costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import NamedTuple

from essp_common.pb.v1.messages_pb2 import Made, Trained
from essp_master.ledger.accounts import Counts
from essp_master.ledger.consumption import Consumption
from essp_master.ledger.endings import Endings
from essp_master.ledger.instructions import Instruction
from essp_master.ledger.outstanding import Entry, Outstanding
from essp_master.ledger.parts import CLIP, ClipParts
from essp_master.ledger.stragglers import Stragglers


class News(NamedTuple):
    """What was found out about clips of one phase."""

    phase_index: int
    what: str
    """A field of `PhaseEvents`: decoded, extracted, trained, retrained."""
    whom: str
    """The stream or the consumer, if it is about one."""
    indices: list[int]


class Batches:
    """Accounts for clips that were made and trained. Part of the ledger."""

    def __init__(
        self,
        parts: ClipParts,
        outstanding: Outstanding,
        consumption: Mapping[str, Consumption],
        lag: Stragglers,
        counts: Counts,
        endings: Endings,
    ) -> None:
        self._parts = parts
        self._outstanding = outstanding
        self._consumption = consumption
        self._lag = lag
        self._counts = counts
        self._endings = endings
        self._direct = parts.everyone & parts.ackers[CLIP]
        """Who reads the clips themselves."""

    def made(self, number: int, event: Made, news: list[News], out: list[Instruction]) -> None:
        """Clips of phase `number` were decoded, or one stream of them was extracted."""
        part = self._parts.part_of_stream.get(event.stream, CLIP) if event.stream else CLIP
        if event.stream and part == CLIP:
            self._counts.duplicates += len(event.indices)
            return
        bit, extractor = 1 << part, self._parts.extractor[part - 1] if part else 0
        outstanding, slow = self._outstanding, self._lag.slow
        find, counted, delivered, known = outstanding.get, [], 0, 0
        for index, attempt, size in zip(event.indices, event.attempts or repeat(0), event.bytes, strict=False):
            entry = find((number, index))
            if entry is None or entry.made & bit or entry.clip.attempt != attempt or entry.queued or entry.shed:
                known += 1
                continue
            if entry.counted & bit:
                self._counts.unreported = max(0, self._counts.unreported - 1)
            else:
                entry.counted |= bit
                counted.append(index)
                delivered += part != CLIP or bool(entry.left & self._direct)
            outstanding.made(entry, part, size)
            if part:
                outstanding.acked(entry, extractor, CLIP)
            if slow:
                self._endings.settle(entry, out)
        late = min(known, self._counts.unreported)
        self._counts.unreported -= late
        self._counts.duplicates += known - late
        self._count(number, part, counted, delivered, news)

    def trained(self, number: int, event: Trained, news: list[News], out: list[Instruction]) -> None:
        """A consumer is done with clips of phase `number`."""
        consumption = self._consumption[event.consumer]
        bit, part = self._parts.bit[event.consumer], self._parts.part[event.consumer]
        outstanding, find, ended = self._outstanding, self._outstanding.get, self._endings.acked
        read, others = 1 << part | 1 << CLIP, self._parts.everyone & ~bit
        first: list[int] = []
        again: list[int] = []
        unreported: list[Entry] = []
        for index in event.indices:
            entry = find((number, index))
            if entry is not None and entry.left & bit:
                if read & ~entry.counted and not entry.queued and not entry.shed:
                    unreported.append(entry)
                (first if consumption.add(number, index) else again).append(index)
                outstanding.acked(entry, bit, part)
                if not entry.left & others or self._lag.slow:
                    ended(entry, out)
            elif self._lag.slow & bit and self._lag.owing((number, index)) & bit:
                # It was released on its behalf, when it had taken it already.
                first.append(index)
                consumption.add(number, index)
                if entry is None:
                    self._endings.closed((number, index), 0, out)
                else:
                    entry.again = False
            else:
                self._counts.duplicates += 1
        for each in {CLIP, part} if unreported else ():
            self._read(number, each, unreported, news)
        if first:
            news.append(News(number, "trained", event.consumer, first))
        if again:
            news.append(News(number, "retrained", event.consumer, again))

    def _read(self, number: int, part: int, entries: list[Entry], news: list[News]) -> None:
        """A consumer had this part of clips, so it was made, though workers have not said so yet."""
        fresh = [entry for entry in entries if not entry.counted >> part & 1]
        for entry in fresh:
            entry.counted |= 1 << part
        self._counts.unreported += len(fresh)
        delivered = len(fresh) if part or self._direct else 0
        self._count(number, part, [entry.place[1] for entry in fresh], delivered, news)

    def _count(self, number: int, part: int, indices: list[int], delivered: int, news: list[News]) -> None:
        """A part of these clips was made; of each once for each time that it is issued."""
        if not indices:
            return
        self._counts.delivered += delivered
        if part == CLIP:
            self._counts.decoded += len(indices)
            news.append(News(number, "decoded", "", indices))
        else:
            self._counts.extracted += len(indices)
            news.append(News(number, "extracted", self._parts.streams[part - 1], indices))
