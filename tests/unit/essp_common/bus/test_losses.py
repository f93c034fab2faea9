"""What a reader has missed is told for a while."""

from __future__ import annotations

from essp_common.bus.losses import Losses
from essp_common.runtime.troubles import Kind


def test_losses_are_counted_and_told_for_ten_minutes() -> None:
    now_s = 0.0
    losses = Losses("decoder", clock=lambda: now_s)
    assert losses.troubles() == {}
    losses.expired("essp.seeds", 3)
    losses.expired("essp.seeds", 4)
    assert "decoder has missed 7 records, the last ones of essp.seeds" in losses.troubles()[Kind.BUS_LOSES]
    now_s = 500.0
    losses.made_anew("essp.seeds")
    now_s = 1100.0
    assert "deleted and made again" in losses.troubles()[Kind.BUS_LOSES]
    now_s = 1101.0
    assert losses.troubles() == {}
