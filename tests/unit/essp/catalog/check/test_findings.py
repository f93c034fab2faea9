"""What is told of a data set: every fault of a kind of its own, nothing of a sound one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from essp.catalog.check.findings import KINDS, Finding, Wanted, find
from essp.catalog.check.measures import Measures, Stretch
from essp_common.catalog.rows import VideoRow


def row(name: str, split: str = "train", label: str = "run", **facts: object) -> VideoRow:
    """A sound video of 100 frames, with three keyframes."""
    values: dict[str, object] = {
        "size_bytes": 9, "etag": "e", "container": "mov", "codec": "h264", "width": 320, "height": 240, "fps": 25.0,
        "frame_count": 100, "last_frame": 99, "seekable": True, "lookahead": 1, "keyframe_pts": (0, 40, 80),
        "keyframe_frame": (0, 40, 80), "keyframe_offset": (1, 2, 3),
    } | facts  # fmt: skip
    return VideoRow(name, f"file:///{name}", label, split, **values)  # type: ignore[arg-type]


def seen(name: str, **values: object) -> Measures:
    """A file that is as its row says, and like no other."""
    number = int.from_bytes(name.encode(), "big")
    shown = tuple((number * 0x9E3779B97F4A7C15 * (place + 3)) % 2**64 for place in range(8))
    found = Measures(True, 100, 100, 100, digest=name, shown=shown, moved=shown)
    return replace(found, **values)  # type: ignore[arg-type]


ROWS = [row(f"{split}{number}", split) for split in ("train", "test") for number in range(3)]


def found(rows: Sequence[VideoRow] = ROWS, wanted: Wanted | None = None, **measures: Measures) -> list[tuple[str, str]]:
    return [(one.kind, one.subject) for one in all_of(rows, wanted, **measures)]


def all_of(rows: Sequence[VideoRow] = ROWS, wanted: Wanted | None = None, **measures: Measures) -> list[Finding]:
    known = {one.uri: measures.get(one.id, seen(one.id)) for one in rows}
    return find(rows, known, wanted or Wanted())


def test_a_sound_data_set_has_no_findings() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("one_keyframe", {"frame_count": 400, "last_frame": 399, "keyframe_frame": (0,)}),
        ("one_keyframe", {"frame_count": 400, "last_frame": 399, "keyframe_frame": (), "seekable": False}),
        ("long_gop", {"frame_count": 500, "last_frame": 499}),
        ("interlaced", {"notes": "interlaced: 9 of 9 decoded frames are two fields"}),
        ("tracks", {"notes": "tracks: 2 tracks of pictures"}),
        ("crop", {"notes": "crop: players show 310 x 240"}),
        ("bits", {"notes": "bits: grey of 12 bits"}),
        ("salvaged", {"notes": "salvaged: of a file that is truncated, the first 100 frames are used"}),
        ("too_short", {"last_frame": 9}),
        ("variable_rate", {"timestamps": b"packed"}),
        ("odd_size", {"width": 64, "height": 48}),
        ("odd_shape", {"width": 240, "height": 320}),
        ("unusable", {"error": "damaged: all of it"}),
    ],
)
def test_what_the_catalog_knows_is_told(kind: str, facts: dict[str, object]) -> None:
    odd = replace(row("odd"), **facts)  # type: ignore[arg-type]
    frames = odd.frame_count
    assert found([*ROWS, odd], odd=seen("odd", frames=frames, packets=frames, declared=frames)) == [(kind, "odd")]


def test_rows_of_a_quick_build_are_told_together() -> None:
    quick = [row(name, unproven="order damage") for name in ("a", "b")]
    (told,) = all_of([*ROWS, *quick])
    assert (told.kind, told.videos, told.what) == ("unproven", ("a", "b"), "2 of 8 videos; not verified: damage, order")


@pytest.mark.parametrize(
    ("rotation", "aspect", "shown"),
    [(0, 16 / 11, "320 x 240, displayed as 465 x 240"), (90, 2.0, "320 x 240, displayed as 160 x 240")],
)
def test_anamorphic_videos_are_told_with_the_size_that_players_give_them(
    rotation: int, aspect: float, shown: str
) -> None:
    rows = [replace(one, rotation=rotation) for one in ROWS]
    (one,) = all_of(rows, train0=seen("train0", pixel_aspect=aspect))
    assert (one.kind, one.what) == ("pixel_aspect", shown)
    assert found(rows, train0=seen("train0", pixel_aspect=1.01)) == []


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("frame_count", {"frames": 98}),
        ("declared_frames", {"declared": 103}),
        ("pixel_aspect", {"pixel_aspect": 16 / 11}),
        ("damaged", {"damaged": 2, "first_damaged": 7}),
        ("unreadable", {"error": "crashed: the process reading it died"}),
        ("frame_count", {"decoded": False, "frames": 0, "packets": 90}),
    ],
)
def test_what_the_file_contradicts_is_told(kind: str, values: dict[str, object]) -> None:
    assert found(train1=seen("train1", **values)) == [(kind, "train1")]


def test_keyframes_that_cannot_be_used_have_a_remedy_of_their_own() -> None:
    """More keyframes would not help a file that has some."""
    odd = replace(row("odd"), frame_count=400, last_frame=399, keyframe_frame=(), seekable=False)
    (one,) = all_of([odd], odd=seen("odd", frames=400, packets=400, declared=400, keyframes=7))
    assert one.kind == "unused_keyframes"
    assert "-c copy" in KINDS[one.kind].remedy


def test_what_all_frames_show_counts_where_the_catalog_looked_at_a_few() -> None:
    odd = replace(row("odd"), notes="interlaced: 2 of 9 decoded frames are two fields")
    told = "interlaced: 3 of 100 decoded frames are two fields\nsizes: 64 x 48 from frame 0 on, 32 x 24 from frame 7 on"
    findings = all_of([odd], odd=seen("odd", notes=told))
    assert [(one.kind, one.what[:8]) for one in findings] == [("sizes", "64 x 48 "), ("interlaced", "3 of 100")]


@pytest.mark.parametrize(
    ("values", "more"),
    [
        ({"frames": 130, "declared": 200}, []),
        ({"damaged": 3, "first_damaged": 100, "frames": 104}, []),
        ({"error": "damaged: the file cannot be read to its end"}, []),
        ({"error": "crashed: the process reading it died"}, ["unreadable"]),
        ({"frames": 60}, ["frame_count"]),
        ({"damaged": 3, "first_damaged": 50}, ["damaged"]),
    ],
)
def test_of_a_salvaged_file_the_part_that_is_used_counts(values: dict[str, object], more: list[str]) -> None:
    odd = replace(row("odd"), notes="salvaged: of a file that is truncated, the first 100 frames are used")
    assert found([odd], odd=seen("odd", **values)) == [(kind, "odd") for kind in (*more, "salvaged")]


def test_packets_are_no_frames_where_the_catalog_does_not_say_so() -> None:
    rows = [replace(one, lookahead=0) for one in ROWS]
    assert found(rows, train1=seen("train1", decoded=False, frames=0, packets=101)) == []


def test_a_clip_of_the_wanted_length_decides_what_is_short() -> None:
    assert found(wanted=Wanted(frames=16, stride=6)) == []
    assert {kind for kind, _ in found(wanted=Wanted(frames=16, stride=7))} == {"too_short"}


def test_a_segment_answers_for_its_own_frames() -> None:
    uri = "file:///long"
    rows = [
        replace(row("long#0-49"), uri=uri, last_frame=49),
        replace(row("long#50-99"), uri=uri, first_frame=50),
    ]
    cut_between, cut_within = Stretch("cut", 49, 50), Stretch("cut", 69, 70)
    black = Stretch("black", 40, 59)
    findings = find(rows, {uri: seen("long", stretches=(cut_between, cut_within, black))}, Wanted())
    assert [(one.kind, one.subject, one.frames, one.shows) for one in findings] == [
        ("black", "long#0-49", (40, 49), ((uri, 2),)),
        ("black", "long#50-99", (50, 59), ((uri, 2),)),
        ("cut", "long#50-99", (69, 70), ((uri, 1),)),
    ]


def test_the_longest_stretch_comes_first() -> None:
    short, long = Stretch("frozen", 0, 29), Stretch("frozen", 40, 99)
    findings = all_of(train0=seen("train0", stretches=(short,)), train1=seen("train1", stretches=(long,)))
    assert [one.subject for one in findings] == ["train1", "train0"]
    assert findings[0].what == "frames 40 to 99 (1.60 s), 60 % of the video"


def test_copies_within_a_split_across_splits_and_with_two_labels() -> None:
    assert found(train0=seen("x"), train1=seen("x")) == [("duplicate", "train0")]
    assert found(train0=seen("x"), test1=seen("x")) == [("leak", "test1")]
    rows = [replace(one, class_name="walk") if one.id == "train1" else one for one in ROWS]
    rows += [row("walks", label="walk", split="train")]
    assert found(rows, train0=seen("x"), train1=seen("x")) == [("label_conflict", "train0")]


def test_near_duplicates_come_with_the_copies_of_each() -> None:
    like = seen("x")
    near = replace(like, digest="y", shown=tuple(word ^ 1 for word in like.shown))
    (one,) = all_of(train0=like, train1=like, train2=near)[1:]
    assert (one.kind, one.videos) == ("near_duplicate", ("train0", "train1", "train2"))
    assert one.what == "3 files look the same, frame by frame (as train1, train2)"
    assert [one.kind for one in all_of(train0=like, test0=near)] == ["leak"]


def test_a_group_in_several_splits_is_told() -> None:
    rows = [replace(one, group="anna") if one.id in ("train0", "train1", "test2") else one for one in ROWS]
    (one,) = all_of(rows)
    assert (one.kind, one.subject, one.what) == ("group_leak", "anna", "1 in test, 2 in train")


def test_videos_in_no_split_leak_nothing() -> None:
    """They are neither trained nor measured on."""
    like = seen("x")
    rows = [*ROWS, row("rest0", "", group="anna"), row("rest1", "")]
    rows[0] = replace(rows[0], group="anna")
    assert [one.kind for one in all_of(rows, train1=like, rest1=like)] == ["duplicate"]


def test_segments_of_one_file_in_two_splits_leak_where_they_overlap() -> None:
    def cut(name: str, split: str, first: int, last: int) -> VideoRow:
        return replace(row(name, split, first_frame=first, last_frame=last), uri="file:///one")

    apart = [cut("a", "train", 0, 39), cut("b", "test", 40, 79), cut("c", "train", 80, 99), cut("d", "", 30, 60)]
    assert found([*ROWS, *apart]) == []
    (one,) = all_of([*ROWS, *apart, cut("e", "test", 20, 50)])
    assert (one.kind, one.subject, one.frames) == ("leak", "e", (20, 39))
    assert one.what == "frames 20 to 39 are in train and in test"
    assert found([replace(one, group=one.split) for one in ROWS]) == []


def test_classes_of_unequal_size_and_without_training() -> None:
    rows = [*ROWS, *(row(f"more{number}") for number in range(17)), row("rare", label="walk")]
    (one,) = all_of(rows)
    assert (one.kind, one.what) == ("imbalance", "20 videos of 'run', 1 of 'walk'")
    assert found([*ROWS, row("odd", "test", label="swim")]) == [("untrained", "swim")]


def test_what_was_not_read_is_not_told_of() -> None:
    assert find(ROWS, {}, Wanted()) == []


def test_the_gravest_kinds_come_first() -> None:
    gravities = [kind.gravity for kind in KINDS.values()]
    assert gravities == sorted(gravities, key=["error", "warning", "note"].index)
    kinds = [
        kind for kind, _ in found(train0=seen("train0", declared=1, damaged=1, stretches=(Stretch("black", 0, 30),)))
    ]
    assert kinds == ["damaged", "black", "declared_frames"]
