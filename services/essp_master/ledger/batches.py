"""Accounts for reports about many clips: workers have made them, or a consumer is done with them.

Nearly all reports are of this kind, so the work done here per clip is the ledger's cost of a clip. Plain clips
(`plain.py`) are accounted for together, the others one by one. While a consumer has a catch-up queue, no clip is plain.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import NamedTuple

from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import Made, Trained
from essp_engine.seeding.clip_parts import CLIP
from essp_engine.seeding.instructions import Instruction
from essp_master.ledger.books import Books
from essp_master.ledger.closing import Closer, Departures
from essp_master.ledger.outstanding import Entry
from essp_master.ledger.states import WAITING
from essp_master.ledger.stragglers import Stragglers


class PhaseEvent(NamedTuple):
    """What happened to clips of one phase."""

    phase_index: int
    kind: str
    """A field of `PhaseEvents`: decoded, extracted, trained, retrained, trained_before."""
    name: str
    """The extracted stream, or the consumer that has trained; empty for `decoded`."""
    indices: list[int]


class Batches:
    """Accounts for made and trained clips. Part of the ledger."""

    def __init__(self, books: Books, stragglers: Stragglers, closer: Closer, departures: Departures) -> None:
        self._parts = books.parts
        self._outstanding = books.outstanding
        self._consumption = books.consumption
        self._counts = books.counts
        self._stragglers = stragglers
        self._closer = closer
        self._departures = departures
        self._direct = books.parts.everyone & books.parts.ackers[CLIP]
        """The consumers that read the clips themselves."""

    def made(self, phase_index: int, report: Made, events: list[PhaseEvent], out: list[Instruction]) -> None:
        """Clips of a phase were decoded, or one stream of them was extracted."""
        stream, indices = report.stream, report.indices[:]
        part = self._parts.part_of_stream.get(stream, CLIP) if stream else CLIP
        if stream and part == CLIP:
            self._counts.duplicates += len(indices)
            return
        plain, delivered = self._plain_made(phase_index, part, indices, report)
        counted = list(plain)
        if len(plain) < len(indices):
            single, more = self._made_singly(phase_index, part, report, plain, out)
            counted += single
            delivered += more
        self._count(phase_index, part, counted, delivered, events)

    def _plain_made(self, phase_index: int, part: int, indices: list[int], report: Made) -> tuple[set[int], int]:
        """Account for the plain clips among these. Returns them, and how many of them a consumer can read now."""
        # A clip may be owed to a straggler, which only the slow path considers.
        if self._stragglers.bits:
            return set(), 0
        told: Iterable[tuple[int, int]] = zip(indices, report.bytes[:], strict=False)
        if report.attempts:
            told = (each for each, attempt in zip(told, report.attempts, strict=False) if not attempt)
        return self._outstanding.plain_made(phase_index, part, dict(told))

    def _made_singly(
        self, phase_index: int, part: int, report: Made, plain: set[int], out: list[Instruction]
    ) -> tuple[list[int], int]:
        """Account for the other clips. Returns the newly made ones, and how many of them a consumer can read now."""
        bit, extractor = 1 << part, self._parts.extractor[part - 1] if part else 0
        outstanding, stragglers, away = self._outstanding, self._stragglers.bits, self._departures.away
        find, counted, delivered, known = outstanding.get, [], 0, 0
        for index, attempt, size in zip(report.indices, report.attempts or repeat(0), report.bytes, strict=False):
            if index in plain:
                plain.remove(index)  # a repeated index in one report is a duplicate
                continue
            entry = find((phase_index, index))
            # Not expected: the clip is closed, was made already, has another attempt, or is not out.
            if entry is None or entry.made & bit or entry.clip.attempt != attempt or entry.state in WAITING:
                known += 1
                continue
            # A consumer had read this part before the worker reported it, so it is counted already (`_read`).
            if entry.counted & bit:
                self._counts.unreported = max(0, self._counts.unreported - 1)
            else:
                entry.counted |= bit
                counted.append(index)
                delivered += part != CLIP or bool(entry.left & self._direct)
            outstanding.made(entry, part, size)
            if part:
                outstanding.acked(entry, extractor, CLIP)
            if stragglers:
                self._closer.settle(entry, out)
            # Consumers that left while the clip was being made no longer want it.
            if entry.left & away:
                self._departures.give_back(entry, out)
        late = min(known, self._counts.unreported)
        self._counts.unreported -= late
        self._counts.duplicates += known - late
        return counted, delivered

    def trained(self, phase_index: int, report: Trained, events: list[PhaseEvent], out: list[Instruction]) -> None:
        """A consumer is done with clips of a phase."""
        plain = self._plain_trained(phase_index, report, out)
        first: list[int] = list(plain)
        repeated: list[int] = []
        if len(plain) < len(report.indices):
            single, repeated = self._trained_singly(phase_index, report, plain, events, out)
            first += single
        if first:
            events.append(PhaseEvent(phase_index, "trained", report.consumer, first))
        if repeated:
            events.append(PhaseEvent(phase_index, "retrained", report.consumer, repeated))

    def _plain_trained(self, phase_index: int, report: Trained, out: list[Instruction]) -> set[int]:
        """Account for the plain clips among these that the consumer was not done with, and return them."""
        if self._stragglers.bits:
            return set()
        bit, part = self._parts.bit[report.consumer], self._parts.part[report.consumer]
        plain, closed = self._outstanding.plain_read(phase_index, bit, part, report.indices)
        self._consumption[report.consumer].add_all(phase_index, plain)
        if closed:
            self._closer.count_all(phase_index, closed, out)
        return plain

    def _trained_singly(
        self, phase_index: int, report: Trained, plain: set[int], events: list[PhaseEvent], out: list[Instruction]
    ) -> tuple[list[int], list[int]]:
        """Account for the other clips. Returns those that are new to the consumer, and those that it had
        already done."""
        consumption, stragglers = self._consumption[report.consumer], self._stragglers
        bit, part = self._parts.bit[report.consumer], self._parts.part[report.consumer]
        outstanding, find, ended = self._outstanding, self._outstanding.get, self._closer.acked
        read, others = 1 << part | 1 << CLIP, self._parts.everyone & ~bit
        first: list[int] = []
        repeated: list[int] = []
        unreported: list[Entry] = []
        for index in report.indices:
            if index in plain:
                plain.remove(index)  # a repeated index in one report is a duplicate
                continue
            entry = find((phase_index, index))
            if entry is not None and entry.left & bit:
                # The consumer has read parts that no worker has reported yet; `_read` counts them below.
                if read & ~entry.counted and entry.state not in WAITING:
                    unreported.append(entry)
                if consumption.add(phase_index, index):
                    first.append(index)
                elif consumption.wants(phase_index, index):
                    repeated.append(index)
                outstanding.acked(entry, bit, part)
                if not entry.left & others or stragglers.bits:
                    ended(entry, out)
            elif stragglers.bits & bit and stragglers.owed(Position(phase_index, index)) & bit:
                # The consumer had already taken the clip when it was released on its behalf.
                first.append(index)
                consumption.add(phase_index, index)
                if entry is None:
                    self._closer.count(phase_index, index, 0, out)
                else:
                    outstanding.owe(entry)
            else:
                self._counts.duplicates += not report.again
        for each in {CLIP, part} if unreported else ():
            self._read(phase_index, each, unreported, events)
        return first, repeated

    def _read(self, phase_index: int, part: int, entries: list[Entry], events: list[PhaseEvent]) -> None:
        """A consumer has read this part of clips, so they were made, although no worker has reported it yet."""
        fresh = [entry for entry in entries if not entry.counted >> part & 1]
        for entry in fresh:
            entry.counted |= 1 << part
        self._counts.unreported += len(fresh)
        delivered = len(fresh) if part or self._direct else 0
        self._count(phase_index, part, [entry.clip.index for entry in fresh], delivered, events)

    def _count(self, phase_index: int, part: int, indices: list[int], delivered: int, events: list[PhaseEvent]) -> None:
        """Count a part of these clips as made: once each time that a clip is issued."""
        if not indices:
            return
        self._counts.delivered += delivered
        if part == CLIP:
            self._counts.decoded += len(indices)
            events.append(PhaseEvent(phase_index, "decoded", "", indices))
        else:
            self._counts.extracted += len(indices)
            events.append(PhaseEvent(phase_index, "extracted", self._parts.streams[part - 1], indices))
