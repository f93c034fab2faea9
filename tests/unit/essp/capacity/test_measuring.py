"""What a clip costs, of figures that are counted in ticks."""

from __future__ import annotations

import pytest

from essp.capacity.cpu import TICK_S, part_of
from essp.capacity.measuring import _costs, _Figures, per_clip


def test_what_takes_less_than_a_tick_still_costs_something() -> None:
    assert per_clip(0.3, 12) == pytest.approx(0.025)
    assert per_clip(0.0, 4) == TICK_S / 4


def test_the_start_of_a_job_is_no_cost_of_its_clips_and_is_named_where_it_cannot_be_left_out() -> None:
    """Decoders of a small job may be through before trainers have made their first batch."""
    end = _Figures({"decoder": 8.0, "cpu.decoder": 4.0, "cpu.master": 2.0, "trainer.a": 300.0, "cpu.trainer.a": 9.0})
    used = _Figures(end | {"decoder": 0.0, "trainer.a": 200.0, "cpu.trainer.a": 4.0})
    assert _costs(["decoder", "master", "trainer.a"], used, end) == (
        {"decoder": 0.5, "master": 0.25, "trainer.a": 0.02},
        {"decoder", "master"},
    )


@pytest.mark.parametrize(
    ("thread", "part"),
    [
        ("essp-fetch-trainer.rgb_0", "feed.rgb"),
        ("essp-intake-rgb", "feed.rgb"),
        ("essp-device-feed-rgb", "feed.rgb"),
        ("essp-release-rgb", "feed.rgb"),
        ("decoder-lane-0", "decoder"),
        ("trainer.rgb", "trainer.rgb"),
        ("essp-history", "master"),
    ],
)
def test_threads_count_to_the_part_they_work_for(thread: str, part: str) -> None:
    assert part_of(thread) == part
