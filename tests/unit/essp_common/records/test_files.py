"""Records as files: what was written is read, version by version, and damage costs no more than what it hit."""

from __future__ import annotations

import gc
import itertools
import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from essp_common.errors import BadFrames, ConfigError, Conflict, NotFound, PermanentError, StorageFull
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo
from essp_common.records.chunk import ENTRY, HEADER_BYTES, DamagedChunk, Encoding, Record, pack, read_table
from essp_common.records.reader import GAP_BYTES, REQUEST_BYTES, RecordReader, runs, verify
from essp_common.records.versions import DataSet
from essp_common.records.writer import Writer
from tests.harness.waiting import LONGEST_S

CLASSES = ("cat", "dog")


def made(number: int) -> Record:
    """A record whose bytes, size and label depend on its number."""
    return Record(bytes([number % 256]) * (number % 7 + 1), number % 2)


def build(store: DirectoryStore, numbers: range, append: bool = False, file_bytes: int = 500) -> DataSet:
    data_set = DataSet(store)
    with Writer(data_set, CLASSES, append, file_bytes) as writer:
        for number in numbers:
            writer.add(made(number))
    return data_set


def contents(reader: RecordReader, places: NDArray[np.int64] | None = None) -> dict[int, bytes]:
    """Key -> bytes."""
    places = np.arange(len(reader)) if places is None else places
    return {
        int(reader.table["key"][place]): bytes(data)
        for found, buffers in reader.read(places)
        for place, data in zip(found.tolist(), buffers, strict=True)
    }


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore.from_url(tmp_path.as_uri())


def expected(numbers: range) -> dict[int, bytes]:
    return {number: made(number).data for number in numbers}


def test_what_was_written_is_read(store: DirectoryStore) -> None:
    reader = RecordReader(build(store, range(60)))
    assert len(reader.version.files) > 3
    assert contents(reader) == expected(range(60))
    assert reader.table["label"].tolist() == [number % 2 for number in range(60)]
    some = np.array([3, 4, 40, 59])
    assert contents(reader, some) == {int(place): made(int(place)).data for place in some}
    assert not reader.damaged


def test_images_of_one_size_are_read_into_rows(store: DirectoryStore) -> None:
    images = np.random.default_rng(1).integers(0, 256, (20, 4, 6, 3), np.uint8)
    with Writer(DataSet(store), CLASSES, file_bytes=600) as writer:
        for image in images:
            writer.add(Record.of_image(image, 0))
    reader = RecordReader(DataSet(store))
    assert reader.shape == (4, 6, 3)
    rows = np.empty((3, 72), np.uint8)
    assert reader.read_into(np.array([2, 3, 17]), rows).all()
    assert (rows == images[[2, 3, 17]].reshape(3, -1)).all()


def test_sizes_may_vary(store: DirectoryStore) -> None:
    with Writer(DataSet(store), CLASSES) as writer:
        for side in (3, 5):
            writer.add(Record.of_image(np.zeros((side, side), np.uint8), 1))
    assert RecordReader(DataSet(store)).shape is None


def test_versions_keep_what_they_had(store: DirectoryStore) -> None:
    data_set = build(store, range(20))
    build(store, range(20, 30), append=True)
    assert data_set.delete([range(5, 8)]) == 3
    assert data_set.delete([range(7, 12), range(11, 25)]) == 4
    assert data_set.versions() == [1, 2, 3, 4]
    assert contents(RecordReader(data_set, 1)) == expected(range(20))
    assert contents(RecordReader(data_set, 2)) == expected(range(30))
    assert set(contents(RecordReader(data_set))) == {*range(5), *range(25, 30)}
    assert RecordReader(data_set).version.records == 10
    with pytest.raises(NotFound, match="no version 9; it has 1 to 4"):
        RecordReader(data_set, 9)


