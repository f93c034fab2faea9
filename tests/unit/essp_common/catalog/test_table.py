"""Catalogs as stored: what is written is read; what a job draws from is what its spec says."""

from __future__ import annotations

import io
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp.catalog.summary import COLUMNS, summarize
from essp_common.catalog.table import Catalog, VideoRow, read_catalog, to_table, write_catalog
from essp_common.errors import ConfigError, NotFound, PermanentError
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import DataSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, Seed, Video
from essp_common.planning.plan import class_balanced, seek_to
from essp_common.planning.splits import canonical_split, carve, splits_of, straddling
from essp_common.wiring import open_store


def row(name: str, split: str = "train", uri: str = "", error: str | None = None, frames: int = 50) -> VideoRow:
    """A video `class/file`."""
    return VideoRow(
        name,
        uri or f"file:///{name}",
        name.partition("/")[0],
        split,
        1000,
        "etag",
        container="mov",
        codec="h264",
        pixel_format="yuv420p",
        width=320,
        height=240,
        fps=25.0,
        duration_s=2.0,
        time_base=(1, 12800),
        frame_count=frames if error is None else 0,
        last_frame=frames - 1 if error is None else 0,
        seekable=True,
        keyframe_pts=(-512, 3, 2**40),
        keyframe_frame=(0, 12, 24),
        keyframe_offset=(-1, 900, 2**35),
        error=error,
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    rows = (row("b/2"), row("a/1", split="test"), VideoRow("ä/x", "u", "ä", "", 0, "", error="damaged: “so”"))
    write_catalog(store, "deep/cat.parquet", Catalog(rows, "s3://videos"))
    catalog = read_catalog(store, "deep/cat.parquet")
    assert catalog.rows == tuple(sorted(rows, key=lambda r: r.id))
    assert catalog.source == "s3://videos"
    assert catalog.classes == ("a", "b", "ä")
    assert catalog.splits == ("", "test", "train")


def test_an_empty_catalog_is_a_catalog(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    write_catalog(store, "c", Catalog(()))
    assert read_catalog(store, "c") == Catalog(())


def test_equal_rows_give_equal_files(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    write_catalog(store, "forth", Catalog((row("a/1"), row("b/2"))))
    write_catalog(store, "back", Catalog((row("b/2"), row("a/1"))))
    assert store.get("forth") == store.get("back")


def test_only_the_wanted_columns_are_read(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    write_catalog(store, "c", Catalog((row("a/1"),)))
    (found,) = read_catalog(store, "c", ["time_base", "fps"]).rows
    assert found == VideoRow("a/1", "file:///a/1", "a", "train", 1000, "etag", fps=25.0, time_base=(1, 12800))


def test_what_is_no_catalog_is_refused_with_the_remedy(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    store.put("text", b"id,uri\n")
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "plain")
    pq.write_table(pa.table({"id": ["a"]}).replace_schema_metadata({"essp.catalog.version": "0"}), tmp_path / "old")
    with pytest.raises(PermanentError, match="cannot be read as a catalog"):
        read_catalog(store, "text")
    with pytest.raises(PermanentError, match="not a catalog"):
        read_catalog(store, "plain")
    with pytest.raises(ConfigError, match=r"version 0.*essp catalog build"):
        read_catalog(store, "old")
    with pytest.raises(NotFound):
        read_catalog(store, "missing")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a negative size": ({"size_bytes": -1}, "size_bytes: -1 is not the size of a file"),
    "a negative number of frames": ({"frame_count": -5}, "frame_count: -5 is not a number of frames"),
    "frames without end": ({"frame_count": 2**62}, "frame_count: 4611686018427387904 is not a number of frames"),
    "no rate": ({"fps": math.nan}, "fps: nan is not a frame rate"),
    "endless": ({"duration_s": math.inf}, "duration_s: inf is not a duration"),
    "no picture": ({"width": 0}, "width: 0 is not the size of a picture"),
    "a name without end": ({"class_name": "x" * 600}, "class_name: .* is longer than 512 bytes"),
    "no id": ({"id": ""}, "id: '' is no id"),
    "an id of another": ({"id": "b/2"}, "id: 'b/2' is there twice"),
    "a segment beyond the file": ({"last_frame": 50}, "last_frame: 50 is not a frame of the video"),
    "a segment that ends before it begins": ({"first_frame": 50}, "first_frame: 50 is not a frame of the video"),
    "a clock that stands": ({"time_base": (1, 0)}, "time_base_den: 0 is not a time base"),
    "turned a little": ({"rotation": 45}, "rotation: 45 is not 0, 90, 180 or 270"),
    "a keyframe beyond the file": ({"keyframe_frame": (0, 12, 50)}, "keyframe_frame: .* goes beyond the video"),
    "keyframes out of order": ({"keyframe_frame": (0, 24, 12)}, "keyframe_frame: .* does not rise"),
    "too few timestamps": ({"keyframe_pts": (0,)}, "keyframe_pts: .* is not as long as keyframe_frame"),
    "a keyframe before the file": ({"keyframe_offset": (-7, 1, 2)}, "keyframe_offset: .* is not a place in the file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_value_that_cannot_be_is_named_by_row_and_column(tmp_path: Path, case: str) -> None:
    changes, words = WRONG[case]
    store = open_store(f"file://{tmp_path}")
    catalog = Catalog((replace(row("a/1"), **changes), row("b/2")))
    where = rf"row [12] \('.*'\), column {words}; "
    with pytest.raises(ConfigError, match=f"{where}it was not written"):
        write_catalog(store, "c", catalog)
    pq.write_table(to_table(catalog), tmp_path / "c")
    with pytest.raises(ConfigError, match=f"{where}make it again with `essp catalog build`"):
        read_catalog(store, "c")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.drop_columns(["width"]), "column width is missing"),
        (lambda table: retyped(table, "size_bytes", pa.string()), "column size_bytes holds string, not int64"),
        (lambda table: retyped(table, "frame_count", pa.float64()), "column frame_count holds double, not int64"),
        (lambda table: with_nulls(table, "uri"), r"row 2 \('b/2'\), column uri: it is empty"),
        (lambda table: with_nulls(table, "keyframe_pts"), r"row 2 \('b/2'\), column keyframe_pts: it is empty"),
    ],
)
def test_columns_of_another_program_are_refused(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], words: str
) -> None:
    store = open_store(f"file://{tmp_path}")
    write_catalog(store, "c", Catalog((row("a/1"), row("b/2"))))
    table = pq.ParquetFile(io.BytesIO((tmp_path / "c").read_bytes())).read()
    pq.write_table(change(table), tmp_path / "c")
    with pytest.raises(ConfigError, match=words):
        read_catalog(store, "c")


def retyped(table: pa.Table, name: str, kind: pa.DataType) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, table.column(name).cast(kind))


