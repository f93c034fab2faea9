"""Reads records by their place: in one pass over each file, in ascending order of bytes.

The place of a record is its number among the records of a version whose files are readable. From an object store,
wanted records that are close together are read by one request, including gaps, with several requests in flight; from
local files, only the records themselves are read (`local.py`). Damaged records are left out, named in the log and
counted; an unreadable file is reported once.

Records that are cached on a local disk (`disk.py`) are read there, and others are added to it.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from essp_common.errors import NotFound, PermanentError, Unavailable
from essp_common.objects.port import ObjectStore
from essp_common.records import local
from essp_common.records.chunk import ENTRY, HEADER_BYTES, DamagedChunk, Encoding, read_table, table_bytes
from essp_common.records.disk import Copy, Disk, Room
from essp_common.records.versions import DataSet, RecordFile, Version
from essp_common.runtime.forks import Mutex

log = logging.getLogger(__name__)

GAP_BYTES = 512 * 1024
"""Gap between two wanted records below which one store request reads both."""
REQUEST_BYTES = 8 * 2**20
"""Maximum bytes of one request, unless a single record is larger."""
_REQUESTS = 4
"""Simultaneous store requests."""
_TOGETHER_BYTES = 2**20
"""Minimum bytes of records that are checked and returned together."""
_TABLE_GUESS = 256 * 1024
"""Read together with the header, because most tables are shorter."""

Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Run:
    """A byte range of a file that is read by one request, with the wanted records in it."""

    begin: int
    end: int
    first: int
    """Index of the first of those records among the wanted ones."""
    last: int
    """Index after the last one."""


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs of a file, ascending, as lists of numbers.

    Thousands of long-lived objects would trigger Python's garbage collector over the whole process: that takes longer
    than reading, and after a fork it copies all memory.
    """

    begins: list[int]
    ends: list[int]
    bounds: list[int]
    """Run i contains the wanted records from `bounds[i]` to `bounds[i + 1]`; one entry more than runs."""

    def __len__(self) -> int:
        return len(self.begins)

    def __iter__(self) -> Iterator[Run]:
        return map(Run, self.begins, self.ends, self.bounds, self.bounds[1:])


class _Found(NamedTuple):
    """The result of one request."""

    places: NDArray[np.int64]
    data: list[Buffer]
    """The bytes of each."""
    damaged: NDArray[np.int64]
    """Places whose bytes do not match their checksums."""


class _Source(NamedTuple):
    """A source for the bytes of a file."""

    gap_bytes: int
    """Gaps up to this size are read rather than skipped."""
    fetch: Callable[[Runs], Iterator[bytes]]


