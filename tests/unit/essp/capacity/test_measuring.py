"""What a clip costs, of figures that are counted in ticks."""

from __future__ import annotations

import pytest

from essp.capacity.cpu import TICK_S
from essp.capacity.measuring import per_clip


def test_what_takes_less_than_a_tick_still_costs_something() -> None:
    assert per_clip(0.3, 12) == pytest.approx(0.025)
    assert per_clip(0.0, 4) == TICK_S / 4
