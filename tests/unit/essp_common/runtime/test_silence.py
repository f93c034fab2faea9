"""How long a server has not answered, over calls that were given up and made again."""

from __future__ import annotations

import pytest

from essp_common.errors import CacheFull, Unavailable
from essp_common.runtime.silence import Silence
from tests.harness.fleet import Clock


def give_up(silence: Silence, clock: Clock, after_s: float) -> None:
    with silence.call():
        clock.now_s += after_s
        raise Unavailable("no answer")


def test_calls_that_are_given_up_and_made_again_are_one_silence() -> None:
    clock = Clock()
    silence = Silence(clock)
    for _ in range(3):
        with pytest.raises(Unavailable):
            give_up(silence, clock, 4)
        clock.now_s += 1
    assert silence.lasts_s() == 15
    with silence.call():
        clock.now_s += 2
        assert silence.lasts_s() == 17
    assert silence.lasts_s() == 0


def test_a_call_under_way_is_a_silence_already() -> None:
    clock = Clock()
    silence = Silence(clock)
    with silence.call():
        clock.now_s += 20
        assert silence.lasts_s() == 20
    assert silence.lasts_s() == 0


def test_a_refusal_is_an_answer() -> None:
    clock = Clock()
    silence = Silence(clock)
    with pytest.raises(Unavailable):
        give_up(silence, clock, 0)
    clock.now_s += 20
    with pytest.raises(CacheFull), silence.call():
        raise CacheFull("no room")
    assert silence.lasts_s() == 0


def test_what_nobody_calls_any_more_is_forgotten() -> None:
    clock = Clock()
    silence = Silence(clock)
    with pytest.raises(Unavailable):
        give_up(silence, clock, 0)
    clock.now_s += 20
    assert silence.lasts_s() == 20
    clock.now_s += 60
    assert silence.lasts_s() == 0