def test_classes_of_appended_records_follow_those_before(store: DirectoryStore) -> None:
    build(store, range(4))
    with Writer(DataSet(store), ("bird", "dog"), append=True) as writer:
        assert writer.classes == ("cat", "dog", "bird")
        writer.add(Record(b"x", 2))
    assert RecordReader(DataSet(store)).classes == ("cat", "dog", "bird")


def test_a_second_build_in_one_place_says_what_to_do(store: DirectoryStore) -> None:
    build(store, range(4))
    with pytest.raises(ConfigError, match="has 4 records already; add to them with --append"):
        build(store, range(4))
    with pytest.raises(NotFound, match="essp records build"):
        RecordReader(DataSet(store.below("elsewhere")))
    with pytest.raises(ConfigError, match="no records"):
        build(store.below("elsewhere"), range(0))


def files_in(store: DirectoryStore) -> list[str]:
    return [info.key for info in store.list("records/")]


def test_of_two_writers_at_once_one_makes_the_version(store: DirectoryStore) -> None:
    build(store, range(4))
    first, second = (Writer(DataSet(store), (), append=True) for _ in range(2))
    first.add(made(4))
    assert first.commit() == 2
    with pytest.raises(Conflict, match="written by another process meanwhile"), second:
        second.add(made(5))
    assert contents(RecordReader(DataSet(store))) == expected(range(5))
    assert len(files_in(store)) == 2, "what the second one wrote is gone"


class Full(DirectoryStore):
    """Has room for so many files."""

    room = 2

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        self.room -= 1
        if self.room < 0:
            raise StorageFull("no space left")
        return super().put(key, data, if_absent=if_absent)


def test_a_full_disk_leaves_the_last_version_whole(store: DirectoryStore, tmp_path: Path) -> None:
    build(store, range(20))
    before = files_in(store)
    with pytest.raises(StorageFull):
        build(Full.from_url(tmp_path.as_uri()), range(20, 90), append=True)
    assert contents(RecordReader(DataSet(store))) == expected(range(20))
    assert files_in(store) == before


def spoil(store: DirectoryStore, key: str, place: int) -> None:
    """Change one byte of an object."""
    data = bytearray(store.get(key))
    data[place] ^= 1
    store.put(key, bytes(data))


def test_a_damaged_record_is_left_out_and_named(store: DirectoryStore) -> None:
    data_set = build(store, range(30))
    file = data_set.version()[1].files[1]
    place = file.first_key + 3
    offset = int(RecordReader(data_set).table["offset"][place])
    spoil(store, file.key, offset)
    reader = RecordReader(data_set)
    assert contents(reader) == {key: data for key, data in expected(range(30)).items() if key != place}
    assert reader.damaged == {f"record {place} in {file.key}": "its bytes are damaged"}
    assert {found.name: faults for found, faults in verify(data_set) if faults} == {
        file.name: [f"record {place}: its bytes are damaged"]
    }


@pytest.mark.parametrize("place", [0, 8, 12, 20])
def test_a_file_with_a_damaged_table_is_left_out_and_named(store: DirectoryStore, place: int) -> None:
    data_set = build(store, range(30))
    file = data_set.version()[1].files[1]
    spoil(store, file.key, place)
    reader = RecordReader(data_set)
    rest = [key for key in range(30) if not file.first_key <= key < file.first_key + file.records]
    assert sorted(contents(reader)) == rest
    assert list(reader.damaged) == [file.key]
    assert [found.name for found, faults in verify(data_set) if faults] == [file.name]


def test_a_file_that_is_gone_is_left_out_and_named(store: DirectoryStore) -> None:
    data_set = build(store, range(30))
    late = RecordReader(data_set)
    file = data_set.version()[1].files[0]
    store.delete(file.key)
    for reader in (RecordReader(data_set), late):
        assert sorted(contents(reader)) == list(range(file.records, 30))
        assert list(reader.damaged) == [file.key]
    for file in data_set.version()[1].files[1:]:
        store.delete(file.key)
    with pytest.raises(PermanentError, match="no file of"):
        RecordReader(data_set)