def with_nulls(table: pa.Table, name: str) -> pa.Table:
    """The last value of a column is null."""
    values = [*table.column(name).to_pylist()[:-1], None]
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values, table.column(name).type))


numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([-1, 0, 1, 49, 50, 51]))


@given(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(("size_bytes", "frame_count", "first_frame", "last_frame"), numbers)
        | dict.fromkeys(("fps", "duration_s", "start_s"), st.floats())
        | dict.fromkeys(("keyframe_pts", "keyframe_frame", "keyframe_offset"), st.lists(numbers, max_size=4).map(tuple))
        | dict.fromkeys(("id", "uri", "class_name", "split", "group"), st.text(max_size=5)),
    )
)
def test_any_row_is_refused_or_can_be_planned(changes: dict[str, Any]) -> None:
    """Whatever stands in a catalog: either it is said what is wrong, or plans and messages can hold it."""
    with TemporaryDirectory() as folder:
        store = open_store(f"file://{folder}")
        try:
            pq.write_table(to_table(Catalog((replace(row("a/1"), **changes),))), f"{folder}/c")
        except UnicodeEncodeError:
            return
        try:
            view = read_catalog(store, "c").view(None)
        except ConfigError as error:
            assert "column" in str(error)  # noqa: PT017
            return
    clip = class_balanced(view, ClipSpec(frames=3), 5, 0, TRAIN, 0).clip(4)
    video = view.rows[clip.video]
    seed = Seed(first_frame=clip.first_frame, last_frame=video.last_frame)
    seek_to(video, clip.first_frame, seed.seek)
    Video(id=video.id, uri=video.uri, size_bytes=video.size_bytes, frame_count=video.frame_count, width=video.width)


def test_views_hold_the_usable_videos_of_a_split_by_id() -> None:
    rows = (row("b/1"), row("a/2"), row("a/1", split="test"), row("c/1", error="damaged: x"))
    view = Catalog(rows).view("train")
    assert [r.id for r in view.rows] == ["a/2", "b/1"]
    assert view.classes == ("a", "b", "c"), "an unusable video still names its class"
    assert [videos.tolist() for videos in view.by_class] == [[0], [1], []]
    assert len(Catalog(rows).view(None)) == 3


