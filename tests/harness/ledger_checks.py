"""What holds of a ledger: at any moment, and when everything is done."""

from __future__ import annotations

from essp_common.planning.position import Position
from essp_master.ledger.indices import IndexSet
from tests.harness.ledger_world import World


def every(world: World) -> list[tuple[int, int]]:
    return [(n, i) for n, plan in enumerate(world.terms.phases) for i in range(plan.clips)]


def check_at_rest(world: World) -> None:
    """Everything is accounted for, and nothing is left."""
    ledger = world.ledger
    for name, consumer in world.consumers.items():
        start = (consumer.position.phase_index, 0)
        assert start[0] >= len(world.terms.phases) - 1
        begun = world.terms.start.get(name, Position(0, 0))
        wanted = [p for p in every(world) if p >= begun]
        skipped = {(n, i) for n, account in enumerate(ledger.phases) for i in account.skipped}
        assert sorted(set(consumer.trained) | skipped & set(wanted)) == wanted, name
        assert len(set(consumer.trained)) == len(consumer.trained), "trained once"
        assert consumer.trained == sorted(consumer.trained), "in order"
        assert ledger.consumption[name].total == len(every(world))
    assert ledger.outstanding == 0
    assert ledger.credits.outstanding_bytes == 0
    assert [a.closed for a in ledger.phases] == [plan.clips for plan in world.terms.phases]


def check_account(world: World) -> None:
    """What holds at any moment, read off the ledger's state."""
    ledger, state = world.ledger, world.ledger.state()
    credits = ledger.credits
    assert sum(sum(o.sizes) for o in state.outstanding) == credits.outstanding_bytes <= credits.budget_bytes
    left = {(o.position.phase_index, o.position.index): o.left for o in state.outstanding}
    assert len(left) == len(state.outstanding)
    counted = {(o.position.phase_index, o.position.index) for o in state.outstanding if not o.again}
    issued = IndexSet.of(state.order.issued)
    lanes = {lane.consumer for lane in state.lanes}
    unfinished = [0] * len(ledger.phases)
    for number, index in every(world):
        before = (number, index) < (state.order.phase_index, state.order.begin)
        if not before and not (number == state.order.phase_index and index in issued):
            assert (number, index) not in left, "outstanding, and not issued"
            continue
        waiting = {name for name, c in ledger.consumption.items() if not c.has(number, index)}
        served = set(world.terms.parts.names(left.get((number, index), 0)))
        assert waiting - served <= lanes, "everyone has it, is served or will be in a lane"
        unfinished[number] += bool(waiting) or (number, index) in counted
    assert [a.issued - a.closed for a in ledger.phases] == unfinished, "each clip is counted once"
