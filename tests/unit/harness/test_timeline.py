"""What a run on a cluster tells about its faults."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.timeline import AWAY, LEADS, READY, Lane, Outage, Timeline, drawn


def test_a_lane_is_in_one_state_at_a_time() -> None:
    lane = Lane()
    for at_s, state in ((1, READY), (2, READY), (3, LEADS), (5, AWAY), (6, READY)):
        lane.note(at_s, state)
    assert lane.spans(READY, 10) == [(1, 2), (6, 4)]
    assert lane.spans(LEADS, 10) == [(3, 2)]
    assert lane.spans(AWAY, 10) == [(5, 1)]


def test_a_fault_costs_the_longest_time_without_a_clip_around_it() -> None:
    """That begins before all is up again: what stands still because of it may do so for longer."""
    timeline = Timeline()
    timeline.trained = [(1, 8), (2, 16), (11, 24), (12, 32), (14, 40), (34, 48), (35, 56)]
    timeline.outages = [Outage("a broker", 3, 8), Outage("node2", 13.5, 16)]
    timeline.finish()
    assert [outage.still_s for outage in timeline.outages] == [9, 20]


def test_the_picture_names_all_lanes_and_faults(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.trained, timeline.outages = [(1, 8)], [Outage("the API server", 2, 3)]
    timeline.note("broker 1", READY)
    timeline.began -= 10
    timeline.finish()
    drawn(json.loads(json.dumps(timeline.document())), tmp_path / "run.svg")
    text = (tmp_path / "run.svg").read_text()
    assert "broker 1" in text
    assert "the API server" in text