def test_rows_without_label_make_no_class_of_their_own() -> None:
    """Unless they are usable: a catalog to predict on has no labels at all."""
    stray = replace(row("x"), class_name="", error="unlabelled: lies in no class folder")
    assert Catalog((row("a/1"), stray)).classes == ("a",)
    assert Catalog((replace(row("x"), class_name=""),)).classes == ("",)


@pytest.mark.parametrize(
    ("name", "kept"),
    [("val", "validation"), ("Training", "train"), (" TEST ", "test"), ("fold-3", "fold-3"), ("Fold", "Fold")],
)
def test_splits_have_one_name(name: str, kept: str) -> None:
    assert canonical_split(name) == kept


def test_splits_that_the_catalog_has_are_taken_as_they_are() -> None:
    catalog = Catalog((row("a/1"), row("a/2", "validation"), row("a/3", "test")))
    splits = splits_of(catalog, DataSpec(validation="val"))
    assert not splits.carved
    assert splits.test is not None
    assert [v.rows[0].id for v in (splits.train, splits.validation, splits.test)] == ["a/1", "a/2", "a/3"]


def test_a_missing_validation_split_is_carved_and_a_missing_test_left_out() -> None:
    catalog = Catalog(tuple(row(f"{c}/{n}") for c in "ab" for n in range(20)))
    splits = splits_of(catalog, DataSpec(validation_fraction=0.25))
    assert splits.carved
    assert splits.test is None
    assert Counter(r.class_name for r in splits.validation.rows) == {"a": 5, "b": 5}
    ids = [r.id for view in (splits.train, splits.validation) for r in view.rows]
    assert sorted(ids) == sorted(r.id for r in catalog.rows)
    assert splits_of(catalog, DataSpec(validation=None, test=None)).carved


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataSpec(train="learn"), r"data.train: the catalog has no split 'learn'; there are: \(none\), test, train"),
        (DataSpec(validation="fold-2"), "data.validation: the catalog has no split 'fold-2'"),
        (DataSpec(test="final"), "data.test: the catalog has no split 'final'"),
        (DataSpec(test="test"), "data.test: no video of split 'test' can be used"),
    ],
)
def test_a_split_that_is_not_there_is_named_with_those_that_are(data: DataSpec, message: str) -> None:
    rows = (row("a/1"), row("a/2"), row("a/3", "test", error="damaged: x"), row("a/4", ""))
    with pytest.raises(ConfigError, match=message):
        splits_of(Catalog(rows), data)


def test_too_few_videos_to_set_any_aside_is_said() -> None:
    with pytest.raises(ConfigError, match="two files at least"):
        splits_of(Catalog((row("a/1"), row("b/1"))), DataSpec())


files = st.lists(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=4), min_size=1, max_size=25
)  # each file: the classes of its segments


@given(files, st.floats(0.01, 0.99))
def test_carving_keeps_files_together_and_every_class_in_training(segments: list[list[str]], fraction: float) -> None:
    rows = [
        row(f"{name}/{number}#{place}", uri=f"file:///{number}")
        for number, classes in enumerate(segments)
        for place, name in enumerate(classes)
    ]
    held_out = carve(tuple(rows), fraction)
    sides = {(r.uri, r.id in held_out) for r in rows}
    assert len(sides) == len({r.uri for r in rows}), "no file on both sides"
    assert {r.class_name for r in rows if r.id not in held_out} == {r.class_name for r in rows}
    assert carve(tuple(reversed(rows)), fraction) == held_out


@given(st.integers(2, 60), st.floats(0.01, 0.99))
def test_carving_takes_its_share_of_each_class(count: int, fraction: float) -> None:
    held_out = carve(tuple(row(f"a/{n}") for n in range(count)), fraction)
    assert len(held_out) == min(count - 1, max(1, round(count * fraction)))


groups = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["", *"pqrstu"]), st.integers(0, 9)), min_size=1, max_size=60
)
"""Of each row: class, group and file."""


