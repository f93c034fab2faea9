"""Views: what plans draw from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from essp_common.catalog.catalog import Catalog
from tests.harness.catalog_rows import row


def test_views_hold_the_usable_videos_of_a_split_by_id() -> None:
    rows = (row("b/1"), row("a/2"), row("a/1", split="test"), row("c/1", error="damaged: x"))
    view = Catalog(rows).view("train")
    assert [r.id for r in view.rows] == ["a/2", "b/1"]
    assert view.classes == ("a", "b", "c"), "an unusable video still names its class"
    assert [videos.tolist() for videos in view.by_class] == [[0], [1], []]
    assert len(Catalog(rows).view(None)) == 3


def test_rows_without_label_make_no_class_of_their_own() -> None:
    """Unless they are usable: a catalog to predict on has no labels at all."""
    stray = replace(row("x"), class_name="", error="unlabelled: it is not in a class folder")
    assert Catalog((row("a/1"), stray)).classes == ("a",)
    assert Catalog((replace(row("x"), class_name=""),)).classes == ("",)


@pytest.mark.parametrize(
    ("keyframes", "distance"),
    [
        ([(0, 12, 24, 36), (), (0,), (5, 17, 29)], 12),
        ([(0, 12, 24, 36, 48), (0, 12, 24), (0, 12, 24), (0, 7, 19, 31)], 12),
        ([(0, 12, 24), (0, 7, 20)], 0),
        ([(0,), (0,)], 0),
        ([(), ()], 0),
    ],
)
def test_keyframes_have_a_distance_where_nearly_all_have_the_same(
    keyframes: list[tuple[int, ...]], distance: int
) -> None:
    rows = [
        replace(row(f"a/{place}", frames=60), keyframe_frame=frames, keyframe_pts=frames, keyframe_offset=frames)
        for place, frames in enumerate(keyframes)
    ]
    assert Catalog(tuple(rows)).view("train").keyframe_distance == distance
