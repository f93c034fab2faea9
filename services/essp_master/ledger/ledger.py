"""The ledger: the account of every clip of one job, as a pure state machine.

Events go in, instructions come out, without I/O, clocks or randomness. Duplicated, reordered and late events change
nothing, with one exception: a consumer's messages from before a restart must arrive before those from after it
(`essp.progress` has one partition).

    planned ──issue──▶ outstanding ──every consumer is done──▶ closed
                         │   ▲
                         │   └── lost, stalled, replaced: issued again, in place
                         └──▶ skipped: undecodable, and no video may replace it

`states.py` has the states of an outstanding clip and their transition table. `issue_order.py` has the order of issue:
phase after phase, without a barrier between them, as far as the budget (`outstanding.py`) and the slowest consumer
(`issuing.py`) allow.

A consumer that restarts from a checkpoint asks (`lost`) for clips that it had reported as trained. The ledger opens
them again for this consumer alone, and does not count them twice. A trainer that is further than the ledger knows
reports that when it resumes, and with its next checkpoint (`consumers.py`).

In training, another video replaces one that cannot be decoded. In evaluation, and when replacements run out, the index
is skipped for all consumers. A stream that cannot be extracted is skipped for its own consumers only: the others may
have trained the clip already, and what they see must not depend on timing.

The work for each event is O(1) amortised, except where clips are preempted or the job has stalled.
"""

from __future__ import annotations

from collections.abc import Sequence

from essp_common.failures import stage_word
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import (
    DECODER,
    EXTRACTOR,
    LOST,
    ClipRef,
    Failed,
    LedgerState,
    Loop,
    Made,
    PhaseState,
    Progress,
    Trained,
)
from essp_common.runtime import ids
from essp_engine.planning.planned_clip import PlannedClip
from essp_engine.seeding.clip_parts import CLIP
from essp_engine.seeding.instructions import CompleteJob, FailJob, Instruction, PublishSkip
from essp_master.ledger.batches import Batches, PhaseEvent
from essp_master.ledger.books import Books
from essp_master.ledger.closing import Closer, Departures
from essp_master.ledger.config import LedgerConfig
from essp_master.ledger.consumers import Members, Trainers
from essp_master.ledger.issuing import Issuer, Lead
from essp_master.ledger.lost_bytes import Losses, consumer_of
from essp_master.ledger.outstanding import Credits, Entry, outstanding_clips
from essp_master.ledger.stragglers import Stragglers

_MOST_LOSSES = 10
"""If a clip's bytes vanish more often than this, it is not bad luck: something removes them."""


