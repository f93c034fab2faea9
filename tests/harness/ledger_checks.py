"""What holds for a ledger: at any moment, and when everything is done."""

from __future__ import annotations

from essp_common.planning.position import Position
from essp_master.ledger.indices import IndexSet
from essp_master.ledger.states import REOPENED
from tests.harness.ledger_world import World


def every(world: World) -> list[Position]:
    """All clips of all phases."""
    return [Position(n, i) for n, plan in enumerate(world.config.phases) for i in range(plan.clips)]


def check_at_rest(world: World) -> None:
    """Everything is accounted for, and nothing is left."""
    ledger = world.ledger
    for name, consumer in world.consumers.items():
        assert consumer.position.phase_index >= len(world.config.phases) - 1
        start = world.config.start.get(name, Position(0, 0))
        wanted = [p for p in every(world) if p >= start]
        skipped = {Position(n, i) for n, account in enumerate(ledger.phases) for i in account.skipped}
        assert sorted(set(consumer.trained) | skipped & set(wanted)) == wanted, name
        assert len(set(consumer.trained)) == len(consumer.trained), "trained once"
        assert consumer.trained == sorted(consumer.trained), "in order"
        assert ledger.consumption[name].total == len(every(world))
    assert ledger.outstanding == 0
    assert ledger.credits.outstanding_bytes == 0
    assert [a.closed for a in ledger.phases] == [plan.clips for plan in world.config.phases]


def check_account(world: World) -> None:
    """What holds at any moment, according to the ledger's state."""
    ledger, state = world.ledger, world.ledger.state()
    credits = ledger.credits
    assert sum(sum(o.sizes) for o in state.outstanding) == credits.outstanding_bytes <= credits.budget_bytes
    left = {Position.of(o.position): o.left for o in state.outstanding}
    assert len(left) == len(state.outstanding)
    counted = {Position.of(o.position) for o in state.outstanding if o.state not in REOPENED}
    issued = IndexSet.of(state.order.issued)
    stragglers = {queue.consumer for queue in state.catch_up_queues}
    unfinished = [0] * len(ledger.phases)
    for position in every(world):
        phase_index, index = position
        before = position < (state.order.phase_index, state.order.begin)
        if not before and not (phase_index == state.order.phase_index and index in issued):
            assert position not in left, "outstanding, and not issued"
            continue
        waiting = {name for name, c in ledger.consumption.items() if not c.has(*position)}
        served = set(world.config.parts.names(left.get(position, 0)))
        assert waiting - served <= stragglers, "each consumer has it, gets it, or will get it from a catch-up queue"
        unfinished[phase_index] += bool(waiting) or position in counted
    assert [a.issued - a.closed for a in ledger.phases] == unfinished, "each clip is counted once"
