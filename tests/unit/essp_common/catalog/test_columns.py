"""Columns hold what rows hold: of any file that is a catalog, in any pieces, through any choice of rows."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
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

from essp_common.catalog import columns
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.columns import Lists, Prefixed, Shared, Texts, Words, taken, values_of
from essp_common.catalog.file import read_catalog, to_table, write_catalog
from essp_common.catalog.rows import ById, Rows, VideoRow
from essp_common.catalog.schema import PLANNED
from essp_common.errors import ConfigError
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import Seek
from essp_engine.planning.plan import seek_to
from tests.harness import pinned

CATALOG = Catalog(replace(row, width=320, height=240) for row in pinned.CATALOG.rows)
NAMES = st.text("abcé😀 /", max_size=4)


@st.composite
def video_rows(draw: st.DrawFn) -> list[VideoRow]:
    """Sound rows with different ids, in any order."""
    rows = []
    for name in draw(st.lists(st.text("abcé😀/", min_size=1, max_size=4), min_size=1, max_size=12, unique=True)):
        frames = draw(st.sampled_from([1, 2, 200, 40_000, 2**31 - 1]))
        keyframes = sorted(draw(st.sets(st.integers(0, frames - 1), max_size=4)))
        rows.append(
            VideoRow(
                name,
                draw(st.sampled_from(["s3://videos/", ""])) + name + draw(st.sampled_from(["", "#1"])),
                draw(NAMES),
                draw(st.sampled_from(["train", "test"])),
                draw(st.integers(0, 2**50)),
                draw(NAMES),
                width=draw(st.integers(1, 2**16)),
                height=9,
                fps=draw(st.floats(0, 1e6)),
                timestamps=draw(st.binary(max_size=5)),
                time_base=(draw(st.integers(0, 2**31 - 1)), draw(st.integers(1, 2**31 - 1))),
                frame_count=frames,
                last_frame=draw(st.integers(0, frames - 1)),
                seekable=draw(st.booleans()),
                keyframe_pts=tuple(k * draw(st.sampled_from([1, 2**30])) for k in range(len(keyframes))),
                keyframe_frame=tuple(keyframes),
                keyframe_offset=tuple(draw(st.integers(-1, 2**50 - 1)) for _ in keyframes),
                group=draw(NAMES),
                error=draw(st.none() | NAMES),
            )
        )
    return draw(st.permutations(rows))


@given(video_rows(), st.integers(1, 5), st.booleans())
def test_rows_come_back_from_a_file_of_any_pieces(rows: Sequence[VideoRow], piece: int, coded: bool) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("essp_common.catalog.file._PIECE", piece)
        patch.setattr("essp_common.catalog.rows._AT_ONCE", 3)
        pq.write_table(to_table(Catalog(rows)), f"{folder}/c", row_group_size=2 * piece, use_dictionary=coded)
        try:
            found = read_catalog(DirectoryStore(folder), "c")
        except ConfigError as error:  # pts of so many keyframes may not rise
            assert "keyframe_pts" in str(error)  # noqa: PT017
            return
    expected = sorted(rows, key=lambda row: row.id)
    assert found.rows == expected
    assert [found.rows[n] for n in range(len(expected))] == expected
    assert {name: row for name, row in ById(found.rows).items()} == {row.id: row for row in rows}
    assert deepcopy(found) == found
    assert to_table(found).equals(to_table(Catalog(rows)))


def test_a_file_in_another_order_is_read_by_id(tmp_path: Path) -> None:
    content = to_table(CATALOG)
    pq.write_table(content.take(np.random.default_rng(0).permutation(len(content))), tmp_path / "c")
    assert read_catalog(DirectoryStore(str(tmp_path)), "c") == CATALOG


def test_columns_take_no_more_room_than_they_need(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    rows = [replace(row, uri=f"s3://videos/{row.id}") for row in CATALOG.rows]
    write_catalog(store, "c", Catalog(rows))
    found = read_catalog(store, "c", PLANNED).rows
    assert isinstance(found.columns["uri"], Prefixed), "ids stand behind the folder of all"
    assert "codec" not in found.columns
    assert found.numbers("last_frame").dtype == np.int16
    lists = [column for column in found.columns.values() if isinstance(column, Lists)]
    assert len(lists) == 3
    assert len({id(column.edges) for column in lists}) == 1
    assert [row.uri for row in found] == [row.uri for row in rows]


def test_a_column_that_is_not_kept_is_checked_all_the_same(tmp_path: Path) -> None:
    content = to_table(CATALOG)
    place = content.column_names.index("fps")
    pq.write_table(content.set_column(place, "fps", pa.array([*[25.0] * 599, -1.0])), tmp_path / "c")
    with pytest.raises(ConfigError, match=r"row 600 \(.*\), column fps: -1.0 is not a frame rate"):
        read_catalog(DirectoryStore(str(tmp_path)), "c", PLANNED)


def test_words_that_a_file_lists_twice_are_one_word() -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2], pa.int32()), pa.array(["a", "b", "a"]))
    other = pa.DictionaryArray.from_arrays(pa.array([1], pa.int32()), pa.array(["c", "b"]))
    for pieces, expected in (([coded], ["a", "b", None, "a"]), ([coded, other], ["a", "b", None, "a", "b"])):
        made = columns.made_of(pa.string(), pieces, words=True)
        assert isinstance(made.column, Words)
        assert [made.column.value(n) for n in range(len(expected))] == expected
        assert len(made.column.used()) == 2
        assert made.empty.tolist() == [2]


def test_segments_of_one_file_share_its_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever pieces the file is read, and after a choice of rows."""
    monkeypatch.setattr("essp_common.catalog.file._PIECE", 7)
    store, sums = DirectoryStore(str(tmp_path)), [bytes([n]) * 5_000 for n in range(5)]
    rows = [replace(row, sums=sums[n // 10], timestamps=b"t" * (n // 25)) for n, row in enumerate(CATALOG.rows[:50])]
    write_catalog(store, "c", Catalog(rows))
    for found in (Catalog(rows).rows, read_catalog(store, "c").rows):
        column = found.columns["sums"]
        assert isinstance(column, Shared)
        assert column.once.arrow().nbytes < 6 * 5_000, "each is in memory once"
        assert [row.sums for row in found] == [row.sums for row in rows]
        assert [row.timestamps for row in found] == [row.timestamps for row in rows]
        assert len({id(row.sums) for row in list(found)}) == 5
        some = taken(column, np.array([41, 3, 4]))
        assert values_of(some, np.arange(3)) == [sums[4], sums[0], sums[0]]
    write_catalog(store, "d", Catalog(found))
    assert (tmp_path / "c").read_bytes() == (tmp_path / "d").read_bytes()


@pytest.mark.parametrize("odd", [0, 3, 4, 9])
def test_texts_that_are_not_all_ids_behind_a_prefix_are_kept_whole(odd: int) -> None:
    ids = [f"v{n}" for n in range(10)]
    uris = [f"s3://x/{name}{'#' * (n == odd)}" for n, name in enumerate(ids)]
    beside = columns.made_of(pa.string(), [pa.array(ids)]).column
    assert isinstance(beside, Texts)
    pieces = [pa.array(uris[:4]), pa.array(uris[4:])]
    made = columns.made_of(pa.string(), pieces, beside=beside).column
    assert not isinstance(made, Prefixed)
    assert columns.values_of(made, np.arange(10)) == uris


def test_rows_are_chosen_by_place_slice_and_word() -> None:
    rows: Any = CATALOG.rows
    every = tuple(rows)
    assert rows[3:9][2] == every[5]
    assert rows[-1] == every[-1]
    assert rows.where(rows.has("split", "test")) == [row for row in every if row.split == "test"]
    assert rows.where(rows.usable) == [row for row in every if row.error is None]
    assert rows.names("group") == tuple(sorted({row.group for row in every}))
    assert rows.groups == len({row.group for row in every} - {""})
    assert Rows.of(every) == rows
    with pytest.raises(KeyError):
        ById(rows)["nobody"]


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 500)), max_size=20))
def test_keyframes_are_found_for_many_clips_as_for_one(asked: list[tuple[int, int]]) -> None:
    view = CATALOG.view(None)
    videos = np.array([video % len(view) for video, _ in asked], np.int64)
    frames = np.array([frame for _, frame in asked], np.int64)
    for video, frame, place in zip(videos.tolist(), frames.tolist(), view.keyframe_before(videos, frames), strict=True):
        seek = Seek()
        assert seek_to(view.rows[video], frame, seek) == (place >= 0)
        if place >= 0:
            assert seek.frame_index == view.keyframes("keyframe_frame")[place]
            assert seek.pts == view.keyframes("keyframe_pts")[place]
