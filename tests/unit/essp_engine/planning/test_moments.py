"""Events: which of them all views show, when, and with which of their frames."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.events import check_one_view, of_views, views_of
from essp_common.catalog.file import row_problems
from essp_common.catalog.rows import VideoRow
from essp_common.job.clip_spec import ClipSpec
from essp_engine.planning.even import Uniform
from essp_engine.planning.moments import Moments
from essp_engine.video.clock import pack
from tests.harness.refused import refused


def row(event: str, view: str, frames: int = 100, fps: float = 10.0, **more: Any) -> VideoRow:
    """A row of a view, of a file of its own."""
    plain = VideoRow(f"{event}/{view}", f"file:///{event}-{view}.mp4", "a", "train", 1, "e")
    facts: dict[str, Any] = {
        "width": 8,
        "height": 8,
        "frame_count": frames,
        "last_frame": frames - 1,
        "duration_s": frames / fps,
    }
    return replace(plain, fps=fps, time_base=(1, 1000), event=event, view=view, **{**facts, **more})


def test_an_event_needs_all_views() -> None:
    catalog = Catalog(
        [
            *(row("whole", view) for view in "lr"),
            row("lacking", "l"),
            row("broken", "l"),
            row("broken", "r", error="truncated: early"),
            row("timeless", "l"),
            replace(row("timeless", "r"), fps=0.0),
            row("apart", "l", frames=20),
            row("apart", "r", start_s=30.0),
            replace(row("", ""), id="alone"),
        ]
    )
    assert views_of(catalog) == ("l", "r")
    found = of_views(catalog, ["l", "r"])
    reasons = {each.event: each.error for each in found.rows}
    assert reasons.pop("whole") is None
    assert all(reason is not None and reason.startswith("view: ") for reason in reasons.values())
    assert reasons.keys() == {"lacking", "broken", "timeless", "apart"}
    assert [each.event for each in of_views(catalog, ["l"]).view(None).rows] == [
        *("apart", "broken", "lacking", "timeless", "whole"),
    ]
    with refused("clip.views.up", "unknown"):
        of_views(catalog, ["up"])
    with refused("clip.views", "missing"):
        check_one_view(catalog)


def test_clips_are_drawn_from_the_time_that_all_views_show() -> None:
    """The right camera begins 2 s later, and ends 3 s sooner; its clock is 100 s ahead."""
    left, right = row("e", "l", frames=200, fps=20.0), row("e", "r", frames=50, start_s=2.0)
    view = of_views(Catalog([left, replace(right, start_s=102.0, origin_s=100.0)]), ["l", "r"]).view(None)
    assert (view.first_frame.tolist(), view.length.tolist()) == ([40], [100])
    clip = ClipSpec.model_validate({"frames": 3, "stride": 4, "views": {"l": {}, "r": {"frames": 2, "stride": 10}}})
    assert (clip.span, clip.reach) == (9, 11)
    plan, moments = Uniform(view, clip, 90), Moments(view, clip)
    firsts = [plan.clip(index).first_frame for index in range(len(plan))]
    assert (firsts[0], firsts[-1]) == (42, 131), "two frames are left for the longer clip of the other view"
    assert moments.frames(0, 42) == [[0, 5]]
    assert moments.frames(0, 43) == [[0, 5]], "frame 51 of the left appears between two of the right"
    assert moments.frames(0, 44) == [[1, 6]]


def test_frames_of_a_varying_rate_follow_their_timestamps() -> None:
    ticks = [0, 100, 150, 600, 1000]
    slow = row("e", "r", frames=5, timestamps=pack(ticks), duration_s=1.2, fps=4.0)
    view = of_views(Catalog([row("e", "l", frames=20), slow]), ["l", "r"]).view(None)
    assert (view.first_frame.tolist(), view.length.tolist()) == ([0], [12])
    clip = ClipSpec.model_validate({"frames": 12, "views": {"l": {}, "r": {}}})
    assert Moments(view, clip).frames(0, 0) == [[0, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4]]


@pytest.mark.parametrize(
    ("rows", "column"),
    [
        ([row("e", "l"), replace(row("e", "l"), id="other")], "view"),
        ([replace(row("e", "l"), event="")], "view"),
        ([replace(row("e", "l"), view="")], "event"),
    ],
)
def test_a_catalog_has_each_view_of_an_event_once(rows: list[VideoRow], column: str) -> None:
    [problem] = row_problems(Catalog(rows))
    assert problem.column == column