class Ledger:
    """The ledger of one job. Not thread-safe."""

    def __init__(self, config: LedgerConfig, state: LedgerState | None = None) -> None:
        """`state`: from an earlier ledger of this job, which this one continues; see `state`.

        Raises `ConfigError` for the state of another job, and `ValueError` or `LookupError` for an inconsistent one.
        """
        books = Books.opened(config) if state is None else Books.restored(config, state)
        self.counts = books.counts
        self.consumption = books.consumption
        self.phases = books.phases
        self.finals = set(config.finals)
        self.paused = False
        self.finishes = False
        """Paused, but outstanding clips are rebuilt if they are lost."""
        self.ended = False
        self.phase_events: list[PhaseEvent] = []
        """What the last message changed. Duplicates and late messages change nothing."""
        self._books = books
        self._config = config
        self._parts = config.parts
        self._phase_index = {(phase.purpose, phase.epoch): index for index, phase in enumerate(config.phases)}
        self._clips = sum(phase.clips for phase in config.phases)
        self._outstanding = books.outstanding
        self._stragglers = Stragglers(books)
        self._closer = Closer(books, self._stragglers)
        self._departures = Departures(books, self._closer)
        self._members = Members(books, self._stragglers, self._closer, self._departures)
        self._trainers = Trainers(books, self._stragglers, self._closer, self._departures)
        self._batches = Batches(books, self._stragglers, self._closer, self._departures)
        self._losses = Losses(books)
        self._lead = Lead(books)
        self._issuer = Issuer(books, self._stragglers, self._lead, self._closer)
        self._inherited: set[Position] = set()
        """The clips that were outstanding in `state`."""
        if state is not None:
            self._restore(state)

    # --- called by the shell ---

    def start(self) -> list[Instruction]:
        """Begin to issue."""
        return self.issue()

    def issue(self) -> list[Instruction]:
        """Issue what can be issued now. Call this after `account`, once for all messages that arrived together."""
        out: list[Instruction] = []
        if not self.paused and not self.ended:
            self._issuer.issue(out)
        elif self.finishes and not self.ended:
            self._issuer.issue_again(out)
        over = self._config.last_stage is None and self.closed == self._clips and self._books.order.wanted
        if over and not self.ended:
            out.append(CompleteJob("", {}))
            self.ended = True
        return out

    def account(self, progress: Progress) -> list[Instruction]:
        """Account for one message from `essp.progress`, without issuing anything yet."""
        out: list[Instruction] = []
        self.phase_events = []
        if self.ended:
            return out
        match progress.WhichOneof("event"):
            case "trained" if self._members.is_outdated(progress.trained.consumer, progress.worker):
                self.counts.duplicates += 0 if progress.trained.again else len(progress.trained.indices)
            case "trained":
                self._trained(progress.trained, out)
            case "made":
                self._made(progress.made, out)
            case "failed":
                self._failed(progress.failed, out)
            case "loop":
                self._members.account(progress.loop, out)
            case "stopped":
                self._trainers.stopped(progress.stopped, self.phase_events, out)
            case "checkpoint":
                if progress.checkpoint.final:
                    self.finals.add(progress.checkpoint.trainer)
                self._trainers.saved(progress.checkpoint, self.phase_events, out)
            case "finished" if progress.finished.stage == self._config.last_stage:
                out.append(CompleteJob(progress.finished.uri, dict(progress.finished.metrics)))
                self.ended = True
        return out

    def pause(self, finishes: bool = False) -> None:
        """Issue nothing until `resume`; work on outstanding clips continues. `finishes`: lost clips are rebuilt, so
        that consumers can finish the batches that they have begun."""
        self.paused, self.finishes = True, finishes

    def resume(self) -> list[Instruction]:
        """Issue again."""
        self.paused = self.finishes = False
        return self.issue()

    def stalled(self) -> list[Instruction]:
        """No message came for a long time: issue again what no worker has made.

        A seed's message or a worker's report may be lost. Making a clip twice is harmless. If a clip was made and only
        its message was lost, its consumers ask for it.
        """
        return self._issue_again(self._outstanding.unmade())

    def issue_inherited(self) -> list[Instruction]:
        """Issue again, once, what an earlier ledger had issued and no worker has made."""
        inherited, self._inherited = self._inherited, set()
        return self._issue_again([entry for entry in self._outstanding.unmade() if entry.position in inherited])

    def _issue_again(self, unmade: Sequence[Entry]) -> list[Instruction]:
        if self.ended or (self.paused and not self.finishes):
            return []
        out: list[Instruction] = []
        for entry in unmade:
            if wanting := self._departures.wanting(entry):
                self._outstanding.request(entry, wanting)
            else:
                self._departures.drop(entry, out)
        return [*out, *self.issue()]

    # --- state ---

    def state(self) -> LedgerState:
        """Return everything that a ledger of the same configuration needs to answer every later event as this one
        would.

        The shell must remember whether the job is paused or has ended. If its process died with instructions that it
        had not carried out, `issue_inherited` returns them again.
        """
        queues, replaced = self._stragglers.state()
        entries, plain = self._outstanding.state()
        return LedgerState(
            consumers=[consumption.state(name) for name, consumption in self.consumption.items()],
            streams=self._parts.streams,
            phases=[PhaseState(issued=a.issued, closed=a.closed, skipped=a.skipped.message()) for a in self.phases],
            outstanding=entries,
            plain=plain,
            order=self._books.order.state(),
            counts=self.counts.values(),
            finals=sorted(self.finals),
            catch_up_queues=queues,
            replaced=replaced,
        )

    def _restore(self, state: LedgerState) -> None:
        self.finals |= set(state.finals)
        # The queues come first: restoring an outstanding clip assigns it to the catch-up queue that issued it.
        self._stragglers.restore(state.catch_up_queues, state.replaced)
        for clip in outstanding_clips(state):
            plan = self._config.plan_of(clip.position.phase_index)
            self._outstanding.restore(clip, plan.clip(clip.position.index, clip.attempt))
            self._inherited.add(Position.of(clip.position))
        self._closer.check()

    # --- for reading ---

    @property
    def credits(self) -> Credits:
        """The outstanding bytes and their budget."""
        return self._outstanding.credits

    @property
    def closed(self) -> int:
        """Clips of all phases that every consumer is done with, or that were skipped."""
        return self._closer.total

    @property
    def outstanding(self) -> int:
        """Number of outstanding clips."""
        return len(self._outstanding)

    def backlog(self) -> dict[str, int]:
        """Return `decoder` or stream -> clips that wait to be made or are being made."""
        return dict(zip(("decoder", *self._parts.streams), self._outstanding.backlog(), strict=True))

    def waiting(self) -> int:
        """Return how many clips are made and not taken yet, over all consumers."""
        left, made_later = 0, self.backlog()
        for name in self.consumption:
            part = self._parts.part[name]
            stream = () if part == CLIP else (self._parts.streams[part - 1],)
            left += max(0, self.untrained(name) - sum(made_later[maker] for maker in (ids.DECODER, *stream)))
        return left

    def loops(self) -> list[Loop]:
        """Return the loops that take part, with their starting positions."""
        return self._members.present()

    def has_stopped(self, trainer: str) -> bool:
        """Whether this trainer has stopped early."""
        consumption = self.consumption.get(ids.trainer_consumer(trainer))
        return consumption is not None and consumption.stopped is not None

    @property
    def holds_back(self) -> bool:
        """Whether more would be issued if the slowest consumer were not as far behind as it may be."""
        return not self.paused and not self.ended and self._lead.holds_back()

    def untrained(self, consumer: str) -> int:
        """Return the number of clips that were issued in their turn and that this consumer is not done with."""
        return max(0, sum(phase.issued for phase in self.phases) - self.consumption[consumer].total)

    @property
    def out_of_credit(self) -> bool:
        """Whether progress of the consumers would allow more to be issued: credit is used up, or they are held back."""
        return not self.paused and not self.ended and self._books.order.peek() is not None

    # --- events ---

    def _made(self, event: Made, out: list[Instruction]) -> None:
        phase_index = self._phase_index.get((event.purpose, event.epoch))
        if phase_index is not None:
            self._batches.made(phase_index, event, self.phase_events, out)

    def _trained(self, event: Trained, out: list[Instruction]) -> None:
        phase_index = self._phase_index.get((event.purpose, event.epoch))
        if phase_index is not None and event.consumer in self._parts.bit:
            self._batches.trained(phase_index, event, self.phase_events, out)

    def _failed(self, event: Failed, out: list[Instruction]) -> None:
        if event.kind == LOST:
            self._lost(event, out)
        elif event.stage in (DECODER, EXTRACTOR):
            self._undoable(event, out)
        else:
            self._fail(f"{stage_word(event.stage)}: {event.reason}", out)

    def _undoable(self, event: Failed, out: list[Instruction]) -> None:
        """A clip or one of its streams cannot be made."""
        part = self._parts.part_of_stream.get(event.stream, CLIP) if event.stage == EXTRACTOR else CLIP
        entry = self._current(event.clip)
        if entry is None or entry.made >> part & 1 or not entry.left & self._parts.ackers[part]:
            self.counts.duplicates += 1
            return
        self.counts.failed += 1
        if part != CLIP:
            self._skip(entry, self._parts.ackers[part] & self._parts.everyone, event.reason, out)
        elif not self._departures.wanting(entry):
            self._departures.drop(entry, out)
        elif (other := self._replacement(entry)) is not None:
            self.counts.replaced += 1
            entry.clip = other
            self._outstanding.request(entry, self._departures.wanting(entry))
        else:
            self._skip(entry, self._parts.everyone, event.reason, out)
        if failing := self.counts.failing(self._clips, self._config.dead_ratio):
            self._fail(f"{failing}; the last was {event.clip.video_id}: {event.reason}", out)

    def _lost(self, event: Failed, out: list[Instruction]) -> None:
        """Bytes are gone, or never arrived: make them again, unless that is under way or no consumer needs them any
        more."""
        phase_index = self._phase_index.get((event.clip.purpose, event.clip.epoch))
        if phase_index is None:
            return
        # First let a trainer fall back: only then does the ledger know that it wants this clip again.
        name = consumer_of(event)
        self._trainers.asked(name, Position(phase_index, event.clip.index))
        entry = self._losses.lost(phase_index, event)
        if entry is None:
            self.counts.duplicates += not event.awaited
            return
        if not event.awaited:
            self.counts.lost += 1
            entry.losses += 1
        if entry.losses > _MOST_LOSSES:
            what = f"the bytes of clip {event.clip.index} of {event.clip.video_id} were lost {entry.losses} times"
            self._fail(
                f"{what}; the cache must not evict (Redis: maxmemory-policy noeviction), and limits.ttl_s must be "
                f"longer than clips wait for their consumers; the last reason: {event.reason}",
                out,
            )
        bit = self._parts.bit[name] if name in self.consumption and self.consumption[name].wants(*entry.position) else 0
        wanting = self._departures.wanting(entry) | bit
        if not wanting:
            self._departures.drop(entry, out)
            # A clip of a catch-up queue that another consumer needs too belongs to no queue any more.
            return
        if entry.catch_up is not None and bit & ~entry.catch_up.bit:
            self._outstanding.move(entry, None)
        self._outstanding.request(entry, wanting)

    def _current(self, clip: ClipRef) -> Entry | None:
        """Return the clip that a report is about, if its seed is out and the attempt is the current one."""
        phase_index = self._phase_index.get((clip.purpose, clip.epoch))
        entry = self._outstanding.get((phase_index, clip.index)) if phase_index is not None else None
        return entry if entry is not None and entry.expects(clip.attempt) else None

    def _skip(self, entry: Entry, consumers: int, reason: str, out: list[Instruction]) -> None:
        """Make consumers step over a clip, including those whose catch-up queue owes it to them."""
        phase_index, index = entry.position
        self.counts.skipped += 1
        self.phases[phase_index].skipped.add(index)
        # Before the consumers count as done: afterwards none of them would be owed the clip.
        owed = self._stragglers.owed(entry.position) & consumers
        if owed:
            self._outstanding.owe(entry)
        names = self._parts.names(entry.left & consumers | owed)
        parts = {self._parts.part[name] for name in names}
        streams = tuple(s for s, part in self._parts.part_of_stream.items() if part in parts)
        out.append(PublishSkip(phase_index, entry.clip, streams, reason))
        for name in names:
            self.consumption[name].add(phase_index, index)
            self._outstanding.acked(entry, self._parts.bit[name], self._parts.part[name])
        # A stream that is skipped is not extracted, so its extractor is done with the clip as well.
        for part in parts - {CLIP}:
            self._outstanding.acked(entry, self._parts.extractor[part - 1], CLIP)
        self._closer.acked(entry, out)

    def _replacement(self, entry: Entry) -> PlannedClip | None:
        """Return the clip of another video for this index, or None if no replacement is possible."""
        phase_index, index = entry.position
        attempt = entry.clip.attempt + 1
        if not self._config.replaceable[phase_index] or attempt > self._config.replacements:
            return None
        try:
            return self._config.plan_of(phase_index).clip(index, attempt)
        except LookupError:
            return None

    def _fail(self, reason: str, out: list[Instruction]) -> None:
        if not self.ended:
            out.append(FailJob(reason))
        self.ended = True
