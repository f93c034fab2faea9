"""What may be committed while records finish in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.bus.watermark import Watermark

OFFSETS = st.lists(st.integers(0, 60), unique=True, max_size=30).map(sorted)


@given(OFFSETS, st.randoms(use_true_random=False), st.integers(0, 30))
def test_everything_below_is_done_and_nothing_more_could_be_committed(
    offsets: list[int], random: object, finished: int
) -> None:
    watermark = Watermark(0)
    for offset in offsets:
        watermark.delivered(offset)
    order = list(offsets)
    random.shuffle(order)  # type: ignore[attr-defined]
    done: set[int] = set()
    for offset in order[:finished]:
        before = watermark.committable
        moved = watermark.done(offset)
        done.add(offset)
        waiting = [o for o in offsets if o not in done]
        assert watermark.committable == (waiting[0] if waiting else offsets[-1] + 1)
        assert moved == (watermark.committable != before)


def test_nothing_delivered_nothing_to_commit() -> None:
    watermark = Watermark(7)
    assert (watermark.position, watermark.committable) == (7, 7)


def test_gaps_between_offsets_do_not_hold_it_up() -> None:
    watermark = Watermark(0)
    for offset in (3, 9, 10):
        watermark.delivered(offset)
    assert watermark.done(3)
    assert watermark.committable == 9


@pytest.mark.parametrize("offset", [2, 5, 99])
def test_what_was_not_delivered_here_changes_nothing(offset: int) -> None:
    """Offset 2 is done already, 5 is not delivered yet, 99 is from another life."""
    watermark = Watermark(2)
    for delivered in (2, 3, 4):
        watermark.delivered(delivered)
    watermark.done(2)
    assert not watermark.done(offset)
    assert watermark.committable == 3
    for delivered in (5, 99):
        watermark.delivered(delivered)
    for done in (3, 4):
        watermark.done(done)
    assert watermark.committable == 5, "once it is delivered, it is not done"


def test_repeated_done_is_harmless() -> None:
    watermark = Watermark(0)
    for offset in range(3):
        watermark.delivered(offset)
    assert [watermark.done(n) for n in (1, 1, 0, 0, 1)] == [False, False, True, False, False]
    assert watermark.committable == 2


def test_going_back_is_an_error() -> None:
    watermark = Watermark(5)
    watermark.delivered(5)
    with pytest.raises(ValueError, match="5 was delivered before"):
        watermark.delivered(5)
