"""The ledger: the account of every clip of one job, as a pure state machine.

Events in, instructions out: no I/O, no clock, no chance. Duplicated, reordered and late events change nothing; only
what a consumer said before a restart may not come after what it says since (`essp.progress` is one partition).

    planned ──issue──▶ outstanding ──every consumer is done──▶ done
                         │   ▲
                         │   └── lost, stalled, replaced: issued again, in place
                         └──▶ skipped: undecodable, and nothing may take its place

Clips are issued in the order of the phases (`order.py`), as far as the budget goes (`outstanding.py`), and without a
barrier between passes.

A consumer that restarts from a checkpoint asks (`lost`) for clips that it had reported as trained. Those come back
as outstanding for this consumer alone; they are not counted twice.

A video that cannot be decoded is replaced in training; in evaluation, and when replacements run out, its index is
skipped for all. A stream that cannot be extracted is skipped for its own consumers only, since the others may have
trained the clip already, and what they see must not depend on timing.

Work per event is O(1) amortised, except where clips have to give way or the job has stalled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields

from essp_common.errors import ConfigError
from essp_common.failures import stage_word
from essp_common.pb.v1.messages_pb2 import (
    DECODER,
    EXTRACTOR,
    LOST,
    ClipRef,
    Failed,
    LedgerState,
    Made,
    PhaseState,
    Progress,
    Trained,
)
from essp_common.planning.plan import PlannedClip
from essp_common.planning.position import Position
from essp_master.ledger.accounts import Counts, PhaseAccount
from essp_master.ledger.batches import Batches, News
from essp_master.ledger.config import LedgerConfig
from essp_master.ledger.consumption import Consumption
from essp_master.ledger.credits import Credits
from essp_master.ledger.endings import Endings
from essp_master.ledger.indices import IndexSet
from essp_master.ledger.instructions import CompleteJob, FailJob, Instruction, PublishSkip
from essp_master.ledger.issuing import Issuer
from essp_master.ledger.losses import Losses, missing_consumer
from essp_master.ledger.order import IssueOrder
from essp_master.ledger.outstanding import Entry, Outstanding
from essp_master.ledger.parts import CLIP
from essp_master.ledger.stragglers import Stragglers

_LOSSES = 10
"""A clip whose bytes vanish this often has no bad luck: something removes them."""


class Ledger:
    """The account of one job. Not thread-safe."""

    def __init__(self, terms: LedgerConfig, state: LedgerState | None = None) -> None:
        """`state`: of an earlier ledger of this job, which this one continues; see `state`.

        Raises `ConfigError` for the state of another job.
        """
        sizes = [plan.clips for plan in terms.phases]
        start = {name: terms.start.get(name, Position(0, 0)) for name in terms.parts.consumers}
        self.counts = Counts()
        self.consumption = {name: Consumption(sizes, position) for name, position in start.items()}
        self.phases = [PhaseAccount() for _ in sizes]
        for number, account in enumerate(self.phases):
            account.issued = account.closed = min(c.done(number) for c in self.consumption.values())
        self.finals = set(terms.finals)
        self.ended = False
        self.news: list[News] = []
        """What the last message told that was not known; duplicates and late messages are no news."""
        self._terms = terms
        self._parts = terms.parts
        self._number = {(plan.purpose, plan.epoch): number for number, plan in enumerate(terms.phases)}
        self._outstanding = Outstanding(terms.parts, terms.bounds, terms.budget_bytes)
        self.paused = False
        self._clips = sum(sizes)
        if state is not None:
            self._restore(state)
        starts = {terms.parts.bit[name]: consumption.start for name, consumption in self.consumption.items()}
        self._order = self._order_of(starts)
        self._lag = Stragglers(
            terms.parts,
            sizes,
            terms.plan_of,
            self.consumption,
            self._outstanding,
            self.counts,
            self._order,
            lambda bit, position: self._order_of({bit: position}),
            terms.lag,
            terms.lane_bytes,
        )
        self._endings = Endings(terms.parts, terms.phases, self._outstanding, self.consumption, self._lag, self.phases)
        self._batches = Batches(terms.parts, self._outstanding, self.consumption, self._lag, self.counts, self._endings)
        self._losses = Losses(terms.parts, self._outstanding, self.consumption, terms.plan_of)
        self._issuer = Issuer(terms.parts, self._outstanding, self._order, self._lag, self.counts, self.phases)
        if state is not None:
            self._order.restore(state.order)
            self._lag.restore(state.lanes, state.replaced)
            self._restore_outstanding(state)

    # --- what the shell calls ---

    def start(self) -> list[Instruction]:
        """Begin to issue."""
        return self._settled([])

    def handle(self, progress: Progress) -> list[Instruction]:
        """Account for one message of `essp.progress`, and issue what can be issued then."""
        return self._settled(self.account(progress))

    def issue(self) -> list[Instruction]:
        """Issue what can be issued now: to be called after `account`, once for as many messages as there are."""
        return self._settled([])

    def account(self, progress: Progress) -> list[Instruction]:
        """Account for one message of `essp.progress`, and issue nothing yet."""
        out: list[Instruction] = []
        self.news = []
        if self.ended:
            return out
        match progress.WhichOneof("event"):
            case "trained":
                self._trained(progress.trained, out)
            case "made":
                self._made(progress.made, out)
            case "failed":
                self._failed(progress.failed, out)
            case "checkpoint" if progress.checkpoint.final:
                self.finals.add(progress.checkpoint.trainer)
            case "finished" if progress.finished.stage == self._terms.last_stage:
                out.append(CompleteJob(progress.finished.uri, dict(progress.finished.metrics)))
                self.ended = True
        return out

    def pause(self) -> None:
        """Issue nothing until `resume`; what is outstanding goes on."""
        self.paused = True

    def resume(self) -> list[Instruction]:
        """Issue again."""
        self.paused = False
        return self._settled([])

    def stalled(self) -> list[Instruction]:
        """Nothing was heard for long: issue again what nobody has made, or else what each consumer waits for.

        A seed's message may be gone, or the message about its clip, or who was to make it. Twice is harmless.
        """
        if self.ended or self.paused:
            return []
        for entry in self._outstanding.unmade() or self._outstanding.lowest():
            self._outstanding.issue_again(entry, entry.left & self._parts.everyone)
        return self._settled([])

    # --- state out and in ---

    def state(self) -> LedgerState:
        """All that a ledger of the same terms needs to go on as this one would: every event that comes after gives the
        same instructions.

        Whether the job is paused or has ended is the shell's to remember. A shell that lost instructions together with
        its process gets them again from `stalled`.
        """
        lanes, replaced = self._lag.state()
        return LedgerState(
            consumers=[consumption.state(name) for name, consumption in self.consumption.items()],
            streams=self._parts.streams,
            phases=[PhaseState(issued=a.issued, closed=a.closed, skipped=a.skipped.message()) for a in self.phases],
            outstanding=self._outstanding.state(),
            order=self._order.state(),
            counts=asdict(self.counts),
            finals=sorted(self.finals),
            lanes=lanes,
            replaced=replaced,
        )

    def _restore(self, state: LedgerState) -> None:
        consumers = tuple(consumer.consumer for consumer in state.consumers)
        if (consumers, tuple(state.streams)) != (self._parts.consumers, self._parts.streams) or len(
            state.phases
        ) != len(self.phases):
            raise ConfigError(f"the ledger's state is of another job, with the consumers {', '.join(consumers)}")
        for consumer in state.consumers:
            self.consumption[consumer.consumer].restore(consumer)
        self.phases = [PhaseAccount(p.issued, p.closed, IndexSet.of(p.skipped)) for p in state.phases]
        self.counts = Counts(**{f.name: state.counts.get(f.name, 0) for f in fields(Counts)})
        self.finals |= set(state.finals)

    def _restore_outstanding(self, state: LedgerState) -> None:
        for entry in state.outstanding:
            clip = self._terms.plan_of(entry.position.phase_index).clip(entry.position.index, entry.attempt)
            self._outstanding.restore(entry, clip)

    def _order_of(self, starts: Mapping[int, Position]) -> IssueOrder:
        sizes = [plan.clips for plan in self._terms.phases]
        return IssueOrder(sizes, self._terms.plan_of, starts, self._terms.unit_clips, self._terms.locality)

    # --- for reading ---

    @property
    def credits(self) -> Credits:
        """The bytes outstanding, and their budget."""
        return self._outstanding.credits

    @property
    def closed(self) -> int:
        """Clips of all phases that every consumer is done with, or that were skipped."""
        return self._endings.total

    @property
    def outstanding(self) -> int:
        """Clips that are outstanding."""
        return len(self._outstanding)

    def backlog(self) -> dict[str, int]:
        """`decoder` or stream -> clips that wait to be made, or are being made."""
        return dict(zip(("decoder", *self._parts.streams), self._outstanding.backlog(), strict=True))

    @property
    def out_of_credit(self) -> bool:
        """More would be issued if there were credit for it."""
        return not self.paused and not self.ended and self._order.peek() is not None

    # --- events ---

    def _made(self, event: Made, out: list[Instruction]) -> None:
        number = self._number.get((event.purpose, event.epoch))
        if number is not None:
            self._batches.made(number, event, self.news, out)

    def _trained(self, event: Trained, out: list[Instruction]) -> None:
        number = self._number.get((event.purpose, event.epoch))
        if number is not None and event.consumer in self._parts.bit:
            self._batches.trained(number, event, self.news, out)

    def _failed(self, event: Failed, out: list[Instruction]) -> None:
        if event.kind == LOST:
            self._lost(event, out)
        elif event.stage in (DECODER, EXTRACTOR):
            self._undoable(event, out)
        else:
            self._fail(f"{stage_word(event.stage)}: {event.reason}", out)

    def _undoable(self, event: Failed, out: list[Instruction]) -> None:
        """A clip or a stream of it cannot be made."""
        part = self._parts.part_of_stream.get(event.stream, CLIP) if event.stage == EXTRACTOR else CLIP
        entry = self._current(event.clip)
        if entry is None or entry.made >> part & 1 or not entry.left & self._parts.ackers[part]:
            self.counts.duplicates += 1
            return
        self.counts.failed += 1
        if part != CLIP:
            self._skip(entry, self._parts.ackers[part] & self._parts.everyone, event.reason, out)
        elif (other := self._replacement(entry)) is not None:
            self.counts.replaced += 1
            entry.clip = other
            self._outstanding.issue_again(entry, entry.left & self._parts.everyone)
        else:
            self._skip(entry, self._parts.everyone, event.reason, out)
        if failing := self.counts.failing(self._clips, self._terms.dead_ratio):
            self._fail(f"{failing}; the last was {event.clip.video_id}: {event.reason}", out)

    def _lost(self, event: Failed, out: list[Instruction]) -> None:
        """Bytes are gone: make them again, unless that is under way or nobody needs them any more."""
        number = self._number.get((event.clip.purpose, event.clip.epoch))
        if number is None:
            return
        consumer = missing_consumer(event)
        entry = self._losses.missed(number, event)
        if entry is None:
            self.counts.duplicates += 1
            return
        self.counts.lost += 1
        entry.losses += 1
        if entry.losses > _LOSSES:
            what = f"the bytes of clip {event.clip.index} of {event.clip.video_id} were lost {entry.losses} times"
            self._fail(
                f"{what}; the cache must not evict (Redis: maxmemory-policy noeviction), and limits.ttl_s has to be "
                f"longer than clips wait for their consumers; the last reason: {event.reason}",
                out,
            )
        bit = self._parts.bit.get(consumer, 0)
        if entry.lane is not None and bit & ~entry.lane.bit:
            self._outstanding.move(entry, None)
        wanted = entry.left | bit
        self._outstanding.issue_again(entry, wanted & self._parts.everyone)

    # --- the end of a clip ---

    def _current(self, clip: ClipRef) -> Entry | None:
        """The clip that a message is about, if it is being made, and this is its present attempt."""
        number = self._number.get((clip.purpose, clip.epoch))
        entry = self._outstanding.get((number, clip.index)) if number is not None else None
        return entry if entry is not None and entry.expects(clip.attempt) else None

    def _skip(self, entry: Entry, consumers: int, reason: str, out: list[Instruction]) -> None:
        number, index = entry.place
        self.counts.skipped += 1
        self.phases[number].skipped.add(index)
        names = self._parts.names((entry.left | self._lag.owing(entry.place)) & consumers)
        parts = {self._parts.part[name] for name in names}
        streams = tuple(s for s, part in self._parts.part_of_stream.items() if part in parts)
        out.append(PublishSkip(number, entry.clip, streams, reason))
        for name in names:
            self.consumption[name].add(number, index)
            self._outstanding.acked(entry, self._parts.bit[name], self._parts.part[name])
        for part in parts - {CLIP}:
            self._outstanding.acked(entry, self._parts.extractor[part - 1], CLIP)
        self._endings.acked(entry, out)

    def _replacement(self, entry: Entry) -> PlannedClip | None:
        number, index = entry.place
        attempt = entry.clip.attempt + 1
        if not self._terms.replaceable[number] or attempt > self._terms.replacements:
            return None
        try:
            return self._terms.plan_of(number).clip(index, attempt)
        except LookupError:
            return None

    def _fail(self, reason: str, out: list[Instruction]) -> None:
        if not self.ended:
            out.append(FailJob(reason))
        self.ended = True

    # --- issuing ---

    def _settled(self, out: list[Instruction]) -> list[Instruction]:
        """`out`, and what can be issued now."""
        if self.paused or self.ended:
            return out
        self._issuer.issue(out)
        return out