class RecordReader:
    """The records of one version. Thread-safe."""

    def __init__(self, data_set: DataSet, number: int | None = None, room: Room | None = None) -> None:
        """Read a version (default: the newest), and the tables of its files. Damaged files are left out.

        `room`: where to keep records that were read; default: they are not kept.

        Raises `NotFound`, `PermanentError` for a version without a readable file, and `ConfigError` for an unusable
        room.
        """
        self.store: ObjectStore = data_set.store
        self._where = data_set.where
        self.number, self.version = data_set.version(number)
        self.damaged: dict[str, str] = {}
        """Files and records that cannot be read -> the reason. Grows while records are read."""
        self._lock = Mutex()
        tables, files = [], []
        for position, file in enumerate(self.version.files):
            try:
                table = _table(self.store, file, len(self.version.classes))
            except (DamagedChunk, NotFound) as error:
                self._tell(file.key, str(error))
                continue
            kept = table[~_deleted(table["key"], self.version)]
            tables.append(kept)
            files.append(np.full(len(kept), position, np.int32))
        self.table: NDArray[np.void] = np.concatenate(tables) if tables else np.empty(0, ENTRY)
        """`chunk.ENTRY` of each place."""
        if self.damaged and not len(self.table):
            raise PermanentError(f"no file of {data_set.where} can be read: {next(iter(self.damaged.values()))}")
        self._file = np.concatenate(files) if files else np.empty(0, np.int32)
        self._disk = Disk(room, data_set.where, self.version.files) if room else None
        self.store_bytes = self.disk_bytes = 0
        """Bytes of records read so far."""

    def __len__(self) -> int:
        return len(self.table)

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes; a label is an index into them."""
        return self.version.classes

    @cached_property
    def shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels, if all records are raw images of one size."""
        if not len(self.table):
            return None
        first = self.table[0]
        same = all((self.table[name] == first[name]).all() for name in ("height", "width", "channels", "encoding"))
        if not same or first["encoding"] != Encoding.RAW:
            return None
        return int(first["height"]), int(first["width"]), int(first["channels"])

    def places(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places of records, given their numbers in the version (0 to `version.records`); -1 if the file was left
        out."""
        return numbers if len(self) == self.version.records else self._places[numbers]

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        keys = np.arange(self.version.next_key, dtype=np.uint64)
        keys = keys[~_deleted(keys, self.version)]
        here = self.table["key"]
        found = np.searchsorted(here, keys)
        places: NDArray[np.int64] = np.where(here[np.minimum(found, len(here) - 1)] == keys, found, -1)
        return places

    def file_of(self, places: NDArray[np.int64]) -> NDArray[np.int32]:
        """The index of the version's file that contains the record, for each place."""
        return self._file[places]

    def read(self, places: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Sequence[Buffer]]]:
        """The bytes of the records at these ascending places; yields some places and their buffers at a time.

        Damaged records are missing. Raises `Unavailable` as the store does.
        """
        files = self._file[places]  # these also ascend
        begins = np.flatnonzero(np.diff(files, prepend=-1))
        for position, wanted in zip(files[begins].tolist(), np.split(places, begins[1:]), strict=False):
            yield from self._read_file(position, wanted)

    def read_into(
        self, places: NDArray[np.int64], rows: NDArray[np.uint8], at: NDArray[np.int64] | None = None
    ) -> NDArray[np.bool_]:
        """Read raw images of one size at ascending `places` into the rows `at` (default: the first ones) of an array
        `(rows, bytes)`. Returns which of them were readable."""
        good = np.zeros(len(places), np.bool_)
        at = np.arange(len(places)) if at is None else at
        for found, buffers in self.read(places):
            which = np.searchsorted(places, found)
            good[which] = True
            for row, data in zip(at[which].tolist(), buffers, strict=True):
                rows[row] = np.frombuffer(data, np.uint8)
        return good

    def leave_out(self, place: int, why: str) -> None:
        """Report, once, that a record cannot be used although it was read."""
        file = self.version.files[int(self._file[place])]
        self._tell(f"record {self.table['key'][place]} in {file.key}", why)

    def _read_file(self, position: int, places: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], list[Buffer]]]:
        file = self.version.files[position]
        with self._disk.copy(file) if self._disk else nullcontext() as copy:
            if copy is not None:
                here = copy.has(self._numbers(places, file), self._stretches(places)[1])
                missing = [places[~here]]
                for found, cut, bad in self._pass(places[here], self._from_disk(copy)):
                    missing.append(bad)
                    yield found, cut
                places = np.sort(np.concatenate(missing))
            passing = self._pass(places, self._from_store(position, copy))
            while True:
                try:
                    found, cut, bad = next(passing)
                except StopIteration:
                    return
                except NotFound as error:
                    self._tell(file.key, str(error))
                    return
                for key in self.table["key"][bad].tolist():
                    self._tell(f"record {key} in {file.key}", "its bytes are damaged")
                yield found, cut

    def _pass(self, places: NDArray[np.int64], source: _Source) -> Iterator[_Found]:
        """Records of one file, in ascending order of bytes."""
        begins, ends = self._stretches(places)
        wanted = runs(begins, ends, source.gap_bytes)
        if not len(wanted):
            return
        cut: list[Buffer] = []
        first = size = 0
        for run, data in zip(wanted, source.fetch(wanted), strict=True):
            if run.last - run.first == 1:
                cut.append(data)
            else:
                view = memoryview(data)
                cuts = zip(begins[run.first : run.last].tolist(), ends[run.first : run.last].tolist(), strict=True)
                cut += [view[begin - run.begin : end - run.begin] for begin, end in cuts]
            size += len(data)
            if size >= _TOGETHER_BYTES or run.last == len(places):
                yield self._checked(places[first : run.last], cut)
                cut, first, size = [], run.last, 0

    def _checked(self, places: NDArray[np.int64], data: list[Buffer]) -> _Found:
        good = np.array([zlib.crc32(part) for part in data], np.uint32) == self.table["crc"][places]
        if good.all():
            return _Found(places, data, places[:0])
        whole = [part for part, fine in zip(data, good.tolist(), strict=True) if fine]
        return _Found(places[good], whole, places[~good])

    def _from_disk(self, copy: Copy) -> _Source:
        def fetch(wanted: Runs) -> Iterator[bytes]:
            for data in copy.read(wanted.begins, wanted.ends):
                with self._lock.held:
                    self.disk_bytes += len(data)
                yield data

        return _Source(0, fetch)

    def _from_store(self, position: int, copy: Copy | None) -> _Source:
        """Reads from the store, and keeps the bytes on the disk."""
        file = self.version.files[position]
        here = self.store.local_path(file.key) is not None
        whole = np.arange(*np.searchsorted(self._file, (position, position + 1)) if copy else (0, 0))
        numbers = self._numbers(whole, file)
        begins, ends = self._stretches(whole)

        def fetch(wanted: Runs) -> Iterator[bytes]:
            get = self._read_here if here else self._requested
            for run, data in zip(wanted, get(file.key, wanted), strict=True):
                with self._lock.held:
                    self.store_bytes += len(data)
                if copy is not None:
                    first = int(np.searchsorted(begins, run.begin))
                    last = int(np.searchsorted(ends, min(run.begin + len(data), copy.bound), side="right"))
                    if first < last:  # deleted records between them are also complete
                        copy.keep(run.begin, memoryview(data), slice(int(numbers[first]), int(numbers[last - 1]) + 1))
                yield data

        return _Source(0 if here else GAP_BYTES, fetch)

    def _read_here(self, key: str, wanted: Runs) -> Iterator[bytes]:
        with self.store.open(key) as file:
            try:
                yield from local.read(file.fileno(), wanted.begins, wanted.ends)
            except OSError as error:
                raise Unavailable(f"{self.store.uri(key)}: {error.strerror}") from error

    def _requested(self, key: str, wanted: Runs) -> Iterator[bytes]:
        if len(wanted) == 1:
            yield self.store.get(key, wanted.begins[0], wanted.ends[0] - wanted.begins[0])
            return
        with ThreadPoolExecutor(_REQUESTS, "essp-requests") as pool:
            coming: deque[Future[bytes]] = deque()
            try:
                for run in wanted:
                    coming.append(pool.submit(self.store.get, key, run.begin, run.end - run.begin))
                    if len(coming) == _REQUESTS:
                        yield coming.popleft().result()
                while coming:
                    yield coming.popleft().result()
            finally:
                for request in coming:
                    request.cancel()

    def _numbers(self, places: NDArray[np.int64], file: RecordFile) -> NDArray[np.int64]:
        """The numbers of these records in their file."""
        return self.table["key"][places].astype(np.int64) - file.first_key

    def _stretches(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The beginning and end of these records in their file."""
        begins = self.table["offset"][places].astype(np.int64)
        return begins, begins + self.table["length"][places]

    def _tell(self, what: str, why: str) -> None:
        with self._lock.held:
            known = what in self.damaged
            self.damaged[what] = why
        if not known:
            log.warning("%s: %s: %s; it is left out", self._where, what, why)


def verify(data_set: DataSet, number: int | None = None) -> Iterator[tuple[RecordFile, list[str]]]:
    """Each file of a version, with its damage: every byte is read and compared with its hash."""
    _, version = data_set.version(number)
    for file in version.files:
        yield file, _faults(data_set.store, file, len(version.classes))


def runs(begins: NDArray[np.int64], ends: NDArray[np.int64], gap_bytes: int = GAP_BYTES) -> Runs:
    """The requests that read these ascending byte ranges of a file: with gaps up to `gap_bytes`, and up to
    `REQUEST_BYTES` each."""
    if not len(begins):
        return Runs([], [], [0])
    starts, stops, firsts = begins.tolist(), ends.tolist(), [0]
    for i, far in enumerate((begins[1:] - ends[:-1] > gap_bytes).tolist(), 1):
        if far or stops[i] - starts[firsts[-1]] > REQUEST_BYTES:
            firsts.append(i)
    bounds = [*firsts, len(starts)]
    return Runs([starts[first] for first in firsts], [stops[bound - 1] for bound in bounds[1:]], bounds)


def _table(store: ObjectStore, file: RecordFile, classes: int) -> NDArray[np.void]:
    start = store.get(file.key, 0, HEADER_BYTES + _TABLE_GUESS)
    size = table_bytes(start)
    if size != file.records * ENTRY.itemsize:
        raise DamagedChunk(f"it has {size // ENTRY.itemsize} records instead of {file.records}")
    missing = HEADER_BYTES + size - len(start)
    if missing > 0:
        start += store.get(file.key, len(start), missing)
    table = read_table(start[:HEADER_BYTES], start[HEADER_BYTES : HEADER_BYTES + size], store.head(file.key).size_bytes)
    if int(table["key"][0]) != file.first_key or (np.diff(table["key"].astype(np.int64)) != 1).any():
        raise DamagedChunk("its keys are not those that the version gives it")
    if (table["label"] < -1).any() or (table["label"] >= classes).any():
        raise DamagedChunk(f"its labels are not among {classes} classes")
    return table


def _deleted(keys: NDArray[np.uint64], version: Version) -> NDArray[np.bool_]:
    bounds = np.array([bound for pair in version.deleted for bound in pair], np.uint64)
    inside: NDArray[np.bool_] = np.searchsorted(bounds, keys, side="right") % 2 == 1
    return inside


def _faults(store: ObjectStore, file: RecordFile, classes: int) -> list[str]:
    try:
        digest, crcs = hashlib.sha256(), []
        table = _table(store, file, classes)
        with store.open(file.key) as opened:
            digest.update(opened.read(int(table["offset"][0])))
            for length in table["length"].tolist():
                data = opened.read(length)
                digest.update(data)
                crcs.append(zlib.crc32(data))
    except (PermanentError, NotFound) as error:
        return [str(error)]
    bad = np.flatnonzero(np.array(crcs, np.uint32) != table["crc"])
    faults = [f"record {key}: its bytes are damaged" for key in table["key"][bad].tolist()]
    if not faults and digest.hexdigest() != file.sha256:
        faults.append("it is not the file that the version names: its SHA-256 is another one")
    return faults
