"""What a killed build leaves can be told from what a running one has, and from all that a version names."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_common.errors import Conflict, NotFound, PermanentError
from essp_common.objects.directory import DirectoryStore
from essp_common.records import writer as writer_module
from essp_common.records.chunk import Record
from essp_common.records.orphans import Orphans, orphans
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet
from essp_common.records.writer import Writer

HOUR_S = 3600.0
RECORD = Record(b"x" * 400, -1)


class Clock:
    """The time at which files are written, in place of the machine's."""

    def __init__(self) -> None:
        self.s = 1e9

    def time_ns(self) -> int:
        return int(self.s * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(writer_module, "time", clock)
    return clock


@pytest.fixture
def data_set(tmp_path: Path, clock: Clock) -> DataSet:
    """With one version."""
    found = DataSet(DirectoryStore.from_url(tmp_path.as_uri()))
    with Writer(found, ()) as writer:
        writer.add(RECORD)
    return found


def begun(data_set: DataSet, files: int) -> Writer:
    """A build that has written so many files and no version."""
    writer = Writer(data_set, (), append=True, file_bytes=1)
    for _ in range(files + 1):
        writer.add(RECORD)
    return writer


def files(data_set: DataSet) -> set[str]:
    return {info.key for info in data_set.store.list("records/")}


def test_files_of_a_build_are_left_over_once_it_has_written_none_for_long(data_set: DataSet, clock: Clock) -> None:
    named = files(data_set)
    begun(data_set, 3)
    left = files(data_set) - named
    assert len(left) == 3
    assert orphans(data_set, clock.s + HOUR_S / 2, HOUR_S) == Orphans((), 0, 3)
    found = orphans(data_set, clock.s + 2 * HOUR_S, HOUR_S)
    assert set(found.keys) == left
    assert found.bytes == sum(data_set.store.head(key).size_bytes for key in left)
    assert found.alive == 0


def test_the_newest_file_of_a_build_keeps_the_older_ones(data_set: DataSet, clock: Clock) -> None:
    running, dead = begun(data_set, 1), begun(data_set, 2)
    clock.s += 10 * HOUR_S
    running.add(RECORD)
    found = orphans(data_set, clock.s, HOUR_S)
    assert (len(found.keys), found.alive) == (2, 2)
    for key in found.keys:
        data_set.store.delete(key)
    assert running.commit() == 2
    assert len(RecordReader(data_set)) == 4
    with pytest.raises(Conflict, match="was removed while this build was running"):
        dead.commit()
    assert data_set.versions() == [1, 2]


def test_names_of_records_are_left_over_and_stay_with_them(data_set: DataSet, clock: Clock) -> None:
    with Writer(data_set, (), append=True) as writer:
        writer.add(RECORD, "a.png")
    assert [key for key in files(data_set) if key.endswith(".names")] != []
    assert orphans(data_set, clock.s + 1e6, 0) == Orphans((), 0, 0)
    killed = Writer(data_set, (), append=True, file_bytes=1)
    before = files(data_set)
    for name in ("b.png", "c.png"):
        killed.add(RECORD, name)
    left = files(data_set) - before
    assert {key[-6:] for key in left} == {"ecords", ".names"}
    assert set(orphans(data_set, clock.s + 1e6, 0).keys) == left
    killed.discard()
    assert files(data_set) == before


def test_what_any_version_names_and_what_is_of_no_build_stays(data_set: DataSet, clock: Clock) -> None:
    begun(data_set, 1).commit()
    data_set.delete([range(3)])
    data_set.store.put("records/notes.txt", b"mine")
    data_set.store.put("records/" + 32 * "x" + ".records", b"mine")
    assert orphans(data_set, clock.s + 1e6, 0) == Orphans((), 0, 0)


def test_without_knowing_all_versions_nothing_is_left_over(data_set: DataSet, tmp_path: Path, clock: Clock) -> None:
    begun(data_set, 1)
    data_set.store.put("versions/0000000002.json", b"{")
    with pytest.raises(PermanentError, match=r"0000000002.json is damaged"):
        orphans(data_set, clock.s + 1e6, 0)
    with pytest.raises(NotFound, match="holds no records"):
        orphans(DataSet(DirectoryStore.from_url((tmp_path / "nowhere").as_uri())), clock.s, 0)


def test_files_of_one_moment_have_names_of_their_own(data_set: DataSet) -> None:
    assert len({file.name for file in begun(data_set, 50)._files}) == 50
