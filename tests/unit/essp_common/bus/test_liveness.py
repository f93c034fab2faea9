"""What a broker owes is known while it owes it, and no longer."""

from __future__ import annotations

from essp_common.bus.liveness import JOIN_S, Acknowledgements, Membership
from essp_common.runtime.conditions import SEEN_S
from essp_common.runtime.troubles import LASTS_S, Kind
from tests.harness.fleet import Clock


def test_what_is_not_acknowledged_is_told_in_time() -> None:
    clock = Clock()
    owed = Acknowledgements(clock)
    for _ in range(3):
        owed.published()
    clock.now_s += LASTS_S - 1
    assert not owed.troubles()
    clock.now_s += 1
    assert "has not acknowledged 3 messages for 15 s" in owed.troubles()[Kind.BUS_STALLED]
    owed.answered()
    assert not owed.troubles(), "it goes on"
    clock.now_s += LASTS_S
    assert "2 messages" in owed.troubles()[Kind.BUS_STALLED]


def test_a_broker_that_owes_nothing_may_be_silent() -> None:
    clock = Clock()
    owed = Acknowledgements(clock)
    owed.published()
    owed.answered()
    clock.now_s += 3600
    assert not owed.troubles()
    owed.published()
    assert not owed.troubles(), "it has only just been asked"


def test_what_the_client_gives_up_is_no_answer() -> None:
    clock = Clock()
    owed = Acknowledgements(clock)
    owed.published()
    clock.now_s += 60
    owed.given_up()
    assert Kind.BUS_STALLED in owed.troubles()
    owed.published()
    assert Kind.BUS_STALLED in owed.troubles(), "the broker has still not answered"
    owed.answered()
    assert not owed.troubles()


def test_a_member_that_is_not_let_in_is_told_of() -> None:
    clock = Clock()
    member = Membership("decoder", clock)
    member.joining(True)
    for _ in range(int(JOIN_S)):
        assert not member.troubles()
        clock.now_s += 1
        member.asks()
        member.heard()
        member.joining(True)
    words = member.troubles()[Kind.UNASSIGNED]
    assert "join group decoder" in words
    assert "restart it" in words
    member.joining(False)
    assert not member.troubles()
    assert JOIN_S < SEEN_S


def test_a_broker_that_is_asked_in_vain_is_told_of() -> None:
    clock = Clock()
    member = Membership("decoder", clock)
    clock.now_s += 5
    member.asks()
    member.failed("timed out")
    assert not member.troubles(), "it may be busy for a moment"
    clock.now_s += LASTS_S - 5
    assert "(timed out)" in member.troubles()[Kind.BUS_SILENT]
    member.heard()
    assert not member.troubles()


def test_a_client_that_waits_for_ever_is_told_of() -> None:
    clock = Clock()
    member = Membership("decoder", clock)
    member.asks()
    clock.now_s += JOIN_S
    assert "the client still waits" in member.troubles()[Kind.BUS_SILENT]