def test_a_damaged_version_is_said_to_be(store: DirectoryStore) -> None:
    build(store, range(3))
    store.put("versions/0000000002.json", b'{"format": 1, "files": [{"name": "x"}]}')
    with pytest.raises(PermanentError, match=r"0000000002.json is damaged: files.0.name"):
        RecordReader(DataSet(store))


@pytest.mark.parametrize("content", [b"{}", b'{"format": 1, "classes": ["a"]}', b'{"files": []}'])
def test_a_version_that_names_no_files_is_damaged_and_not_empty(store: DirectoryStore, content: bytes) -> None:
    build(store, range(3))
    store.put("versions/0000000001.json", content)
    with pytest.raises(PermanentError, match=r"0000000001.json is damaged: it names no files; restore it"):
        RecordReader(DataSet(store))


def test_an_image_that_no_record_can_hold_is_refused() -> None:
    for shape in ((1, 70_000), (70_000, 1, 3), (1, 1, 300)):
        with pytest.raises(BadFrames, match="too many numbers for a record"):
            Record.of_image(np.zeros(shape, np.uint8), 0)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (Record(b"abc", 0, Encoding.RAW, 60_000, 60_000, 3), "sizes that their bytes have not"),
        (Record(b"abc", 0, Encoding.RAW), "sizes that their bytes have not"),
        (Record(b"abc", 2), "labels are not among 2 classes"),
        (Record(b"abc", -2), "labels are not among 2 classes"),
    ],
)
def test_a_table_that_is_whole_and_wrong_is_as_good_as_damaged(store: DirectoryStore, record: Record, why: str) -> None:
    """Its checksums fit: another program wrote it."""
    data_set = build(store, range(30))
    _, version = data_set.version()
    file = version.files[1]
    data = pack([record] * file.records, file.first_key)
    store.put(file.key, data)
    reader = RecordReader(data_set)
    assert why in reader.damaged[file.key]
    assert len(reader) == 30 - file.records
    assert [found.name for found, faults in verify(data_set) if faults] == [file.name]


@pytest.mark.parametrize("keys", [range(0), range(-1, 3), range(5, 31), range(40, 50), range(0, 9, 2)])
def test_keys_that_there_are_not_cannot_be_deleted(store: DirectoryStore, keys: range) -> None:
    data_set = build(store, range(30))
    with pytest.raises(ConfigError, match="are not among 0 to 29"):
        data_set.delete([range(2), keys])
    assert data_set.versions() == [1]


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=20), st.data())
def test_no_change_of_a_file_gives_other_bytes(payloads: list[bytes], data: Any) -> None:
    """It is found, or it hits a record, whose own checksum finds it."""
    file = pack([Record(payload, -1) for payload in payloads], 0)
    changed = bytearray(file)
    changed[data.draw(st.integers(0, len(file) - 1))] ^= data.draw(st.integers(1, 255))
    size = HEADER_BYTES + ENTRY.itemsize * len(payloads)
    try:
        table = read_table(bytes(changed[:16]), bytes(changed[16:size]), len(changed))
    except DamagedChunk:
        return
    assert changed[:size] == file[:size]
    assert [int(table["length"][i]) for i in range(len(payloads))] == [len(payload) for payload in payloads]


@given(st.lists(st.tuples(st.integers(0, 3 * GAP_BYTES), st.integers(1, REQUEST_BYTES)), min_size=1, max_size=30))
def test_requests_ascend_and_have_every_record_once(stretches: list[tuple[int, int]]) -> None:
    at, begins, ends = 0, [], []
    for gap, length in stretches:
        begins.append(at + gap)
        at += gap + length
        ends.append(at)
    found = list(runs(np.array(begins), np.array(ends)))
    assert [i for run in found for i in range(run.first, run.last)] == list(range(len(stretches)))
    for run in found:
        assert (run.begin, run.end) == (begins[run.first], ends[run.last - 1])
        assert run.end - run.begin <= REQUEST_BYTES or run.last - run.first == 1
    assert all(one.end <= two.begin for one, two in itertools.pairwise(found))


