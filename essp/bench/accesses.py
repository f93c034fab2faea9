"""Records the accesses to an object store: an adapter that records each access, and totals for each file.

The summary is what Darshan (Carns and others, 2011) reports for files of an MPI program: accesses, bytes, sizes, and
the share of sequential accesses, which begin at or after the end of the previous access to that file, or at the
beginning of the file. Here an access is what the program asks of the store, before any buffering by an adapter.

Reading from a path would bypass the recording, so `local_path` of this store returns None.
"""

from __future__ import annotations

import csv
import io
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from essp.bench.trace import StoreCounters
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.objects.wrapper import StoreWrapper

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


@dataclass(slots=True)
class _Ways:
    """The accesses to one file in one direction."""

    sizes: list[int] = field(default_factory=list)
    sequential: int = 0
    end: int = 0
    """The end of the last access."""

    def note(self, start: int, length: int) -> None:
        self.sizes.append(length)
        self.sequential += start >= self.end or start == 0
        self.end = start + length


@dataclass(frozen=True, slots=True)
class FileAccesses:
    """The accesses to one file, or to several."""

    key: str
    reads: int
    read_bytes: int
    sequential_reads: float
    """Share of the reads; 0 without any."""
    smallest_read_bytes: int
    median_read_bytes: int
    largest_read_bytes: int
    writes: int
    written_bytes: int


class Accesses:
    """The accesses to stores. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads: dict[str, _Ways] = defaultdict(_Ways)
        self._writes: dict[str, _Ways] = defaultdict(_Ways)
        self._other = 0
        self._totals = StoreCounters()

    def note_read(self, key: str, start: int, length: int) -> None:
        """Bytes `[start, start + length)` were read."""
        with self._lock:
            self._reads[key].note(start, length)
            requests, read_bytes, written_bytes = self._totals
            self._totals = StoreCounters(requests + 1, read_bytes + length, written_bytes)

    def note_write(self, key: str, length: int) -> None:
        """A file was written whole."""
        with self._lock:
            self._writes[key].note(0, length)
            requests, read_bytes, written_bytes = self._totals
            self._totals = StoreCounters(requests + 1, read_bytes, written_bytes + length)

    def note_other(self) -> None:
        """A request that moved no content."""
        with self._lock:
            self._totals = self._totals._replace(requests=self._totals.requests + 1)

    def totals(self) -> StoreCounters:
        """Everything so far."""
        with self._lock:
            return self._totals

    def files(self) -> list[FileAccesses]:
        """The files that were accessed, in the order of their keys."""
        with self._lock:
            keys = sorted(self._reads.keys() | self._writes.keys())
            return [_summary(key, self._reads.get(key), self._writes.get(key)) for key in keys]

    def total(self) -> FileAccesses:
        """All files combined."""
        with self._lock:
            reads = _Ways([size for ways in self._reads.values() for size in ways.sizes])
            writes = _Ways([size for ways in self._writes.values() for size in ways.sizes])
            reads.sequential = sum(ways.sequential for ways in self._reads.values())
            return _summary("(all)", reads, writes)


def _summary(key: str, reads: _Ways | None, writes: _Ways | None) -> FileAccesses:
    reads, writes = reads or _Ways(), writes or _Ways()
    sizes = np.array(reads.sizes or [0])
    return FileAccesses(
        key=key,
        reads=len(reads.sizes),
        read_bytes=int(sizes.sum()),
        sequential_reads=reads.sequential / max(1, len(reads.sizes)),
        smallest_read_bytes=int(sizes.min()),
        median_read_bytes=int(np.median(sizes)),
        largest_read_bytes=int(sizes.max()),
        writes=len(writes.sizes),
        written_bytes=sum(writes.sizes),
    )


FILE_COLUMNS = tuple(FileAccesses.__dataclass_fields__)


def write_files_csv(files: Iterable[FileAccesses], path: Path) -> None:
    """One line per file, with the names of `FILE_COLUMNS`."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FILE_COLUMNS)
        for one in files:
            writer.writerow(getattr(one, name) for name in FILE_COLUMNS)


class NotedStore(StoreWrapper):
    """An `ObjectStore` that forwards everything to another one, and records it."""

    def __init__(self, store: ObjectStore, accesses: Accesses, prefix: str = "") -> None:
        """`prefix`: of the keys in `accesses`; empty, or ends with `/`."""
        super().__init__(store)
        self._accesses = accesses
        self._prefix = prefix

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """One read."""
        data = self._store.get(key, start, length)
        self._accesses.note_read(self._prefix + key, start, len(data))
        return data

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        """One write."""
        info = self._store.put(key, data, if_absent=if_absent)
        self._accesses.note_write(self._prefix + key, info.size_bytes)
        return info

    def put_file(self, key: str, path: str) -> ObjectInfo:
        """One write."""
        info = self._store.put_file(key, path)
        self._accesses.note_write(self._prefix + key, info.size_bytes)
        return info

    def head(self, key: str) -> ObjectInfo:
        """A request without content."""
        info = self._store.head(key)
        self._accesses.note_other()
        return info

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """One request without content, however many pages it takes."""
        self._accesses.note_other()
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        """A request without content."""
        self._store.delete(key)
        self._accesses.note_other()

    def open(self, key: str) -> BinaryIO:
        """A file whose reads are recorded."""
        inner = self._store.open(key)
        self._accesses.note_other()
        return io.BufferedReader(_NotedFile(inner, self._prefix + key, self._accesses))

    def below(self, folder: str) -> NotedStore:
        """A folder, whose accesses are recorded with the rest."""
        return NotedStore(self._store.below(folder), self._accesses, f"{self._prefix}{folder}/")


class _NotedFile(io.RawIOBase):
    """A seekable file over another one."""

    def __init__(self, inner: BinaryIO, key: str, accesses: Accesses) -> None:
        self._inner = inner
        self._key = key
        self._accesses = accesses

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._inner.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._inner.seek(offset, whence)

    def readall(self) -> bytes:
        start = self._inner.tell()
        data = self._inner.read()
        if data:
            self._accesses.note_read(self._key, start, len(data))
        return data

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        start = self._inner.tell()
        data = self._inner.read(memoryview(buffer).nbytes)
        memoryview(buffer).cast("B")[: len(data)] = data
        if data:
            self._accesses.note_read(self._key, start, len(data))
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()
