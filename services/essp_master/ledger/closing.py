"""The end of a clip: no consumer still needs it, and no straggler is still owed it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from essp_common.job.position import Position
from essp_engine.seeding.instructions import FinishPhase, Instruction, ReleaseClip
from essp_master.ledger.books import Books
from essp_master.ledger.consumption import done_by_all
from essp_master.ledger.outstanding import Entry
from essp_master.ledger.states import OUT_OF_LINE, REOPENED, WAITING
from essp_master.ledger.stragglers import Stragglers


class Closer:
    """Closes clips, and counts them in their phases. Part of the ledger."""

    def __init__(self, books: Books, stragglers: Stragglers) -> None:
        self.total = sum(account.closed for account in books.phases)
        """Clips of all phases that every consumer is done with, or that were skipped."""
        self._books = books
        self._everyone = books.parts.everyone
        self._clips = [phase.clips for phase in books.config.phases]
        self._outstanding = books.outstanding
        self._phases = books.phases
        self._stragglers = stragglers

    def acked(self, entry: Entry, out: list[Instruction]) -> None:
        """A consumer is done with a clip; close the clip after the last one."""
        if entry.left & self._everyone:
            if self._stragglers.bits:
                if entry.catch_up is not None and not entry.catch_up.bit & entry.left:
                    self._outstanding.move(entry, None)
                self.settle(entry, out)
            return
        self._outstanding.close(entry)
        if entry.state not in REOPENED:
            self.count(entry.phase_index, entry.clip.index, entry.clip.attempt, out)

    def settle(self, entry: Entry, out: list[Instruction]) -> None:
        """Decide about a clip that only stragglers may still want."""
        if not entry.left & self._everyone & ~self._stragglers.bits:
            self._stragglers.settle(entry, out)

    def count(self, phase_index: int, index: int, attempt: int, out: list[Instruction]) -> None:
        """Count a clip as closed, unless a straggler is still owed it."""
        if self._stragglers.bits:
            position = Position(phase_index, index)
            if not all(consumption.has(phase_index, index) for consumption in self._books.consumption.values()):
                self._stragglers.remember(position, attempt)
                return
            self._stragglers.forget(position)
        self.count_all(phase_index, 1, out)

    def recount(self, phases: Iterable[int], out: list[Instruction]) -> None:
        """Count the closed clips of these phases again, after a consumer has come or wants no more. That closes or
        reopens too many clips to visit each one."""
        self._stragglers.forget_done()
        to_count = self._outstanding.to_count()
        for phase_index in phases:
            account = self._phases[phase_index]
            closed = self._closed(phase_index, to_count.get(phase_index, ()))
            if closed > account.closed:
                self.count_all(phase_index, closed - account.closed, out)
            else:
                self.total -= account.closed - closed
                account.closed = closed

    def check(self) -> None:
        """Raise `ValueError` if the counters of a phase disagree with its clips."""
        to_count = self._outstanding.to_count()
        for phase_index, (account, clips) in enumerate(zip(self._phases, self._clips, strict=True)):
            issued = self._books.order.count_passed(phase_index)
            closed = self._closed(phase_index, to_count.get(phase_index, ()))
            if (account.issued, account.closed) != (issued, closed):
                raise ValueError(
                    f"phase {phase_index} of {clips} clips has {account.issued} issued and {account.closed} closed, "
                    f"and by its clips these are {issued} and {closed}"
                )

    def pass_over(self, phase_index: int, clips: int, out: list[Instruction]) -> None:
        """Count clips that no consumer wants as issued and closed."""
        self._phases[phase_index].issued += clips
        self.count_all(phase_index, clips, out)

    def count_all(self, phase_index: int, clips: int, out: list[Instruction]) -> None:
        """Count clips that are owed to no consumer as closed."""
        account = self._phases[phase_index]
        account.closed += clips
        self.total += clips
        if account.closed == self._clips[phase_index] and not self._is_skipped(phase_index):
            out.append(FinishPhase(phase_index))

    def _closed(self, phase_index: int, to_count: Sequence[int]) -> int:
        """Return how many of the issued or passed-over clips every consumer is done with, excluding clips that will
        still be counted at their end."""
        consumption, order = self._books.consumption.values(), self._books.order
        open_ = list(to_count)
        end = self._clips[phase_index]
        if phase_index >= order.end.phase_index:
            end = order.end.index if phase_index == order.end.phase_index else 0
            open_ += order.coming() if end else ()
        left = sum(all(each.has(phase_index, index) for each in consumption) for index in open_)
        return done_by_all(consumption, phase_index, end) - left

    def _is_skipped(self, phase_index: int) -> bool:
        """Whether all consumers have stopped before this phase."""
        return all(consumption.skips(phase_index, 0) for consumption in self._books.consumption.values())


class Departures:
    """Frees clips that consumers no longer want: a loop has left, or a trainer has stopped early or is further than the
    ledger knew (`consumers.py`). Part of the ledger.

    A clip that is still being made is freed when it is complete: a worker stores it for all consumers named in its
    seed.
    """

    def __init__(self, books: Books, closer: Closer) -> None:
        self._books = books
        self._closer = closer
        self._everyone = books.parts.everyone
        self._outstanding = books.outstanding
        self.away = self._departed()
        """Bits of the consumers that may have left clips behind."""

    def note(self) -> None:
        """A consumer has left, stopped or come, or is further than was known."""
        self.away = self._departed()

    def wanting(self, entry: Entry) -> int:
        """Return the consumers that have yet to ack this clip and still want it, as bits."""
        return entry.left & self._everyone & ~self._unwanting(entry)

    def give_back(self, entry: Entry, out: list[Instruction]) -> None:
        """Free the parts of a clip that were made for consumers which no longer want it."""
        unwanting = self._unwanting(entry)
        if entry.state in WAITING:
            self._free(entry, unwanting, out)
        elif unwanting:
            self._free(entry, sum(bit for bit, part in self._bits(unwanting) if entry.made >> part & 1), out)

    def drop(self, entry: Entry, out: list[Instruction]) -> None:
        """Drop a clip that would need a rebuild but that no consumer wants."""
        self._free(entry, entry.left & self._everyone, out)

    def _unwanting(self, entry: Entry) -> int:
        left = entry.left & self.away
        if not left:
            return 0
        consumption, bit = self._books.consumption, self._books.parts.bit
        names = self._books.parts.names(left)
        return sum(bit[name] for name in names if not consumption[name].wants(*entry.position))

    def _free(self, entry: Entry, bits: int, out: list[Instruction]) -> None:
        if not bits:
            return
        if entry.state not in OUT_OF_LINE:
            out.append(ReleaseClip(entry.phase_index, entry.clip, self._books.parts.names(bits)))
        for bit, part in list(self._bits(bits)):
            self._outstanding.acked(entry, bit, part)
        self._closer.acked(entry, out)

    def _bits(self, bits: int) -> Iterator[tuple[int, int]]:
        parts = self._books.parts
        return ((parts.bit[name], parts.part[name]) for name in parts.names(bits))

    def _departed(self) -> int:
        bit, begins = self._books.parts.bit, self._books.config.start
        return sum(
            bit[name]
            for name, each in self._books.consumption.items()
            if each.stopped is not None or each.start > begins.get(name, Position(0, 0))
        )
