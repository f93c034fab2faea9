"""A table whose bytes were damaged is refused; none is read as other values."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.artifacts import scores
from essp_common.artifacts.predictions import Prediction, read_predictions, write_predictions
from essp_common.artifacts.segments import Segment, read_segments, write_segments
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import read_catalog, write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import EsspError, PermanentError
from essp_common.objects import tables
from essp_common.objects.directory import DirectoryStore
from tests.harness.finished_job import score_table

TABLE = pa.table({"name": [f"v{n * 7919 % 101}" for n in range(100)], "score": [n / 7 for n in range(100)]})
DATA = tables.packed(TABLE.schema, [TABLE])
FOOTER = len(DATA) - 8 - int.from_bytes(DATA[-8:-4], "little")
ROWS = tuple(
    VideoRow(f"v{n}", f"file:///v{n}.mp4", f"c{n % 2}", "train", 1, "e", width=8, height=8, frame_count=9, last_frame=8)
    for n in range(20)
)


def test_what_is_packed_is_unpacked() -> None:
    assert tables.unpacked(DATA).equals(TABLE)
    assert tables.unpacked(tables.packed(TABLE.schema, [TABLE.slice(0, 40), TABLE.slice(40)])).equals(TABLE)


@pytest.fixture
def threads_of_pyarrow() -> Iterator[None]:
    """As many as on a machine of some cores."""
    before = pa.cpu_count()
    pa.set_cpu_count(4)
    yield
    pa.set_cpu_count(before)


@pytest.mark.usefixtures("threads_of_pyarrow")
def test_no_thread_of_pyarrow_gives_back_what_a_table_lay_in() -> None:
    """One that does so while Python is leaving aborts the process. Without care it is some tables in a hundred."""
    wide = pa.table({f"column {number}": np.arange(200) for number in range(8)})
    data = tables.packed(wide.schema, [wide])
    givers = set()
    watched = []
    for _ in range(500):
        memory = np.frombuffer(data, np.uint8).copy()
        watched.append(weakref.ref(memory, lambda _: givers.add(threading.get_ident())))
        with tables.opened(pa.BufferReader(memory)) as file:
            del memory
            tables.read(file)
        del file
    assert givers == {threading.get_ident()}


@pytest.mark.parametrize("bit", [0, 5])
def test_a_bit_that_flipped_is_found_wherever_values_lie(bit: int) -> None:
    for place in range(4, FOOTER):
        damaged = bytearray(DATA)
        damaged[place] ^= 1 << bit
        try:
            table = tables.unpacked(bytes(damaged))
        except tables.UNREADABLE:
            continue
        assert table.equals(TABLE), f"byte {place} was changed, and nobody noticed"


def artefacts(store: DirectoryStore) -> dict[str, object]:
    """One of each kind that is kept as Parquet: its key, and how it is read."""
    write_catalog(store, "catalog", Catalog(ROWS))
    scores.write(store, "scores", score_table("rgb", "test"))
    write_predictions(store, "predictions", [[Prediction("v", "a", 2, (0.25, 0.75), None)] * 3], ["a", "b"])
    write_segments(store, "segments", [[Segment("v", "a", 0, 5, 0.5)] * 3])
    return {
        "catalog": lambda: read_catalog(store, "catalog"),
        "scores": lambda: scores.read(store, "scores"),
        "predictions": lambda: read_predictions(store, "predictions"),
        "segments": lambda: read_segments(store, "segments"),
    }


@given(data=st.data())
def test_a_damaged_artefact_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    store = DirectoryStore(str(tmp_path_factory.mktemp("store")))
    for key, read in artefacts(store).items():
        assert callable(read)
        whole = bytearray(store.get(key))
        for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=3)):
            whole[place] ^= data.draw(st.integers(1, 255))
        store.put(key, bytes(whole[: data.draw(st.sampled_from([len(whole), len(whole), 0, 4, 12, len(whole) // 2]))]))
        with suppress(EsspError):
            read()


@pytest.mark.parametrize("column", ["id", "width", "keyframe_frame"])
def test_a_damaged_head_of_a_page_is_read_or_refused(tmp_path: Path, column: str) -> None:
    """Only the values of a page have a checksum: its head may say that there are fewer of them."""
    store = DirectoryStore(str(tmp_path))
    read = artefacts(store)["catalog"]
    assert callable(read)
    whole = store.get("catalog")
    group = pq.ParquetFile(pa.BufferReader(whole)).metadata.row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    begin = next(chunk.data_page_offset for chunk in chunks if chunk.path_in_schema.startswith(column))
    for place in range(begin, begin + 40):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        store.put("catalog", bytes(damaged))
        with suppress(EsspError):
            read()


def refusal(store: DirectoryStore, kind: str, name: str, column: Any) -> str:
    """What is said of a table with another column in place of one of its own; None: without it."""
    read = artefacts(store)[kind]
    table = tables.unpacked(store.get(kind))
    place = table.column_names.index(name)
    table = table.remove_column(place) if column is None else table.set_column(place, name, column)
    store.put(kind, tables.packed(table.schema, [table]))
    assert callable(read)
    with pytest.raises(PermanentError, match=re.escape(store.uri(kind))) as caught:
        read()
    assert "\n" not in str(caught.value)
    return str(caught.value)


FILLED = {
    "scores": ("video_id", "class_id", "clip_index", "scores"),
    "predictions": ("video_id", "clips", "scores"),
    "segments": ("video_id", "class_name", "first_frame", "last_frame", "score"),
}
"""The columns that have a value in every row."""


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in FILLED.items() for name in names])
def test_a_column_that_is_missing_or_lacks_a_value_is_named(tmp_path: Path, kind: str, name: str) -> None:
    store = DirectoryStore(str(tmp_path))
    artefacts(store)
    column = tables.unpacked(store.get(kind)).column(name)
    holes = pa.array([None, *column.to_pylist()[1:]], column.type)
    assert f"column {name} lacks a value in some row" in refusal(store, kind, name, holes)
    assert name in refusal(store, kind, name, None)


ROWS_OF_SCORES = len(score_table("rgb", "test"))


@pytest.mark.parametrize(
    ("kind", "name", "value", "said"),
    [
        ("scores", "class_id", "x", "column class_id: Failed to parse string"),
        ("scores", "class_id", 4, "class_id is not one of 4 classes"),
        ("scores", "class_id", -2, "class_id is not one of 4 classes"),
        ("scores", "scores", 0.5, "column scores holds double, not as many numbers in each row"),
        ("scores", "scores", [0.5] * 4, "column scores holds list"),
        ("predictions", "scores", [float("nan")] * 2, "column scores lacks a value in some row"),
        ("segments", "score", float("inf"), "column score lacks a value in some row"),
        ("segments", "first_frame", 0.5, "column first_frame: Float value 0.5"),
    ],
)
def test_a_column_of_other_values_is_named(tmp_path: Path, kind: str, name: str, value: object, said: str) -> None:
    rows = ROWS_OF_SCORES if kind == "scores" else 3
    assert said in refusal(DirectoryStore(str(tmp_path)), kind, name, pa.array([value] * rows))


@pytest.mark.parametrize("odd", [float("nan"), float("-inf"), -0.5, 99.0])
def test_what_is_no_probability_is_no_score(tmp_path: Path, odd: float) -> None:
    scores_of_rows = np.full((ROWS_OF_SCORES, 4), 0.25, np.float32)
    scores_of_rows[-1, 1] = odd
    column = pa.FixedSizeListArray.from_arrays(pa.array(scores_of_rows.reshape(-1)), 4)
    refusal(DirectoryStore(str(tmp_path)), "scores", "scores", column)


@pytest.mark.parametrize("said", [b'"abcd"', b"{}", b"[1, 2, 3, 4]", b'["a", "a", "b", "c"]', b"null", b"[" * 100_000])
@pytest.mark.parametrize("kind", ["scores", "predictions"])
def test_classes_are_a_list_of_different_names(tmp_path: Path, kind: str, said: bytes) -> None:
    store = DirectoryStore(str(tmp_path))
    read = artefacts(store)[kind]
    table = tables.unpacked(store.get(kind)).replace_schema_metadata({b"essp.classes": said})
    store.put(kind, tables.packed(table.schema, [table]))
    assert callable(read)
    with pytest.raises(PermanentError, match=kind):
        read()


def test_a_column_more_is_left_out(tmp_path: Path) -> None:
    """Another version may have written it."""
    store = DirectoryStore(str(tmp_path))
    for kind, read in list(artefacts(store).items())[1:]:
        table = tables.unpacked(store.get(kind))
        more = table.append_column("newer", pa.nulls(table.num_rows))
        store.put(kind, tables.packed(more.schema, [more]))
        assert callable(read)
        read()


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    reads = artefacts(store)
    odd = pa.table({"video_id": [1], "class_id": ["x"], "clip_index": [None], "scores": [3.5]})
    for key, read in reads.items():
        for table in (odd, odd.replace_schema_metadata({b"essp.classes": b"5"}), TABLE):
            store.put(key, tables.packed(table.schema, [table]))
            assert callable(read)
            with pytest.raises(EsspError, match=key):
                read()


COLUMNS = (
    pa.array([1, 2, 3], pa.uint8())[1:],
    pa.array([0.5, -1.0], pa.float32()),
    pa.array([True, False, True])[1:],
    pa.array([1, None]),
    pa.array([True, None]),
    pa.array([], pa.int64()),
    pa.array([], pa.bool_()),
)


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_values_are_those_of_pyarrow(column: pa.Array) -> None:
    values, expected = tables.to_numpy(column), column.to_numpy(zero_copy_only=False)
    np.testing.assert_array_equal(values, expected)
    assert values.dtype == expected.dtype


def test_rows_are_taken_in_any_order() -> None:
    for places in (slice(3, 7), slice(None, None, -2), slice(0, 0)):
        assert tables.taken(TABLE, np.arange(100)[places]).to_pylist() == TABLE.to_pylist()[places]
