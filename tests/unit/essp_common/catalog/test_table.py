"""Catalogs as stored: what is written is read; what a job draws from is what its spec says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp.catalog.summary import COLUMNS, summarize
from essp_common.catalog.table import Catalog, VideoRow, read_catalog, write_catalog
from essp_common.errors import ConfigError, NotFound, PermanentError
from essp_common.job.spec import DataSpec
from essp_common.planning.splits import canonical_split, carve, splits_of
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
