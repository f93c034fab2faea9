"""What is done about a consumer that lags: it is left behind, and gets its clips later in a lane of its own.

Every consumer is given every clip, so one that is slow holds what the others are long done with, until nothing is left
of the budget. When new clips would be issued but for that, and the slowest consumer is behind the furthest by more than
a share (`limits.lag`) of the clips that are outstanding, then

- what only consumers in lanes still want is released on their behalf, but for the lowest of it, which a lane may keep;
- what is issued from then on is made for the others alone;
- the lane issues again what its consumer is owed, in the order of the plan, within a share of the budget that is
  kept for it: a laggard cannot take it from the others, nor they from it, so that neither ever waits for the other;
- a lane that has caught up with what is outstanding for others has that made again for them and its consumer; this one
  joins the others at the next stretch of the order, and the lane ends when it has come there.

What a consumer is owed need not be remembered: it is what was issued, is not outstanding for it, and not done by it. A
clip that was replaced is replaced by the same one again. Consumers take clips in the order of their indices, in a lane
or not, so their results do not depend on any of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from essp_common.pb.v1.messages_pb2 import LaneState, ReplacedClip
from essp_common.pb.v1.messages_pb2 import Position as PositionMessage
from essp_common.planning.plan import Plan, PlannedClip
from essp_common.planning.position import Position
from essp_master.ledger.accounts import Counts
from essp_master.ledger.catch_up import Lane
from essp_master.ledger.consumption import Consumption
from essp_master.ledger.instructions import Instruction, IssueUnit, ReleaseClip
from essp_master.ledger.order import IssueOrder, Place, Unit
from essp_master.ledger.outstanding import Entry, Outstanding
from essp_master.ledger.parts import ClipParts


class Stragglers:
    """The lanes of one job, and what is in none."""

    def __init__(
        self,
        parts: ClipParts,
        sizes: Sequence[int],
        plan_of: Callable[[int], Plan],
        consumption: Mapping[str, Consumption],
        outstanding: Outstanding,
        counts: Counts,
        order: IssueOrder,
        lane_order: Callable[[int, Position], IssueOrder],
        lag: float,
        share_bytes: int,
    ) -> None:
        """`order`: of what is issued for all. `lane_order`: of one consumer, from a position on.

        `share_bytes`: what a lane gets of the budget; 0: nobody is left behind.
        """
        self.slow = 0
        """The consumers that have a lane (bits)."""
        self._parts = parts
        self._plan_of = plan_of
        self._consumption = consumption
        self._outstanding = outstanding
        self._lanes = outstanding.lanes
        self._counts = counts
        self._order = order
        self._lane_order = lane_order
        self._lag = lag
        self._share_bytes = share_bytes
        self._before = [0, *accumulate(sizes)]
        """Clips of all phases before each."""
        self._replaced: dict[Place, int] = {}
        """The attempt that made a clip which some lane has yet to issue, where it was not the first."""

    # --- for the ledger ---

    def away(self, place: Place) -> int:
        """The consumers that do not get this clip together with the others."""
        return sum(lane.bit for lane in self._lanes.values() if lane.serves(place))

    def owing(self, place: Place) -> int:
        """The consumers that are to get this clip in a lane, and are not done with it."""
        if not self._lanes or not self._order.passed(place):
            return 0
        return sum(
            lane.bit
            for name, lane in self._lanes.items()
            if lane.serves(place) and self._consumption[name].owes(*place)
        )

    def make_room(self, out: list[Instruction]) -> bool:
        """Leave the slowest consumer behind if it lags too far; False: nobody does."""
        common = self._outstanding.in_common
        if not self._share_bytes or not common:
            return False
        reached = {name: self._reached(name) for name in self._consumption if self._joined(name)}
        slowest = min(reached, key=reached.__getitem__)
        furthest = max(consumption.total for consumption in self._consumption.values())
        if furthest - reached[slowest] <= self._lag * common:
            return False
        self._leave_behind(slowest, out)
        return True

    def settle(self, entry: Entry, out: list[Instruction]) -> None:
        """Decide on a clip that only consumers in lanes still want: one of them keeps it, or it is released."""
        if entry.lane is not None:
            if entry.lane.bit & entry.left:
                return
            self._outstanding.move(entry, None)
        if not self._may_release(entry):
            return
        for lane in self._lanes.values():
            fits = lane.bytes + sum(entry.sizes) <= lane.share_bytes
            if fits and lane.bit & entry.left and lane.order.passed(entry.place):
                self._outstanding.move(entry, lane)
                return
        self._release(entry, out)

    def issue(self, out: list[Instruction]) -> None:
        """Issue what the lanes have room for."""
        for lane in list(self._lanes.values()):
            if self._issue(lane, out):
                self._end(lane)

    def remember(self, place: Place, attempt: int) -> None:
        """A clip is closed that a lane is still to get."""
        if attempt:
            self._replaced[place] = attempt

    def forget(self, place: Place) -> None:
        """Nobody is to get this clip any more."""
        self._replaced.pop(place, None)

    # --- state out and in ---

    def state(self) -> tuple[list[LaneState], list[ReplacedClip]]:
        """All of it, as messages."""
        lanes = [
            LaneState(consumer=name, order=lane.order.state(), joins=_message(lane.joins) if lane.joins else None)
            for name, lane in self._lanes.items()
        ]
        return lanes, [ReplacedClip(position=_message(p), attempt=attempt) for p, attempt in self._replaced.items()]

    def restore(self, lanes: Sequence[LaneState], replaced: Sequence[ReplacedClip]) -> None:
        """Become what `state` told."""
        for state in lanes:
            lane = self._open(state.consumer, Position(state.order.phase_index, state.order.begin))
            lane.order.restore(state.order)
            lane.joins = (state.joins.phase_index, state.joins.index) if state.HasField("joins") else None
        self._replaced = {(r.position.phase_index, r.position.index): r.attempt for r in replaced}

    # --- how far they are ---

    def _joined(self, name: str) -> bool:
        lane = self._lanes.get(name)
        return lane is None or lane.joins is not None

    def _reached(self, name: str) -> int:
        """How many clips a consumer is done with, or is given in its lane before it joins the others."""
        done, lane = self._consumption[name].total, self._lanes.get(name)
        if lane is None or lane.joins is None:
            return done
        number, index = lane.joins
        return max(done, self._before[number] + index)

    # --- the life of a lane ---

    def _leave_behind(self, name: str, out: list[Instruction]) -> None:
        if name in self._lanes:
            self._end(self._lanes[name])
        lane = self._open(name, self._consumption[name].position())
        keeps = True
        for entry in self._outstanding.entries():
            if not entry.left & lane.bit or entry.left & self._parts.everyone & ~self.slow:
                continue
            keeps = keeps and lane.bytes + sum(entry.sizes) <= lane.share_bytes
            if keeps and entry.lane is None and not entry.again:
                self._outstanding.move(entry, lane)
            else:
                self.settle(entry, out)

    def _open(self, name: str, position: Position) -> Lane:
        bit = self._parts.bit[name]
        lane = self._lanes[name] = Lane(name, bit, self._lane_order(bit, position), self._share_bytes)
        self.slow |= bit
        return lane

    def _end(self, lane: Lane) -> None:
        """From here on its consumer gets everything together with the others."""
        del self._lanes[lane.consumer]
        self.slow &= ~lane.bit
        for place in list(lane.places):
            if (entry := self._outstanding.get(place)) is not None:
                self._outstanding.move(entry, None)

    def _go_back(self, lane: Lane, place: Place) -> None:
        """Have a lane issue this clip once more; what is done or outstanding by then, it steps over."""
        number, index = min(lane.order.begin, place)
        lane.order = self._lane_order(lane.bit, Position(number, index))

    # --- its clips ---

    def _issue(self, lane: Lane, out: list[Instruction]) -> bool:
        """Issue what a lane has room for. True: it has come to where its consumer joins the others."""
        while (unit := lane.order.peek()) is not None and lane.serves((unit[0], unit[1][0].index)):
            wanted = self._wanted(lane, unit)
            if wanted is None:
                return False
            clips, shared = wanted
            lacking = self._outstanding.lacking(unit[0], len(clips), lane.bit, lane) if clips else 0
            way = self._giving_way(lane, (unit[0], clips[0].index), lacking) if lacking else []
            if lacking and not way:
                return False
            lane.order.take()
            for entry in way:
                self._release(entry, out)
            for entry in shared:
                entry.again = False
                self._outstanding.issue_again(entry, (entry.left | lane.bit) & self._parts.everyone)
            self._outstanding.issue(unit[0], clips, lane.bit, lane)
            if clips:
                out.append(IssueUnit(unit[0], tuple(clips), (lane.consumer,)))
            self._counts.issued += len(clips)
            self._counts.redecoded += len(clips) + len(shared)
        return True

    def _wanted(self, lane: Lane, unit: Unit) -> tuple[list[PlannedClip], list[Entry]] | None:
        """What a lane issues of a unit, and what it has made again for its consumer and others. None: not yet."""
        number, clips, _ = unit
        consumption = self._consumption[lane.consumer]
        wanted, shared = [], []
        for clip in clips:
            place = (number, clip.index)
            entry = self._outstanding.get(place)
            if not self._order.passed(place):
                lane.joins = lane.joins or self._order.end
                return None
            if consumption.has(*place) or (entry is not None and entry.left & lane.bit):
                continue
            if entry is None:
                attempt = self._replaced.get(place, 0)
                wanted.append(self._plan_of(number).clip(clip.index, attempt) if attempt else clip)
                continue
            if entry.left & self._parts.everyone & ~self.slow:
                lane.joins = lane.joins or self._order.end
            if not self._idle(entry) or not self._may_share(lane, entry):
                return None
            shared.append(entry)
        return wanted, shared

    def _may_share(self, lane: Lane, entry: Entry) -> bool:
        """Whether the lane's share could hold all that its consumer would then have before it.

        What it shares is not in its share; but all of it at once would keep the decoders from anything new.
        """
        number, index = entry.place
        ahead = self._before[number] + index + 1 - self._consumption[lane.consumer].total
        return ahead * self._outstanding.bound(number, lane.bit) <= lane.share_bytes

    def _giving_way(self, lane: Lane, place: Place, lacking: int) -> list[Entry]:
        """The furthest clips of a lane beyond `place` that take up so many bytes; none if all that may go are too few.

        All or nothing, and for what is issued at once: a window of the order is no row of indices, so that what was
        released would otherwise be issued again first, and for ever.
        """
        furthest = lane.furthest()
        if furthest is None or furthest < place:
            return []
        found = []
        for beyond in sorted((other for other in lane.places if other > place), reverse=True):
            entry = self._outstanding.get(beyond)
            if entry is not None and self._may_release(entry):
                found.append(entry)
                lacking -= sum(entry.sizes)
                if lacking <= 0:
                    return found
        return []

    def _may_release(self, entry: Entry) -> bool:
        """Whether those who still want a clip get it in lanes, now or later."""
        if entry.again or not self._idle(entry) or entry.left & self._parts.everyone & ~self.slow:
            return False
        return all(lane.serves(entry.place) for lane in self._lanes.values() if lane.bit & entry.left)

    def _idle(self, entry: Entry) -> bool:
        """Nobody is about to store bytes of it: acks on behalf of its consumers free everything."""
        return entry.queued or entry.shed or self._outstanding.ready(entry)

    def _release(self, entry: Entry, out: list[Instruction]) -> None:
        if not entry.shed:
            names = self._parts.names(entry.left)
            out.append(ReleaseClip(entry.place[0], entry.clip, names))
        self.remember(entry.place, entry.clip.attempt)
        self._outstanding.close(entry)
        self._counts.released += 1
        for lane in self._lanes.values():
            if lane.bit & entry.left and lane.order.passed(entry.place):
                self._go_back(lane, entry.place)


def _message(place: Place) -> PositionMessage:
    return PositionMessage(phase_index=place[0], index=place[1])
