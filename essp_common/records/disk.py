"""Caches records on a disk of this machine, so that they are read from the object store only once.

    <folder>/lock                        held while space is assigned
    <folder>/<data set>.records/users    locked, shared, by each process that reads the data set
    <folder>/<data set>.records/<hash>   for a file of records: a byte for each record, 1 if it is here; then its bytes

Everything read from the store is kept, including gaps between wanted records, so the first epoch costs no more than
without the cache. A copy is named by the SHA-256 of its file, so other content cannot appear under its name.

**Bound.** Space is assigned only when a data set is opened: to its files in order, until the folder reaches
`limit_bytes`. Files without space are read from the store in each epoch. Nothing is evicted by later reads, so a data
set that is too large keeps its share. Opening a data set removes data sets that no process reads, least recently opened
first, and files that the opened version does not name.

**Sharing.** Any number of processes read and write the same copies, and all write the same bytes. A record is marked
after its bytes are written.

**Damage.** The reader of a record compares its checksum (`reader.py`) and falls back to the store if it differs. So
kills, power cuts and bad disks only cost a request. A full or failing disk is reported once, and reading continues.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from essp_common.errors import ConfigError
from essp_common.records import local
from essp_common.records.versions import RecordFile
from essp_common.runtime.forks import Mutex

log = logging.getLogger(__name__)

_NAME = re.compile(r"[0-9a-f]{32}\.records")
_COPY = re.compile(r"[0-9a-f]{64}")
"""The name of a copy. Other files here are not ours."""
_USERS = "users"
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Room:
    """Where records may be kept, and how many bytes of them."""

    folder: str
    limit_bytes: int
    """For the whole folder."""


class Copy:
    """The local copy of one file of records."""

    def __init__(self, disk: Disk, descriptor: int, records: int) -> None:
        self._disk = disk
        self._descriptor = descriptor
        self._records = records
        self.bound = os.fstat(descriptor).st_size - records
        """The number of the file's bytes that have space here."""

    def has(self, numbers: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these records are here, given their numbers in the file and their ends."""
        here = np.zeros(self._records, np.uint8)
        with self._disk.telling():
            found = os.pread(self._descriptor, self._records, 0)
            here[: len(found)] = np.frombuffer(found, np.uint8)
        present: NDArray[np.bool_] = (here[numbers] == 1) & (ends <= self.bound)
        return present

    def read(self, begins: Sequence[int], ends: Sequence[int]) -> Iterator[bytes]:
        """Ascending byte ranges of the file, unchecked; shorter if the disk fails."""
        found = local.read(self._descriptor, begins, ends, self._records)
        for _ in begins:
            data = b""
            with self._disk.telling():
                data = next(found, b"")
            yield data

    def keep(self, begin: int, data: memoryview, records: slice) -> None:
        """Keep bytes of the file, and mark the records that they fully contain."""
        if not self._disk.keeping:
            return
        with self._disk.telling():
            kept = data[: max(0, self.bound - begin)]
            if os.pwrite(self._descriptor, kept, self._records + begin) < len(kept):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            # Mark the records only after their bytes: other processes read them as soon as they are marked.
            os.pwrite(self._descriptor, bytes([1]) * (records.stop - records.start), records.start)


class Disk:
    """The part of one data set that is on a disk. Thread-safe."""

    def __init__(self, room: Room, where: str, files: Sequence[RecordFile]) -> None:
        """`where`: the URI of the data set. `files`: of its version.

        Raises `ConfigError` for an unusable folder.
        """
        self.keeping = True
        """Whether data read from the store is still kept."""
        self._folder = Path(room.folder)
        self._limit_bytes = room.limit_bytes
        self._mine = self._folder / f"{hashlib.sha256(where.encode()).hexdigest()[:32]}.records"
        self._told = Mutex()
        try:
            self._enter(files)
        except OSError as error:
            if error.errno not in _FULL:
                raise ConfigError(
                    f"{self._folder}: records cannot be kept there: {error.strerror}; name another folder",
                    code="refused",
                ) from error
            self._tell(error)

    @contextmanager
    def copy(self, file: RecordFile) -> Iterator[Copy | None]:
        """The local copy of a file; None if it has no space."""
        descriptor = -1
        with self.telling(), suppress(FileNotFoundError):
            descriptor = os.open(self._mine / file.sha256, os.O_RDWR | os.O_CLOEXEC)
        try:
            yield Copy(self, descriptor, file.records) if descriptor >= 0 else None
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Report a disk error, once, and stop keeping records."""
        try:
            yield
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        with self._told.held:
            told, self.keeping = not self.keeping, False
        if not told:
            log.warning(
                "%s: %s; no more records are kept there, and the others are read from the store",
                self._folder,
                error.strerror,
            )

    def _enter(self, files: Sequence[RecordFile]) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._folder.stat().st_uid not in (0, os.getuid()):
            raise ConfigError(f"{self._folder} belongs to another user; name another folder for records", code="taken")
        with _locked(self._folder / "lock"):
            self._mine.mkdir(mode=0o700, exist_ok=True)
            users = os.open(self._mine / _USERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            weakref.finalize(self, os.close, users)
            os.utime(users)
            alone = _lock_alone(users)
            self._give_room(files, alone)
            fcntl.flock(users, fcntl.LOCK_SH)

    def _give_room(self, files: Sequence[RecordFile], alone: bool) -> None:
        """Assign space to the files. `alone`: no other process reads this data set."""
        wanted = {file.sha256: file.records + file.bytes for file in files}
        if alone:
            for name in _sizes(self._mine).keys() - wanted:
                (self._mine / name).unlink()
        here = _sizes(self._mine)
        others = self._bytes_of_others(self._limit_bytes - max(sum(wanted.values()), sum(here.values())))
        room = self._limit_bytes - others - sum(here.values())
        for file in reversed(files):
            if alone and room < 0 and file.sha256 in here:  # the limit was higher before
                (self._mine / file.sha256).unlink()
                room += here.pop(file.sha256)
        for file in files:
            size = here.get(file.sha256, 0)
            share = min(wanted[file.sha256], size + max(0, room))
            if share > max(size, file.records):
                _extend(self._mine / file.sha256, share)
                here[file.sha256] = share
                room -= share - size

    def _bytes_of_others(self, wanted_bytes: int) -> int:
        """The bytes of other data sets, after unused ones were removed until at most `wanted_bytes` remain."""
        others = {
            path: sum(_sizes(path).values())
            for path in self._folder.iterdir()
            if _NAME.fullmatch(path.name) and path != self._mine and not path.is_symlink() and (path / _USERS).is_file()
        }
        left = sum(others.values())
        for path in sorted(others, key=lambda path: (path / _USERS).stat().st_mtime):
            if left > wanted_bytes and _removed_if_unused(path):
                left -= others[path]
        return left


def _sizes(folder: Path) -> dict[str, int]:
    """The sizes of the copies in a folder."""
    with os.scandir(folder) as entries:
        return {
            entry.name: entry.stat().st_size
            for entry in entries
            if _COPY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
        }


def _extend(path: Path, size: int) -> None:
    """Extend a file by a hole, which takes no space yet."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _lock_alone(descriptor: int) -> bool:
    """Lock exclusively without waiting. Returns False if another process holds a lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _removed_if_unused(path: Path) -> bool:
    descriptor = os.open(path / _USERS, os.O_RDWR | os.O_CLOEXEC)
    try:
        if not _lock_alone(descriptor):
            return False
        for name in _sizes(path):
            (path / name).unlink()
        if {entry.name for entry in path.iterdir()} == {_USERS}:
            (path / _USERS).unlink()
            path.rmdir()
        return True
    finally:
        os.close(descriptor)
