"""Catalogs as stored: what is written is read, and what no catalog can hold is refused."""

from __future__ import annotations

import errno
import io
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.catalog import file
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import NotACatalog, read_catalog, read_parts, to_table, write_catalog, write_parts
from essp_common.catalog.rows import VideoRow
from essp_common.errors import ConfigError, NotFound
from essp_common.job.clip_spec import ClipSpec
from essp_common.objects import tables
from essp_common.pb.v1.messages_pb2 import TRAIN, Seed, Video
from essp_common.wiring import open_store
from essp_engine.planning.class_balanced import ClassBalanced
from essp_engine.planning.plan import seek_to
from tests.harness.catalog_rows import row


def test_what_is_written_is_read(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    rows = (row("b/2"), row("a/1", split="test"), VideoRow("ä/x", "u", "ä", "", 0, "", error="damaged: “so”"))
    write_catalog(store, "deep/cat.parquet", Catalog(rows, "s3://videos"))
    catalog = read_catalog(store, "deep/cat.parquet")
    assert catalog.rows == tuple(sorted(rows, key=lambda r: r.id))
    assert catalog.source == "s3://videos"
    assert catalog.classes == ("a", "b", "ä")
    assert catalog.splits == ("", "test", "train")


def test_a_catalog_from_before_there_were_notes_and_checksums_is_read(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    rows = (row("a/1"), row("b/2"))
    pq.write_table(to_table(Catalog(rows)).drop_columns(["notes", "sums"]), tmp_path / "c", write_page_checksum=True)
    assert read_catalog(store, "c").rows == rows
    assert [one.notes for one in read_catalog(store, "c", ["notes"]).rows] == ["", ""]
    assert read_catalog(store, "c", ["fps"]).rows[0].notes == ""
    assert [one.sums for one in read_catalog(store, "c").rows] == [b"", b""]


def test_an_empty_catalog_is_a_catalog(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    write_catalog(store, "c", Catalog(()))
    assert read_catalog(store, "c") == Catalog(())


def test_a_small_file_that_lists_more_videos_than_fit_into_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"file://{tmp_path}")
    table = to_table(Catalog((row("a/1"),)))
    pq.write_table(pa.concat_tables([table] * 50_000).combine_chunks(), tmp_path / "c")
    assert store.head("c").size_bytes < 100_000
    monkeypatch.setattr(file, "memory_limit", lambda: 20 * 2**20)
    monkeypatch.setattr(tables, "read", Mock(side_effect=AssertionError("it was read")))
    with pytest.raises(ConfigError, match=r"lists 50,000 videos, .* of the 20\.0 MiB of memory"):
        read_catalog(store, "c")


def test_equal_rows_give_equal_files(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    write_catalog(store, "forth", Catalog((row("a/1"), row("b/2"))))
    write_catalog(store, "back", Catalog((row("b/2"), row("a/1"))))
    assert store.get("forth") == store.get("back")


@pytest.mark.parametrize("relative", [False, True])
def test_a_catalog_in_parts_is_the_same_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    monkeypatch.setattr(file, "PART", 4)
    source = f"file://{tmp_path}"
    store = open_store(source)
    rows = [row(f"a/{number:02}", uri=f"{source}/v/{number:02}") for number in range(10)]
    parts = [Catalog(rows[begin : begin + 4]) for begin in range(0, 10, 4)]
    write_catalog(store, "whole", Catalog(rows, source), relative=relative)
    write_parts(store, "parts", iter(parts), source, (rows[0].uri, rows[9].uri), relative=relative)
    assert store.get("parts") == store.get("whole")
    assert read_catalog(store, "parts") == Catalog(rows, source)
    monkeypatch.setattr(file, "PART", 16)
    assert [one for some in read_parts(store, "parts") for one in some] == rows
    with pytest.raises(ConfigError, match="id 'a/09' is there twice; it was not written"):
        write_parts(store, "parts", [*parts, Catalog(rows[9:])], source, ())
    assert store.get("parts") == store.get("whole"), "nothing half done replaces it"


def test_rows_beside_an_invalid_value_are_left_out_of_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build reads the files of these rows again."""
    monkeypatch.setattr(file, "PART", 16)
    store = open_store(f"file://{tmp_path}")
    rows = [replace(row(f"a/{number}"), fps=-1.0 if number == 2 else 25.0) for number in range(6)]
    store.put("c", file.pack_table(to_table(Catalog(rows))))
    assert [[one.id for one in some] for some in read_parts(store, "c")] == [["a/0", "a/1"], ["a/4", "a/5"]]


def test_only_the_wanted_columns_are_read(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    write_catalog(store, "c", Catalog((row("a/1"),)))
    (found,) = read_catalog(store, "c", ["time_base", "fps"]).rows
    assert found == VideoRow("a/1", "file:///a/1", "a", "train", 1000, "etag", fps=25.0, time_base=(1, 12800))


def test_what_is_no_catalog_is_refused_with_the_remedy(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "plain")
    pq.write_table(pa.table({"id": ["a"]}).replace_schema_metadata({"essp.catalog.version": "0"}), tmp_path / "old")
    with pytest.raises(NotACatalog, match=r"is a Parquet file, but not a catalog; name another one, or make it again"):
        read_catalog(store, "plain")
    with pytest.raises(ConfigError, match=r"version 0.*essp catalog build"):
        read_catalog(store, "old")
    with pytest.raises(NotFound):
        read_catalog(store, "missing")


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda whole: b"", "it is empty"),
    "a letter": (lambda whole: b"P", "it is not a Parquet file"),
    "a text": (lambda whole: b"id,uri\n", "it is not a Parquet file"),
    "cut in half": (lambda whole: whole[: len(whole) // 2], "its end is missing"),
    "cut at the front": (lambda whole: whole[1:], "it is not a Parquet file"),
    "a hole": (lambda whole: whole[:200] + bytes(200) + whole[400:], "it is damaged"),
    "no footer": (lambda whole: whole[:-12] + bytes(8) + whole[-4:], "it is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("local", [True, False])
def test_a_file_that_cannot_be_read_is_told_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, local: bool
) -> None:
    store = open_store(f"file://{tmp_path}")
    if not local:
        monkeypatch.setattr(type(store), "local_path", lambda *_: None)
    write_catalog(store, "c", Catalog((row("a/1"), row("b/2"))))
    change, words = DAMAGE[damage]
    store.put("c", change(store.get("c")))
    with pytest.raises(
        NotACatalog, match=f"c cannot be read as a catalog: {words}.*; name another one, or make it again with `essp "
    ):
        read_catalog(store, "c")


def test_a_catalog_that_may_not_be_read_is_no_damaged_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"file://{tmp_path}")
    write_catalog(store, "c", Catalog((row("a/1"),)))
    refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    monkeypatch.setattr(tables, "opened", Mock(side_effect=refused))  # root may read everything
    with pytest.raises(ConfigError, match="c: Permission denied; give this process the right to read it") as raised:
        read_catalog(store, "c")
    assert not isinstance(raised.value, NotACatalog)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a negative size": ({"size_bytes": -1}, "size_bytes: -1 is not the size of a file"),
    "a negative number of frames": ({"frame_count": -5}, "frame_count: -5 is not a number of frames"),
    "frames without end": ({"frame_count": 2**62}, "frame_count: 4611686018427387904 is not a number of frames"),
    "no rate": ({"fps": math.nan}, "fps: nan is not a frame rate"),
    "endless": ({"duration_s": math.inf}, "duration_s: inf is not a duration"),
    "no picture": ({"width": 0}, "width: 0 is not the size of a picture"),
    "a name without end": ({"class_name": "x" * 600}, "class_name: .* is longer than 512 bytes"),
    "no id": ({"id": ""}, "id: '' is not an id"),
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
    clip = ClassBalanced(view, ClipSpec(frames=3), 5, 0, TRAIN, 0).clip(4)
    video = view.rows[clip.video]
    seed = Seed(first_frame=clip.first_frame, last_frame=video.last_frame)
    seek_to(video, clip.first_frame, seed.seek)
    Video(id=video.id, uri=video.uri, size_bytes=video.size_bytes, frame_count=video.frame_count, width=video.width)
