"""What people call records: kept beside them, of each version, and not needed to read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from essp_common.objects.directory import DirectoryStore
from essp_common.records.chunk import Record
from essp_common.records.names import RecordNames
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet, RecordFile, Version
from essp_common.records.writer import Writer


def write(data_set: DataSet, names: list[str]) -> None:
    with Writer(data_set, (), append=bool(data_set.versions()), file_bytes=150) as writer:
        for name in names:
            writer.add(Record(b"x" * 20, -1), name)


@pytest.fixture
def data_set(tmp_path: Path) -> DataSet:
    return DataSet(DirectoryStore.from_url(tmp_path.as_uri()))


def names(data_set: DataSet, number: int | None = None) -> list[str]:
    version = data_set.version(number)[1]
    found = RecordNames(data_set, version)
    return [found[key] for key in range(version.next_key + 1)]


def test_each_record_has_the_name_that_it_was_written_with(data_set: DataSet) -> None:
    first, second = [f"cat/{number} \u00e9.png" for number in range(7)], ["b.png", "", "c.png"]
    write(data_set, first)
    assert len(data_set.version()[1].files) > 2
    write(data_set, second)
    data_set.delete([range(2)])
    assert names(data_set, 1) == [*first, ""], "and no record that there is not has one"
    assert names(data_set) == [*first, *second, ""]


@pytest.mark.parametrize(
    "damage", [None, b"", b"{", b"\xff", b"{}", b'["a"]', b"[1, 2, 3]", pytest.param(b"[" * 10**5, id="deep")]
)
def test_records_are_whole_without_names(data_set: DataSet, damage: bytes | None) -> None:
    write(data_set, ["a", "b", "c"])
    version = data_set.version()[1]
    for file in version.files:
        if damage is None:
            data_set.store.delete(file.names_key)
        else:
            data_set.store.put(file.names_key, damage)
    assert [name for name in names(data_set) if name] in ([], ["a"] * sum(file.records == 1 for file in version.files))
    assert len(RecordReader(data_set)) == 3


class Counted(tuple[RecordFile, ...]):
    """Files that count how many of them were gone through."""

    seen = 0

    def __iter__(self) -> Iterator[RecordFile]:
        for file in super().__iter__():
            Counted.seen += 1
            yield file


def test_a_name_among_many_files_is_found_at_once(data_set: DataSet) -> None:
    file = RecordFile(name="0" * 32, sha256="0" * 64, bytes=1, records=2, first_key=0)
    files = tuple(file.model_copy(update={"first_key": 2 * number}) for number in range(2000))
    found = RecordNames(data_set, Version.model_construct(files=Counted(files)))
    assert {found[key] for key in range(-2, 4002, 7)} == {""}
    assert Counted.seen <= len(files)


def test_records_without_names_have_no_file_of_them(data_set: DataSet) -> None:
    write(data_set, ["", ""])
    assert [info.key for info in data_set.store.list("records/") if info.key.endswith(".names")] == []
    assert names(data_set) == ["", "", ""]