def test_reading_many_records_does_not_set_off_the_garbage_collector(store: DirectoryStore) -> None:
    """It would look at all objects of a training, and after a fork copy them, which takes longer than reading."""
    reader = RecordReader(build(store, range(8000), file_bytes=10**6))
    rows = np.empty((4000, 8), np.uint8)
    same_length = np.flatnonzero(reader.table["length"] == 5)
    before = gc.get_stats()[0]["collections"]
    good = reader.read_into(same_length, rows[: len(same_length), :5])
    assert good.all()
    assert len(same_length) > 1000
    assert gc.get_stats()[0]["collections"] - before <= 1


class Traced(DirectoryStore):
    """Far away, and knows what was read."""

    trace: ClassVar[list[tuple[str, int]]] = []

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.trace.append((key, start))
        return super().get(key, start, length)

    def local_path(self, key: str) -> str | None:
        return None


def test_a_pass_reads_each_file_once_from_its_beginning(store: DirectoryStore, tmp_path: Path) -> None:
    build(store, range(300), file_bytes=2000)
    reader = RecordReader(DataSet(Traced.from_url(tmp_path.as_uri())))
    Traced.trace.clear()
    contents(reader, np.arange(1, 300, 3))
    assert [key for key, _ in Traced.trace] == [file.key for file in reader.version.files], "one seek a file"


FAR_BYTES = 40_000


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> RecordReader:
    """Sixty large records in a few files of this machine."""
    data_set = DataSet(DirectoryStore(str(tmp_path_factory.mktemp("far"))))
    with Writer(data_set, (), file_bytes=2**20) as writer:
        for number in range(60):
            writer.add(Record(bytes([number]) * FAR_BYTES, -1))
    return RecordReader(data_set)


@given(places=st.sets(st.integers(0, 59), min_size=1))
def test_files_of_this_machine_are_read_record_by_record(far: RecordReader, places: set[int]) -> None:
    """What is read is what is wanted, however far apart it is."""
    before = far.store_bytes
    assert contents(far, np.array(sorted(places))) == {place: bytes([place]) * FAR_BYTES for place in places}
    assert far.store_bytes - before == FAR_BYTES * len(places)


def test_requests_of_a_pass_ascend_and_a_dense_one_seeks_once_a_file(store: DirectoryStore, tmp_path: Path) -> None:
    """The read trace of pieces, whatever their size."""
    build(store, range(300), file_bytes=2000)
    reader = RecordReader(DataSet(Traced.from_url(tmp_path.as_uri())))
    keys = [file.key for file in reader.version.files]
    for size in (1, 5, 50, 300):
        Traced.trace.clear()
        contents(reader, np.sort(np.random.default_rng(size).permutation(300)[:size]))
        asked = [(keys.index(key), start) for key, start in Traced.trace]
        assert asked == sorted(asked)
        assert len(asked) <= len(keys)


def test_several_requests_to_a_store_are_under_way(store: DirectoryStore, tmp_path: Path) -> None:
    """And their answers come in the order of the file."""
    images = [bytes([number]) * (GAP_BYTES // 3) for number in range(12)]
    with Writer(DataSet(store), CLASSES) as writer:
        for image in images:
            writer.add(Record(image, 0))
    reader = RecordReader(DataSet(Meeting.from_url(tmp_path.as_uri())))
    wanted = np.array([0, 5, 10])
    assert contents(reader, wanted) == {int(place): images[place] for place in wanted}


class Meeting(Traced):
    """Its answers come three at a time or not at all."""

    barrier = threading.Barrier(3, timeout=LONGEST_S)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if key.startswith("records/") and start:
            self.barrier.wait()
        return super().get(key, start, length)
