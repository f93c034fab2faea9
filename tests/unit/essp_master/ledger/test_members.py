"""Loops of the user's own that come and go while much was issued already."""

from __future__ import annotations

import pytest

from essp_common.pb.v1.messages_pb2 import ConsumerState, Loop, Progress
from essp_master.ledger.consumption import Consumption
from essp_master.ledger.ledger import Ledger
from tests.harness.ledger_config import CLIP_BYTES, ledger_config


def test_what_a_loop_costs_that_comes_or_leaves_does_not_grow_with_what_was_issued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The master stands still meanwhile."""
    loops = {"consumer.a": "rgb", "consumer.b": "rgb"}
    config = ledger_config(
        clips=1_000_000, videos=1000, budget=200 * CLIP_BYTES, consumers=loops, loops=loops, catch_up=900
    )
    state, issued = Ledger(config).state(), 900_032
    state.phases[0].issued = state.phases[0].closed = issued
    state.order.begin = state.order.end = issued
    state.consumers[0].CopyFrom(ConsumerState(consumer="consumer.a", incarnation="a1", below=[issued, 0], start={}))
    ledger = Ledger(config, state)
    looked, has = 0, Consumption.has

    def counted(consumption: Consumption, phase_index: int, index: int) -> bool:
        nonlocal looked
        looked += 1
        return has(consumption, phase_index, index)

    monkeypatch.setattr(Consumption, "has", counted)
    for loop, closed in [
        (Loop(consumer="consumer.b", incarnation="b1", position={"index": 5}), 5),
        (Loop(consumer="consumer.b", incarnation="b1", left=True), issued),
        (Loop(consumer="consumer.a", incarnation="a2", position={"index": 7}), 7),
        (Loop(consumer="consumer.a", incarnation="a3", position={"index": 3}), 3),
        (Loop(consumer="consumer.a", incarnation="a3", left=True), issued),
    ]:
        ledger.account(Progress(loop=loop))
        assert ledger.closed == ledger.phases[0].closed == closed
    assert looked < 10_000
