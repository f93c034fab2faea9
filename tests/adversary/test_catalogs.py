"""Any catalog is read or refused by its row and column, and a job on it starts or is refused: the master lives."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.catalog import schema
from essp_common.catalog.file import read_catalog
from essp_common.errors import EsspError
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.objects.directory import DirectoryStore
from essp_common.wiring import Adapters
from essp_master.service import Master
from tests.adversary.storms import ODD_TEXTS, damaged, storm
from tests.harness.fleet import Fleet, adapters_in, make_job, master_over, run_to_rest
from tests.harness.waiting import until

CATALOG = "catalog.parquet"
SINGLE_TYPES = (
    *(pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary()),
    *(pa.large_string(), pa.date32(), pa.timestamp("us", "UTC"), pa.duration("s"), pa.decimal128(20, 3), pa.null()),
    *(pa.list_(pa.int64()), pa.list_(pa.string()), pa.large_list(pa.int64()), pa.struct([("a", pa.int64())])),
    *(pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.list_(pa.int64()))),
)
ODD_INTEGERS = st.sampled_from([0, -1, 1, 7, 59, 60, 2**15, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63)])
ODD_FLOATS = st.floats(width=64)


@dataclass(frozen=True)
class Place:
    """A master with a fleet, a sound job, and a place for other catalogs."""

    folder: Path
    adapters: Adapters
    master: Master
    job: JobSpec
    store: DirectoryStore

    def job_on(self, key: str) -> JobSpec:
        """A job on another catalog."""
        data = self.job.data.model_copy(update={"catalog": self.store.uri(key)})
        update = {"name": "odd", "output": f"file://{self.folder}/odd", "data": data}
        return self.job.model_copy(update=update)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("catalogs")
    with ExitStack() as opened:
        adapters = opened.enter_context(closing(adapters_in(folder)))
        job = make_job(folder)
        yield Place(folder, adapters, master_over(adapters), job, DirectoryStore(str(folder)))


@pytest.fixture(scope="module")
def sound(place: Place) -> Any:
    """The catalog that the odd ones are made of."""
    return pq.read_table(place.folder / CATALOG)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values that a column of this type can hold, and nulls."""
    if pa.types.is_list(kind):
        return st.none() | st.lists(ODD_INTEGERS | st.none(), max_size=4)
    if pa.types.is_boolean(kind):
        return st.none() | st.booleans()
    if pa.types.is_floating(kind):
        return st.none() | ODD_FLOATS
    if pa.types.is_integer(kind):
        bits = kind.bit_width
        return st.none() | ODD_INTEGERS.filter(lambda value: -(2 ** (bits - 1)) <= value < 2 ** (bits - 1))
    if pa.types.is_binary(kind):
        return st.none() | st.binary(max_size=40)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return st.none() | ODD_TEXTS.map(lambda text: text.encode("utf-8", "replace").decode())
    return st.none()


@st.composite
def columns_changed(draw: st.DrawFn, sound: Any) -> Any:
    """A catalog in which one or two columns hold other values, are of another type, or are not there."""
    result = sound
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(result.column_names))
        place = result.column_names.index(name)
        match draw(st.sampled_from(["value", "value", "value", "values", "type", "remove", "twice", "rename", "rows"])):
            case "value" | "values":
                kind = result.schema.field(place).type
                held = result.column(place).to_pylist()
                for row in draw(st.lists(st.integers(0, max(0, len(held) - 1)), min_size=1, max_size=3)):
                    held[row : row + 1] = [draw(values_of(kind))]
                result = result.set_column(place, result.schema.field(place), pa.array(held[: len(result)], kind))
            case "type":
                kind = draw(st.sampled_from(SINGLE_TYPES))
                result = result.set_column(place, name, pa.nulls(len(result), kind))
            case "remove":
                result = result.remove_column(place)  # by its place: there may be two of the name
            case "twice":
                result = result.append_column(name, result.column(place))
            case "rename":
                renamed = [draw(ODD_TEXTS.map(lambda t: t.encode("utf-8", "replace").decode() or "x"))]
                result = result.rename_columns(
                    [*result.column_names[:place], *renamed, *result.column_names[place + 1 :]]
                )
            case "rows":
                result = result.slice(0, draw(st.integers(0, 3)))
    return result


def try_it(place: Place, data: bytes) -> None:
    """Read it, and have the master start a job on it: accepted or refused, by both alike if by the reader."""
    place.store.put("odd.parquet", data)
    refused = ""
    try:
        read_catalog(place.store, "odd.parquet")
    except EsspError as error:
        refused = str(error)
        assert "odd.parquet" in refused
    job = place.job_on("odd.parquet")
    try:
        status = place.master.start(job, fresh=True)
    except EsspError:
        assert "odd" not in [summary.name for summary in place.master.jobs() if not summary.state.ended]
    else:
        assert not refused
        assert status.state is JobState.RUNNING
        place.master.step(0)
        assert place.master.status("odd").state is JobState.RUNNING, place.master.status("odd").reason
        place.master.stop("odd")
    place.master.step(0)


def parquet(content: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(content, buffer, compression="zstd")
    return buffer.getvalue()


@given(data=st.data())
@storm(50)
def test_a_catalog_with_odd_columns_is_read_or_refused(place: Place, sound: Any, data: st.DataObject) -> None:
    try_it(place, parquet(data.draw(columns_changed(sound))))


@given(data=st.data())
@storm(50)
def test_a_damaged_catalog_is_read_or_refused(place: Place, data: st.DataObject) -> None:
    try_it(place, data.draw(damaged((place.folder / CATALOG).read_bytes())))


@given(
    content=st.dictionaries(st.sampled_from(["id", "uri", "x", ""]), st.lists(st.integers(), max_size=0), max_size=3)
)
@storm(10)
def test_a_parquet_file_of_something_else_is_refused(place: Place, content: dict[str, list[int]]) -> None:
    try_it(place, parquet(pa.table(content).replace_schema_metadata({schema.VERSION_KEY: schema.VERSION.encode()})))


def test_after_the_storms_a_job_ends_as_ever(place: Place) -> None:
    with closing(Fleet(place.adapters, place.job)) as fleet:
        place.master.start(place.job)

        def all_is_done() -> bool:
            run_to_rest(place.master, fleet)
            return all(phase.finished for phase in place.master.status(place.job.name).phases)

        until(all_is_done)
        fleet.finish()
        run_to_rest(place.master, fleet)
    status = place.master.status(place.job.name)
    assert status.state is JobState.COMPLETED, status.reason
    assert place.adapters.cache.usage().keys == 0
