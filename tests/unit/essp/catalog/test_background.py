"""Rows of what is not labelled: every frame of a file is in a labelled segment, in background, or in a short gap."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from essp.catalog.background import background_rows
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.rows import VideoRow
from essp_common.catalog.targets import Span, Targets, pack, unpack

FPS = 10.0


def row(name: str, first: int, last: int, frames: int = 100, **more: object) -> VideoRow:
    whole = VideoRow(f"{name}#{first}-{last}", f"file:///{name}", "run", "train", 1, "e", group="g", extra='{"a":1}')
    cut = replace(whole, fps=FPS, frame_count=frames, first_frame=first, last_frame=last)
    return replace(cut, **more)  # type: ignore[arg-type]


def test_the_name_of_a_file_may_have_the_signs_of_a_segment() -> None:
    rows = [row("C#/take#1.mp4", 0, 49), row("C#/take#1-2.mp4", 50, 99), replace(row("b#1", 0, 49), id="b#1#0-49:a#b")]
    ids = [found.id for found in background_rows(rows, "none")]
    assert ids == ["C#/take#1-2.mp4#0-49:none", "C#/take#1.mp4#50-99:none", "b#1#50-99:none"]


@given(
    st.lists(
        st.tuples(st.sampled_from("uv"), st.integers(0, 99), st.integers(0, 40)), min_size=1, max_size=8, unique=True
    )
)
def test_each_frame_is_labelled_or_background_or_in_a_short_gap(segments: list[tuple[str, int, int]]) -> None:
    rows = [row(name, first, min(first + more, 99)) for name, first, more in segments]
    found = background_rows(rows, "none")
    Catalog([*{each.id: each for each in rows}.values(), *found])  # ids are unique
    for name in {each.uri for each in rows}:
        labelled = {f for each in rows if each.uri == name for f in range(each.first_frame, each.last_frame + 1)}
        stretches = [set(range(each.first_frame, each.last_frame + 1)) for each in found if each.uri == name]
        background = set().union(*stretches)
        assert sum(map(len, stretches)) == len(background)
        assert not labelled & background
        assert all(len(stretch) >= FPS for stretch in stretches)
        gaps = sorted(set(range(100)) - labelled - background)
        runs = [f for f in gaps if f - 1 not in gaps]
        assert all(f + FPS - 1 not in gaps or not set(range(f, f + int(FPS))) <= set(gaps) for f in runs)


def test_a_row_says_what_its_file_says() -> None:
    [before, after] = background_rows([row("v.mp4", 30, 59)], "none")
    assert (before.id, before.first_frame, before.last_frame) == ("v.mp4#0-29:none", 0, 29)
    assert (after.id, after.first_frame, after.last_frame) == ("v.mp4#60-99:none", 60, 99)
    for each in (before, after):
        same = (each.class_name, each.split, each.group, each.uri, each.frame_count, each.fps, each.extra)
        assert same == ("none", "train", "g", "file:///v.mp4", 100, FPS, "")


def test_spans_of_targets_are_labelled_too() -> None:
    targets = pack(Targets(("run",), (Span(40, 79, "jump"),)))
    found = background_rows([row("v.mp4", 0, 29, targets=targets)], "none")
    assert [(each.first_frame, each.last_frame) for each in found] == [(30, 39), (80, 99)]
    assert unpack(found[0].targets) == Targets(("none",))


def test_what_is_not_sure_makes_no_background() -> None:
    whole = replace(row("w.mp4", 0, 99), id="w.mp4")
    bad = [row("v.mp4", 30, 59), row("v.mp4", 0, 0, error="segment: begins at 12 s, but the file ends at 10 s")]
    several = [row("u.mp4", 0, 9), row("u.mp4", 10, 29, split="test")]
    assert background_rows([whole, *bad, *several], "none") == []


def test_a_file_without_a_rate_is_taken_for_25_frames_a_second() -> None:
    lengths = [each.last_frame - each.first_frame + 1 for each in background_rows([row("v", 24, 74, fps=0.0)], "none")]
    assert lengths == [25]
