"""Consumers that lag too far behind: they get their clips later, from a catch-up queue.

Every consumer gets every clip, so a slow one holds on to clips that the others have long finished, until the budget is
used up. Suppose that only the budget prevents new clips from being issued, and that the slowest consumer is behind the
furthest one by more than a share (`limits.lag`) of the outstanding clips. Then

- clips that only stragglers still want are released on their behalf, except for the lowest, which a queue may keep;
- clips that are issued from then on are made for the others alone;
- the catch-up queue issues what its consumer is owed, in plan order and within a share of the budget that is
  reserved for it. A straggler cannot take bytes from the others, nor they from it, so neither ever waits for the other;
- a queue that has caught up with the clips outstanding for the others has those rebuilt for them and its consumer.
  The consumer joins the others at the next stretch of the order. There the queue ends.

The ledger keeps no list of what a straggler is owed: that is every clip that was issued, is not outstanding for it, and
that it is not done with. If a video was replaced, the straggler gets the same replacement. Consumers take clips in the
order of their indices, with or without a queue, so their results do not depend on any of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import CatchUpState, ReplacedClip
from essp_engine.planning.planned_clip import PlannedClip
from essp_engine.seeding.instructions import Instruction, IssueUnits, ReleaseClip
from essp_master.ledger.books import Books
from essp_master.ledger.issue_order import CatchUpQueue, IssueOrder, Unit
from essp_master.ledger.outstanding import Entry
from essp_master.ledger.states import OUT_OF_LINE, REOPENED, WAITING


class Stragglers:
    """The stragglers of one job, and their catch-up queues. Part of the ledger."""

    def __init__(self, books: Books) -> None:
        self.bits = 0
        """The consumers that have a catch-up queue."""
        self._books = books
        self._everyone = books.parts.everyone
        self._outstanding = books.outstanding
        self._queues = books.outstanding.catch_up_queues
        self._before = [0, *accumulate(phase.clips for phase in books.config.phases)]
        """For each phase, the number of clips in all phases before it."""
        self._replaced: dict[Position, int] = {}
        """The attempt of each clip that a queue has yet to issue, unless it is the first attempt."""

    # --- for the ledger ---

    def served(self, position: Position) -> int:
        """Return the consumers that get this clip from a catch-up queue and not with the others."""
        return sum(queue.bit for queue in self._queues.values() if queue.serves(position))

    def hold(self, position: Position) -> bool:
        """Whether all consumers are left behind, and none of them waits for the order of issue to pass this clip.

        Otherwise the order would run on to the end of the job, as if other consumers were that far.
        """
        bit, consumption = self._books.parts.bit, self._books.consumption
        present = sum(bit[name] for name, each in consumption.items() if not each.absent and not each.skips(*position))
        awaited = (queue.joins is not None and position < queue.joins for queue in self._queues.values())
        return not present & ~self.bits and not any(awaited)

    def owed(self, position: Position) -> int:
        """Return the consumers that will get this clip from a catch-up queue because they are not done with it."""
        if not self._queues or not self._books.order.passed(position):
            return 0
        return sum(
            queue.bit
            for name, queue in self._queues.items()
            if queue.serves(position) and self._books.consumption[name].owes(*position)
        )

    def leave_one_behind(self, out: list[Instruction]) -> bool:
        """Leave the slowest consumer behind if it lags too far. Returns False if no consumer does."""
        in_step = self._outstanding.in_step
        if not self._books.config.catch_up_bytes or not in_step:
            return False
        reached = self._in_step()
        if not reached:
            return False
        slowest = min(reached, key=reached.__getitem__)
        present = (each for each in self._books.consumption.values() if not each.absent)
        furthest = max((each.total for each in present if each.stopped is None), default=0)
        if furthest - reached[slowest] <= self._books.config.lag * in_step:
            return False
        self._leave_behind(slowest, out)
        return True

    def open(self, name: str, position: Position, out: list[Instruction]) -> None:
        """Open a catch-up queue for a consumer that joined late, for the clips issued from `position`.

        Consumers whose clips occupy its share are left behind, too: they may take nothing for a long time.
        """
        self._open(name, position)
        while self._outstanding.lacks_shares and (in_step := self._in_step()):
            self._leave_behind(min(in_step, key=in_step.__getitem__), out)

    def dismiss(self, name: str) -> None:
        """End the queue of a consumer that leaves, if it has one."""
        if (queue := self._queues.get(name)) is not None:
            self._end(queue)

    def go_back(self, name: str, position: Position) -> None:
        """A consumer wants clips from this position that it was done with: its queue, if any, issues them."""
        if (queue := self._queues.get(name)) is not None:
            self._go_back(queue, position)

    def pass_over(self, name: str) -> None:
        """A consumer has stopped early, or is further than was known: its queue, if any, continues there."""
        queue = self._queues.get(name)
        if queue is not None:
            start = max(queue.order.begin, self._books.consumption[name].next_start)
            queue.order = self._order_from(queue.bit, start)

    def settle(self, entry: Entry, out: list[Instruction]) -> None:
        """Decide about a clip that only stragglers still want: one of their queues keeps it, or it is released."""
        if entry.catch_up is not None:
            if entry.catch_up.bit & entry.left:
                return
            self._outstanding.move(entry, None)
        if not self._may_release(entry):
            return
        for queue in self._queues.values():
            fits = queue.bytes + sum(entry.sizes) <= queue.share_bytes
            if fits and queue.bit & entry.left and queue.order.passed(entry.position):
                self._outstanding.move(entry, queue)
                return
        self._release(entry, out)

    def issue(self, out: list[Instruction]) -> None:
        """Issue what the catch-up queues have room for."""
        for queue in list(self._queues.values()):
            if self._issue(queue, out):
                self._end(queue)

    def remember(self, position: Position, attempt: int) -> None:
        """Note a closed clip that a queue has yet to issue: the queue must issue this attempt."""
        if attempt:
            self._replaced[position] = attempt

    def forget(self, position: Position) -> None:
        """No consumer is owed this clip any more."""
        self._replaced.pop(position, None)

    def forget_done(self) -> None:
        """Forget clips that every consumer is done with by now, because the last one that was owed them
        wants no more."""
        consumption = self._books.consumption.values()
        done = [position for position in self._replaced if all(each.has(*position) for each in consumption)]
        for position in done:
            self.forget(position)

    # --- state ---

    def state(self) -> tuple[list[CatchUpState], list[ReplacedClip]]:
        """Return the complete state as messages."""
        queues = [
            CatchUpState(consumer=name, order=queue.order.state(), joins=queue.joins.message() if queue.joins else None)
            for name, queue in self._queues.items()
        ]
        return queues, [ReplacedClip(position=p.message(), attempt=attempt) for p, attempt in self._replaced.items()]

    def restore(self, queues: Sequence[CatchUpState], replaced: Sequence[ReplacedClip]) -> None:
        """Restore the state from messages."""
        for state in queues:
            queue = self._open(state.consumer, Position(state.order.phase_index, state.order.begin))
            queue.order.restore(state.order)
            queue.joins = Position.of(state.joins) if state.HasField("joins") else None
        self._replaced = {Position.of(each.position): each.attempt for each in replaced}

    # --- progress of consumers ---

    def _in_step(self) -> dict[str, int]:
        """Return the consumers that get clips with the others, or are about to, with how far each will be then."""
        present = (name for name, consumption in self._books.consumption.items() if not consumption.absent)
        return {name: self._reached(name) for name in present if self._is_in_step(name)}

    def _is_in_step(self, name: str) -> bool:
        queue = self._queues.get(name)
        return queue is None or queue.joins is not None

    def _reached(self, name: str) -> int:
        """Return how many clips a consumer is done with, or will have received from its queue before it joins the
        others."""
        done, queue = self._books.consumption[name].total, self._queues.get(name)
        if queue is None or queue.joins is None:
            return done
        phase_index, index = queue.joins
        return max(done, self._before[phase_index] + index)

    # --- the life of a queue ---

    def _leave_behind(self, name: str, out: list[Instruction]) -> None:
        if name in self._queues:
            self._end(self._queues[name])
        queue = self._open(name, self._books.consumption[name].position())
        # The queue keeps the lowest clips that only stragglers want, as far as its share allows; `settle` decides about
        # the others.
        keeps = True
        for entry in self._outstanding.entries():
            if not entry.left & queue.bit or entry.left & self._everyone & ~self.bits:
                continue
            keeps = keeps and queue.bytes + sum(entry.sizes) <= queue.share_bytes
            if keeps and entry.catch_up is None and entry.state not in REOPENED:
                self._outstanding.move(entry, queue)
            else:
                self.settle(entry, out)

    def _open(self, name: str, position: Position) -> CatchUpQueue:
        config = self._books.config
        bit = config.parts.bit[name]
        order = self._order_from(bit, position)
        queue = self._queues[name] = CatchUpQueue(name, bit, order, config.catch_up_bytes)
        self.bits |= bit
        return queue

    def _end(self, queue: CatchUpQueue) -> None:
        """End a queue: from now on, its consumer gets all clips together with the others."""
        del self._queues[queue.consumer]
        self.bits &= ~queue.bit
        for position in list(queue.positions):
            if (entry := self._outstanding.get(position)) is not None:
                self._outstanding.move(entry, None)

    def _go_back(self, queue: CatchUpQueue, position: Position) -> None:
        """Make a queue issue this clip again; it skips clips that are done or outstanding by then."""
        queue.order = self._order_from(queue.bit, min(queue.order.begin, position))

    def _order_from(self, bit: int, position: Position) -> IssueOrder:
        return IssueOrder(self._books.config, {bit: position}, self._books.config.catch_up_window)

    # --- the clips of a queue ---

    def _issue(self, queue: CatchUpQueue, out: list[Instruction]) -> bool:
        """Issue what a queue has room for. Returns True if its consumer now joins the others."""
        counts = self._books.counts
        while (unit := queue.order.peek()) is not None and queue.serves(Position(unit[0], unit[1][0].index)):
            wanted = self._wanted(queue, unit)
            if wanted is None:
                return False
            phase_index, (clips, shared) = unit[0], wanted
            lacking = self._outstanding.lacking(phase_index, len(clips), queue.bit, queue) if clips else 0
            beyond = self._beyond(queue, Position(phase_index, clips[0].index), lacking) if lacking else []
            if lacking and not beyond:
                return False
            queue.order.take()
            # Released before the queue's own clips are charged, since these take the bytes that become free.
            for entry in beyond:
                self._release(entry, out)
            for entry in shared:
                self._outstanding.owe(entry)
                self._outstanding.request(entry, (entry.left | queue.bit) & self._everyone)
            if clips:
                self._outstanding.catch_up(phase_index, clips, queue)
                out.append(IssueUnits(phase_index, _by_video(clips), (queue.consumer,)))
            counts.issued += len(clips)
            counts.redecoded += len(clips) + len(shared)
        return True

    def _wanted(self, queue: CatchUpQueue, unit: Unit) -> tuple[list[PlannedClip], list[Entry]] | None:
        """Return the clips of a unit that a queue issues, and those that are rebuilt for its consumer and others
        together. None if the queue must wait.
        """
        phase_index, clips, _ = unit
        books, order = self._books, self._books.order
        consumption = books.consumption[queue.consumer]
        wanted, shared = [], []
        for clip in clips:
            position = Position(phase_index, clip.index)
            entry = self._outstanding.get(position)
            if not order.passed(position):
                # The queue has reached the present stretch of the order. Its consumer joins the others at the end of
                # that stretch.
                queue.joins = queue.joins or order.end
                return None
            if consumption.has(*position) or (entry is not None and entry.left & queue.bit):
                continue
            if entry is None:
                attempt = self._replaced.get(position, 0)
                wanted.append(books.config.plan_of(phase_index).clip(clip.index, attempt) if attempt else clip)
                continue
            if entry.left & self._everyone & ~self.bits:
                queue.joins = queue.joins or order.end
            # Workers may still store bytes of the clip, or the share could not hold everything up to it: wait.
            if not self._is_idle(entry) or not self._may_share(queue, entry):
                return None
            shared.append(entry)
        return wanted, shared

    def _may_share(self, queue: CatchUpQueue, entry: Entry) -> bool:
        """Whether the queue's share could hold all clips that its consumer has yet to take, up to this one.

        A shared clip is not charged to the share. But if all were shared at once, decoders would have no room for
        anything new.
        """
        phase_index, index = entry.position
        ahead = self._before[phase_index] + index + 1 - self._books.consumption[queue.consumer].total
        return ahead * self._outstanding.bound(phase_index, queue.bit) <= queue.share_bytes

    def _beyond(self, queue: CatchUpQueue, position: Position, lacking: int) -> list[Entry]:
        """Return the furthest clips of a queue beyond `position` that together free this many bytes; empty if they
        cannot.

        All or nothing, and only for what is issued at once. The order within a window differs from index order, so a
        released clip might be issued again before the clip that it made room for, and so on forever.
        """
        furthest = queue.furthest()
        if furthest is None or furthest < position:
            return []
        found = []
        for beyond in sorted((other for other in queue.positions if other > position), reverse=True):
            entry = self._outstanding.get(beyond)
            if entry is not None and self._may_release(entry):
                found.append(entry)
                lacking -= sum(entry.sizes)
                if lacking <= 0:
                    return found
        return []

    def _may_release(self, entry: Entry) -> bool:
        """Whether all consumers that still want a clip get it from catch-up queues, now or later.

        A queue skips clips that its consumer was done with, even if the consumer fell back and wants them again.
        """
        if entry.state in REOPENED or not self._is_idle(entry) or entry.left & self._everyone & ~self.bits:
            return False
        position, consumption = entry.position, self._books.consumption
        return all(
            queue.serves(position) and not consumption[name].has(*position)
            for name, queue in self._queues.items()
            if queue.bit & entry.left
        )

    def _is_idle(self, entry: Entry) -> bool:
        """Whether no worker will store more bytes of the clip, so that acks for its consumers free everything."""
        return entry.state in WAITING or self._outstanding.ready(entry)

    def _release(self, entry: Entry, out: list[Instruction]) -> None:
        position = entry.position
        if entry.state not in OUT_OF_LINE:
            out.append(ReleaseClip(entry.phase_index, entry.clip, self._books.parts.names(entry.left)))
        self.remember(position, entry.clip.attempt)
        self._outstanding.close(entry)
        self._books.counts.released += 1
        for queue in self._queues.values():
            if queue.bit & entry.left and queue.order.passed(position):
                self._go_back(queue, position)


def _by_video(clips: Sequence[PlannedClip]) -> list[tuple[PlannedClip, ...]]:
    """Return work units of these clips: replaced clips may belong to different videos."""
    units: dict[int, list[PlannedClip]] = {}
    for clip in clips:
        units.setdefault(clip.video, []).append(clip)
    return [tuple(unit) for unit in units.values()]
