"""What holds for a ledger: at any moment, and when everything is done."""

from __future__ import annotations

from essp_common.job.position import Position
from essp_engine.seeding.clip_parts import CLIP
from essp_master.ledger.consumption import IndexSet
from essp_master.ledger.outstanding import outstanding_clips
from essp_master.ledger.states import REOPENED, WAITING
from tests.harness.ledger_simulation import LedgerSimulation


def every(sim: LedgerSimulation) -> list[Position]:
    """All clips of all phases."""
    return [Position(n, i) for n, plan in enumerate(sim.config.phases) for i in range(plan.clips)]


def check_at_rest(sim: LedgerSimulation) -> None:
    """Everything is accounted for, and nothing is left."""
    ledger = sim.ledger
    for name, consumer in sim.consumers.items():
        if consumer.absent:
            continue
        assert consumer.position.phase_index >= len(sim.config.phases) - 1
        wanted = [p for p in every(sim) if p >= consumer.since and not ledger.consumption[name].skips(*p)]
        stepped_over = sorted(p for p in consumer.stepped_over if not ledger.consumption[name].skips(*p))
        assert sorted([*consumer.trained, *stepped_over]) == wanted, f"{name} trains or steps over each clip, once"
        assert ledger.consumption[name].total == len(every(sim))
    assert ledger.outstanding == 0
    assert not any(ledger.backlog().values())
    assert ledger.credits.outstanding_bytes == 0
    assert [a.closed for a in ledger.phases] == [plan.clips for plan in sim.config.phases]


def check_consumers(sim: LedgerSimulation) -> None:
    """What holds for consumers at any moment: each trains each clip at most once, in order, from where it begins."""
    for name, consumer in sim.consumers.items():
        trained = consumer.trained
        assert trained == sorted(set(trained)), f"{name} trains each clip once, in order"
        assert not trained or trained[0] >= consumer.since, name


def check_lead(sim: LedgerSimulation) -> None:
    """No consumer is further ahead of the slowest one than it may be, or was where the ledger knows it to begin."""
    config = sim.config
    if not config.lead_clips or config.catch_up_bytes:
        return
    going = [each for each in sim.ledger.consumption.values() if each.stopped is None]
    if not going:
        return
    before = [sum(position < each.start for position in every(sim)) for each in going]
    done = [consumption.total for consumption in going]
    assert max(done) - min(done) <= max(config.lead_clips, max(before) - min(before))


def check_account(sim: LedgerSimulation) -> None:
    """What holds at any moment, according to the ledger's state."""
    check_lead(sim)
    ledger, state = sim.ledger, sim.ledger.state()
    credits = ledger.credits
    clips = outstanding_clips(state)
    assert sum(sum(clip.sizes) for clip in clips) == credits.outstanding_bytes <= credits.budget_bytes
    left = {Position.of(clip.position): clip.left for clip in clips}
    assert len(left) == len(clips)
    counted = {Position.of(clip.position) for clip in clips if clip.state not in REOPENED}
    issued = IndexSet.of(state.order.issued)
    stragglers = {queue.consumer for queue in state.catch_up_queues}
    parts = sim.config.parts
    awaited = [0] * len(parts.ackers)
    for each in clips:
        clip = sim.config.plan_of(each.position.phase_index).clip(each.position.index, each.attempt)
        for part, (name, size) in enumerate(zip(("clip", *parts.streams), each.sizes, strict=True)):
            assert not each.made >> part & 1 or size in (0, sim.actual(clip, name)), "no more is kept than is needed"
        if each.state not in WAITING:
            made = [bool(each.made >> part & 1) for part in range(len(awaited))]
            for part, readers in enumerate(parts.ackers):
                can_be_made = part == CLIP or (made[CLIP] and each.left & readers)
                awaited[part] += bool(can_be_made) and not made[part]
    assert list(ledger.backlog().values()) == awaited, "pools are sized by what they can make now"
    unfinished = [0] * len(ledger.phases)
    for position in every(sim):
        phase_index, index = position
        before = position < (state.order.phase_index, state.order.begin)
        if not before and not (phase_index == state.order.phase_index and index in issued):
            assert position not in left, "outstanding, and not issued"
            continue
        waiting = {name for name, c in ledger.consumption.items() if not c.has(*position)}
        served = set(sim.config.parts.names(left.get(position, 0)))
        assert waiting - served <= stragglers, "each consumer has it, gets it, or will get it from a catch-up queue"
        unfinished[phase_index] += bool(waiting) or position in counted
    assert [a.issued - a.closed for a in ledger.phases] == unfinished, "each clip is counted once"
    assert ledger.outstanding == len(clips)
    assert ledger.closed == sum(a.closed for a in ledger.phases)
    counts, first = ledger.counts, sum(a.issued for a in ledger.phases)
    assert counts.issued - counts.reissued - counts.redecoded <= first, "what is issued first, again, and to stragglers"
    assert counts.decoded <= counts.issued
    assert counts.failed >= counts.replaced + counts.skipped
    assert counts.unreported >= 0
    end = Position(len(ledger.phases), 0)
    for consumption in ledger.consumption.values():
        assert consumption.total == sum(consumption.has(*position) for position in every(sim))
        assert consumption.position() == next((at for at in every(sim) if not consumption.has(*at)), end)
