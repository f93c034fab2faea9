"""Records on a disk: read from the store once, within a limit, and right whatever the disk holds."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from essp_common.errors import ConfigError
from essp_common.objects.directory import DirectoryStore
from essp_common.records.chunk import Record
from essp_common.records.disk import Disk, Room
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet
from essp_common.records.writer import Writer

RECORDS, RECORD_BYTES, A_FILE = 40, 1000, 10
WHOLE = 2**30


def build(folder: Path, offset: int = 0, append: bool = False) -> DataSet:
    """Four files of ten records each."""
    data_set = DataSet(DirectoryStore(str(folder)))
    with Writer(data_set, (), append, file_bytes=A_FILE * (RECORD_BYTES + 60)) as writer:
        for number in range(RECORDS):
            writer.add(Record(bytes([number + offset]) * RECORD_BYTES, -1))
    return data_set


class Counting(DirectoryStore):
    """Far away, and knows which files were read."""

    def __init__(self, root: str, *rest: Any) -> None:
        super().__init__(root, *rest)
        self.read: list[str] = []

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.read.append(key)
        return super().get(key, start, length)

    def local_path(self, key: str) -> str | None:
        return None


class Reading:
    """A reader, and what it gets from where."""

    def __init__(self, source: Path, folder: Path, limit_bytes: int = WHOLE, number: int | None = None) -> None:
        self.store = Counting(str(source))
        self.reader = RecordReader(DataSet(self.store), number, Room(str(folder), limit_bytes))

    def fetched(self, places: NDArray[np.int64] | None = None, offset: int = 0) -> list[str]:
        """Which files were asked of the store, after each record was compared with what was written."""
        places = np.arange(len(self.reader)) if places is None else places
        self.store.read.clear()
        found = {
            place: bytes(data)
            for some, buffers in self.reader.read(places)
            for place, data in zip(some.tolist(), buffers, strict=True)
        }
        assert found == {place: bytes([place + offset]) * RECORD_BYTES for place in places.tolist()}
        return self.store.read.copy()


def held_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    build(folder)
    return folder


def test_what_fits_is_read_from_the_store_once(source: Path, tmp_path: Path) -> None:
    first = Reading(source, tmp_path)
    assert len(first.fetched()) == 4
    assert first.fetched() == []
    assert first.reader.store_bytes >= RECORDS * RECORD_BYTES
    assert first.reader.disk_bytes == RECORDS * RECORD_BYTES
    assert Reading(source, tmp_path).fetched() == [], "of a later training, or another process"


def test_gaps_that_were_read_are_kept(source: Path, tmp_path: Path) -> None:
    reading = Reading(source, tmp_path)
    assert len(reading.fetched(np.array([0, 9]))) == 1
    assert reading.fetched(np.arange(A_FILE)) == []
    assert len(reading.fetched(np.array([14]))) == 1
    assert len(reading.fetched(np.array([13, 14]))) == 1, "the one beside it was not read"


def test_a_set_that_is_too_large_has_its_share_all_the_time(source: Path, tmp_path: Path) -> None:
    limit = 2 * A_FILE * (RECORD_BYTES + 50) + 5 * RECORD_BYTES
    reading = Reading(source, tmp_path, limit)
    files = [file.key for file in reading.reader.version.files]
    reading.fetched()
    for _ in range(3):
        assert reading.fetched() == files[2:]
        assert held_bytes(tmp_path) <= limit
    assert Reading(source, tmp_path, 10).fetched() == files[2:], "who reads it has it as long as it reads"
    del reading
    gc.collect()
    smaller = Reading(source, tmp_path, A_FILE * (RECORD_BYTES + 50))
    assert smaller.fetched() == files[1:]
    assert held_bytes(tmp_path) <= A_FILE * (RECORD_BYTES + 50)
    larger = Reading(source, tmp_path)
    assert larger.fetched() == files[1:]
    assert larger.fetched() == []


def test_data_sets_share_the_room(source: Path, tmp_path: Path) -> None:
    build(tmp_path / "other", 100)
    folder, limit = tmp_path / "kept", int(1.5 * RECORDS * (RECORD_BYTES + 50))
    used = Reading(source, folder, limit)
    used.fetched()
    other = Reading(tmp_path / "other", folder, limit)
    other.fetched(offset=100)
    assert used.fetched() == []
    assert len(other.fetched(offset=100)) == 2, "half of it is there"
    assert held_bytes(folder) <= limit
    del used
    gc.collect()
    again = Reading(tmp_path / "other", folder, limit)
    again.fetched(offset=100)
    assert again.fetched(offset=100) == [], "nobody reads the first one any more"
    assert held_bytes(folder) <= limit
    assert len(Reading(source, folder, limit).fetched()) == 4


def test_versions_share_what_they_have_in_common(tmp_path: Path) -> None:
    build(tmp_path / "source")
    folder = tmp_path / "kept"
    first = Reading(tmp_path / "source", folder)
    first.fetched()
    build(tmp_path / "source", RECORDS, append=True)
    second = Reading(tmp_path / "source", folder)
    assert len(second.fetched()) == 4
    assert first.fetched() == second.fetched() == []


def test_records_that_were_deleted_do_not_matter(tmp_path: Path) -> None:
    data_set = build(tmp_path / "source")
    data_set.delete([range(35, 40), range(12, 15)])
    old = Reading(tmp_path / "source", tmp_path / "kept", number=1)
    new = RecordReader(DataSet(Counting(str(tmp_path / "source"))), None, Room(str(tmp_path / "kept"), WHOLE))
    assert sum(len(some) for some, _ in new.read(np.arange(len(new)))) == 32
    assert old.fetched(np.arange(10, 20)) == [], "they lie between others"
    assert len(old.fetched()) == 1


def test_a_set_that_was_made_anew_is_read_anew(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "kept"
    build(source)
    Reading(source, folder).fetched()
    gc.collect()
    for path in source.rglob("*.*"):
        path.unlink()
    build(source, 50)
    reading = Reading(source, folder)
    assert len(reading.fetched(offset=50)) == 4
    assert held_bytes(folder) <= RECORDS * (RECORD_BYTES + 50), "the former ones are gone"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_the_disk_holds_records_are_right(source: Path, tmp_path: Path, data: Any) -> None:
    """Kills, power cuts, other programs and bad disks: any part of any copy may be lost or changed."""
    reading = Reading(source, tmp_path)
    for _ in range(data.draw(st.integers(1, 4))):
        places = data.draw(st.sets(st.integers(0, RECORDS - 1), min_size=1))
        reading.fetched(np.array(sorted(places)))
        copies = sorted(path for path in tmp_path.rglob("*") if len(path.name) == 64)
        for path in data.draw(st.lists(st.sampled_from(copies), max_size=3)) if copies else ():
            spoil(path, data)
    reading.fetched()


def spoil(path: Path, data: Any) -> None:
    what = data.draw(st.sampled_from(["bytes", "marks", "cut", "gone"]))
    if not path.exists() or what == "gone":
        path.unlink(missing_ok=True)
    elif what == "cut":
        os.truncate(path, data.draw(st.integers(0, path.stat().st_size)))
    else:
        content = bytearray(path.read_bytes())
        stop = A_FILE if what == "marks" else len(content)
        for at in data.draw(st.lists(st.integers(0, max(0, min(stop, len(content)) - 1)), max_size=5)):
            if at < len(content):
                content[at] = data.draw(st.integers(0, 255))
        path.write_bytes(content)


def test_a_copy_that_was_damaged_is_written_again(source: Path, tmp_path: Path) -> None:
    reading = Reading(source, tmp_path)
    reading.fetched()
    [copy, *_] = (path for path in tmp_path.rglob("*") if len(path.name) == 64)
    content = bytearray(copy.read_bytes())
    content[-1] ^= 1
    copy.write_bytes(content)
    assert len(reading.fetched()) == 1
    assert reading.fetched() == []


@pytest.mark.parametrize("cut", [False, True])
def test_a_full_disk_is_said_once_and_reading_goes_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cut: bool
) -> None:
    reading = Reading(source, tmp_path)
    reading.fetched(np.arange(A_FILE))
    write = os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if not cut:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:7], offset)

    monkeypatch.setattr(os, "pwrite", full)
    for _ in range(2):
        assert len(reading.fetched()) == 3, "what is there is used"
    assert [one for one in caplog.messages if "No space left" in one] == caplog.messages
    assert len(caplog.messages) == 1


def test_a_disk_that_fails_is_said_once_and_reading_goes_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reading = Reading(source, tmp_path)
    reading.fetched()

    def fails(*_: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fails)
    for _ in range(2):
        assert len(reading.fetched()) == 4
    assert len(caplog.messages) == 1


def test_damage_in_the_store_is_named_as_ever(tmp_path: Path) -> None:
    source = tmp_path / "source"
    build(source)
    place = int(RecordReader(DataSet(DirectoryStore(str(source)))).table["offset"][3])
    path = min((source / "records").iterdir(), key=lambda path: path.read_bytes()[-1])
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    reader = RecordReader(DataSet(DirectoryStore(str(source))), None, Room(str(tmp_path / "kept"), WHOLE))
    for _ in range(2):
        assert sum(len(some) for some, _ in reader.read(np.arange(RECORDS))) == RECORDS - 1
    assert list(reader.damaged.values()) == ["its bytes are damaged"]


def test_folders_that_cannot_be_used_are_named(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/in: records cannot be kept there: Not a directory; name another"):
        Reading(source, tmp_path / "file" / "in")
    if os.getuid() == 0:  # who may use any folder
        os.chown(tmp_path, 4321, -1)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(ConfigError, match="belongs to another user"):
        Reading(source, tmp_path)


def test_a_disk_that_is_full_from_the_beginning_costs_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Disk, "_give_room", full)
    reading = Reading(source, tmp_path)
    assert len(reading.fetched()) == len(reading.fetched()) == 4
    assert len(caplog.messages) == 1


def _reads(source: Path, folder: Path, limit_bytes: int, ready: Connection) -> None:
    reading = Reading(source, folder, limit_bytes)
    reading.fetched()
    ready.send(None)
    signal.pause()


@pytest.mark.processes
def test_a_killed_process_leaves_what_it_has_read_and_no_claim(source: Path, tmp_path: Path) -> None:
    build(tmp_path / "other", 100)
    folder, limit = tmp_path / "kept", RECORDS * (RECORD_BYTES + 50)
    context = multiprocessing.get_context("spawn")
    ready, theirs = context.Pipe()
    child = context.Process(target=_reads, args=(source, folder, limit, theirs))
    child.start()
    theirs.close()
    ready.recv()
    other = Reading(tmp_path / "other", folder, limit)
    assert len(other.fetched(offset=100)) == len(other.fetched(offset=100)) == 4, "the child has all the room"
    child.kill()
    child.join()
    child.close()
    ready.close()
    assert Reading(source, folder, limit).fetched() == []
    gc.collect()
    other = Reading(tmp_path / "other", folder, limit)
    other.fetched(offset=100)
    assert other.fetched(offset=100) == []


def test_what_others_have_put_beside_copies_stays(tmp_path: Path) -> None:
    build(tmp_path / "a")
    build(tmp_path / "b", offset=50)
    kept = tmp_path / "kept"
    Reading(tmp_path / "a", kept)
    gc.collect()
    (of_a,) = kept.glob("*.records")
    (of_a / "notes.txt").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "users").write_text("mine")
    (kept / f"{'0' * 32}.records").symlink_to(tmp_path / "mine")
    Reading(tmp_path / "b", kept, RECORDS * RECORD_BYTES)
    assert {path.name for path in of_a.iterdir()} == {"users", "notes.txt"}, "the copies have made room"
    Reading(tmp_path / "a", kept)
    assert (of_a / "notes.txt").read_text() == (tmp_path / "mine" / "users").read_text() == "mine"