@given(groups, st.floats(0.01, 0.99))
def test_carving_keeps_groups_together(drawn: list[tuple[str, str, int]], fraction: float) -> None:
    rows = [
        replace(row(f"{name}/{place}", uri=f"file:///{name}{file}"), group=group)
        for place, (name, group, file) in enumerate(drawn)
    ]
    held_out = carve(tuple(rows), fraction)
    catalog = Catalog(tuple(rows))
    aside = np.array([r.id in held_out for r in catalog.rows])
    sides = [("train", catalog.rows.where(~aside)), ("validation", catalog.rows.where(aside))]
    assert straddling(sides) == {}
    assert len({(r.uri, r.id in held_out) for r in rows}) == len({r.uri for r in rows})
    assert {r.class_name for r in sides[0][1]} == {r.class_name for r in rows}
    assert carve(tuple(reversed(rows)), fraction) == held_out


@given(st.lists(st.integers(1, 30), min_size=2, max_size=30), st.floats(0.05, 0.5))
def test_carving_comes_as_near_to_its_share_as_a_group_is_large(sizes: list[int], fraction: float) -> None:
    rows = [replace(row(f"a/{g}-{n}"), group=f"g{g}") for g, size in enumerate(sizes) for n in range(size)]
    held_out = carve(tuple(rows), fraction)
    wanted = max(1, round(len(rows) * fraction))
    assert held_out
    assert abs(len(held_out) - wanted) <= max(sizes)


def test_classes_stay_in_balance_as_far_as_groups_allow() -> None:
    """Names as in UCF-101: of each class 25 groups of 4 to 7 videos."""
    rows = [
        replace(row(f"c{c}/v_g{g:02}_c{n}"), group=f"c{c}_g{g:02}")
        for c in range(10) for g in range(25) for n in range(4 + (c * g) % 4)
    ]  # fmt: skip
    held_out = carve(tuple(rows), 0.15)
    shares: defaultdict[str, list[bool]] = defaultdict(list)
    for r in rows:
        shares[r.class_name].append(r.id in held_out)
    assert all(abs(sum(part) - 0.15 * len(part)) <= 4 for part in shares.values())


def test_groups_on_both_sides_of_given_splits_are_told() -> None:
    rows = (replace(row("a/1"), group="g"), replace(row("a/2", "test"), group="g"), replace(row("a/3"), group="h"))
    summary = summarize(Catalog(rows))
    assert summary.groups == {"test": 1, "train": 2}
    assert summary.straddling == {"g": ("test", "train")}


def test_carving_does_not_follow_the_order_of_names() -> None:
    held_out = carve(tuple(row(f"a/{n:03}") for n in range(100)), 0.2)
    assert held_out != {f"a/{n:03}" for n in range(20)}
    moved = carve(tuple(row(f"a/{n:03}", uri=f"s3://bucket/{n}") for n in range(100)), 0.2)
    assert moved == held_out, "a data set that is moved keeps its validation videos"


def test_a_summary_adds_up() -> None:
    rows = (
        row("a/1"),
        replace(row("a/2#0-24", uri="file:///a/1"), last_frame=24),
        replace(row("b/1", "test"), seekable=False, keyframe_frame=()),
        row("b/2", error="damaged: block 7"),
        row("c/1", error="damaged: block 9"),
        row("c/2", error="vanished: gone"),
    )
    summary = summarize(Catalog(rows, "here"), examples=1)
    assert (summary.rows, summary.usable.videos, summary.usable.frames) == (6, 3, 125)
    assert summary.usable.hours == pytest.approx(5 / 3600)
    assert summary.usable.bytes == 2000, "a file with two segments is there once"
    assert summary.splits["test"].videos == 1
    assert summary.classes == {"a": {"train": 2}, "b": {"test": 1}, "c": {}}
    assert summary.codecs == {"mov/h264/yuv420p": 3}
    assert summary.sizes == {"320x240": 3}
    assert summary.seekable == 2
    assert summary.gop is not None
    assert {name: count for name, count in summary.gop.counts.items() if count} == {"2-12": 2, "13-30": 1, "31-60": 1}
    assert (summary.gop.shortest, summary.gop.longest) == (12, 50)
    assert [(p.kind, p.videos, p.examples) for p in summary.problems] == [
        ("damaged", 2, ("b/2: block 7",)),
        ("vanished", 1, ("c/2: gone",)),
    ]


def test_a_summary_of_nothing_is_a_summary() -> None:
    assert summarize(Catalog(())).gop is None


def test_a_summary_needs_no_other_columns_than_it_says(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    catalog = Catalog((row("a/1"), row("b/1", error="damaged: x")))
    write_catalog(store, "c", catalog)
    assert summarize(read_catalog(store, "c", COLUMNS)) == summarize(catalog)


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
