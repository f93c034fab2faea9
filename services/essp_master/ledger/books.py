"""The state that the parts of a ledger share: the books of one job.

    book           holds                                   written by
    config         the job                                 no part
    consumption    what each consumer is done with         `Batches`, `Ledger` (skipped), `Members`, `Trainers`
    phases         the outcome of the clips of a phase     `Issuer` (issued), `Closer` (closed), `Ledger` (skipped)
    counts         the counters                            every part
    outstanding    the clips outstanding, and the bytes    every part, by its methods
    order          what is issued to all consumers         `Issuer`

Other state is private to its part: `Stragglers` has the catch-up queues, `Closer` the total of closed clips.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Self

from essp_common.errors import ConfigError
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import LedgerState
from essp_common.quantities import percent
from essp_engine.seeding.clip_parts import ClipParts
from essp_master.ledger.config import LedgerConfig
from essp_master.ledger.consumption import Consumption, IndexSet
from essp_master.ledger.issue_order import IssueOrder
from essp_master.ledger.outstanding import Outstanding

_SAMPLE = 20
"""Attempts required before the share of failures is meaningful."""


@dataclass(slots=True)
class Counts:
    """The ledger's counters; see `status.CountStatus`."""

    issued: int = 0
    decoded: int = 0
    extracted: int = 0
    delivered: int = 0
    failed: int = 0
    replaced: int = 0
    skipped: int = 0
    lost: int = 0
    reissued: int = 0
    released: int = 0
    redecoded: int = 0
    duplicates: int = 0
    unreported: int = 0
    """Counted as made because a consumer has read it. The worker's report is still to come, and will not be a
    duplicate."""

    def values(self) -> dict[str, int]:
        """Return counter -> value. Much faster than `asdict`, which copies."""
        return {counter.name: getattr(self, counter.name) for counter in fields(self)}

    def failing(self, clips: int, dead_ratio: float) -> str:
        """Return why a job of this many clips cannot continue: too many attempts failed. Empty if it can.

        If no failure is allowed, the first one decides; otherwise the share needs a sample.
        """
        tried = self.failed + self.decoded
        if (dead_ratio and tried < min(_SAMPLE, clips)) or self.failed <= dead_ratio * tried:
            return ""
        return (
            f"{self.failed} of the first {tried} clips could not be made, more than limits.dead_ratio "
            f"({percent(dead_ratio, 0)}) allows"
        )


@dataclass(slots=True)
class PhaseAccount:
    """Counters of one phase's clips."""

    issued: int = 0
    closed: int = 0
    """Clips that every consumer is done with, or that were skipped."""
    skipped: IndexSet = field(default_factory=IndexSet)
    """Indices that were skipped for at least one consumer."""


@dataclass(frozen=True, slots=True)
class Books:
    """The books of one job."""

    config: LedgerConfig
    consumption: dict[str, Consumption]
    """By consumer."""
    phases: list[PhaseAccount]
    """By `phase_index`."""
    counts: Counts
    outstanding: Outstanding
    order: IssueOrder

    @property
    def parts(self) -> ClipParts:
        """The parts of each clip."""
        return self.config.parts

    @classmethod
    def opened(cls, config: LedgerConfig) -> Self:
        """Open the books of a job that has issued nothing yet."""
        sizes = [phase.clips for phase in config.phases]
        start = {name: config.start.get(name, Position(0, 0)) for name in config.parts.consumers}
        rest = config.rest
        consumption = {name: Consumption(sizes, begin, rest, name in config.loops) for name, begin in start.items()}
        present = [each for each in consumption.values() if not each.absent]
        done = [min((each.done(phase_index) for each in present), default=0) for phase_index in range(len(sizes))]
        return cls._of(config, consumption, [PhaseAccount(issued=clips, closed=clips) for clips in done], Counts())

    @classmethod
    def restored(cls, config: LedgerConfig, state: LedgerState) -> Self:
        """Restore the books from `state`, except for the outstanding clips, which need the catch-up queues first.

        Raises `ConfigError` for the state of another job.
        """
        consumers = tuple(consumer.consumer for consumer in state.consumers)
        held = consumers, tuple(state.streams), len(state.phases)
        if held != (config.parts.consumers, config.parts.streams, len(config.phases)):
            raise ConfigError(
                f"the ledger's state is of another job, with the consumers {', '.join(consumers)}", code="conflict"
            )
        sizes = [phase.clips for phase in config.phases]
        consumption = {each.consumer: Consumption.restored(sizes, config.rest, each) for each in state.consumers}
        phases = [PhaseAccount(phase.issued, phase.closed, IndexSet.of(phase.skipped)) for phase in state.phases]
        counts = Counts(**{field.name: state.counts.get(field.name, 0) for field in fields(Counts)})
        books = cls._of(config, consumption, phases, counts)
        books.order.restore(state.order)
        return books

    @classmethod
    def _of(
        cls,
        config: LedgerConfig,
        consumption: dict[str, Consumption],
        phases: list[PhaseAccount],
        counts: Counts,
    ) -> Self:
        parts = config.parts
        start = {parts.bit[name]: each.next_start for name, each in consumption.items() if not each.absent}
        order = IssueOrder(config, start)
        outstanding = Outstanding(parts, config.bounds, config.budget_bytes)
        return cls(config, consumption, phases, counts, outstanding, order)
