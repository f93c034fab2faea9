"""Makes versions of a data set: files of records, and then the version that names them."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from essp_common.errors import ConfigError, Conflict, EsspError, NotFound
from essp_common.records.chunk import ENTRY, MOST_BYTES, MOST_RECORDS, Record, pack
from essp_common.records.names import names_bytes
from essp_common.records.orphans import BUILD_DIGITS, file_name
from essp_common.records.versions import DataSet, RecordFile, Version, digest

FILE_BYTES = 256 * 2**20
"""Approximate size of a file: it is in memory while it is filled, and large enough for sequential reading."""
LEAST_FILE_BYTES, MOST_FILE_BYTES = 2**20, 4 * 2**30
"""What a user may choose: small files cost an object store many requests, and a build holds two files in memory."""


class Writer:
    """Adds records to a data set. Use it as a context manager: leaving it normally makes the version, an error makes
    none."""

    def __init__(
        self, data_set: DataSet, classes: Iterable[str], append: bool = False, file_bytes: int = FILE_BYTES
    ) -> None:
        """`classes`: labels are indices into them. `append`: continue from the newest version, whose classes come
        first.

        Raises `ConfigError` if there are records already and `append` is not given.
        """
        self._data_set = data_set
        self._file_bytes = file_bytes
        self._number, self._before = 0, Version()
        if data_set.versions():
            self._number, self._before = data_set.version()
            if not append:
                raise ConfigError(
                    f"{data_set.where} has {self._before.records:,} records already; add to them with "
                    "--append, or use another place",
                    code="exists",
                )
        new = [name for name in dict.fromkeys(classes) if name not in self._before.classes]
        self.classes = (*self._before.classes, *new)
        self._build = uuid.uuid4().hex[:BUILD_DIGITS]
        self._time_ms = 0
        """Time in the name of the last file written."""
        self._files: list[RecordFile] = []
        self._waiting: list[Record] = []
        self._names: list[str] = []
        """Names of the waiting records."""
        self._waiting_bytes = 0
        self._next_key = self._before.next_key
        self.number = 0
        """Number of the version made; 0 if there is none yet."""

    def add(self, record: Record, name: str = "") -> None:
        """Add one record. `name`: its display name, such as the file that it was made from.

        Raises `ValueError` for a record that files cannot hold.
        """
        if not -1 <= record.label < len(self.classes):
            raise ValueError(f"label {record.label} is not one of {len(self.classes)} classes")
        if not 0 < len(record.data) <= MOST_BYTES:
            raise ValueError(f"a record has 1 to {MOST_BYTES} bytes, not {len(record.data)}")
        size = len(record.data) + ENTRY.itemsize
        if self._waiting and (self._waiting_bytes + size > self._file_bytes or len(self._waiting) == MOST_RECORDS):
            self._write_file()
        self._waiting.append(record)
        self._names.append(name)
        self._waiting_bytes += size

    def commit(self) -> int:
        """Make the version. Returns its number.

        Raises `ConfigError` if nothing was added, and `Conflict` if another writer was first or the files are gone.
        """
        if self._waiting:
            self._write_file()
        if not self._files:
            raise ConfigError("there are no records to write", code="empty")
        before = self._before
        version = Version(
            parent=digest(before) if self._number else "",
            classes=self.classes,
            files=(*before.files, *self._files),
            deleted=before.deleted,
        )
        self._check_files()
        self._data_set.commit(self._number + 1, version)
        self.number = self._number + 1
        return self.number

    def discard(self) -> None:
        """Delete the files, which no version will name."""
        for file in self._files:
            with suppress(EsspError):  # leftover files only take space
                self._data_set.store.delete(file.key)
                self._data_set.store.delete(file.names_key)
        self._files.clear()

    def _write_file(self) -> None:
        data = pack(self._waiting, self._next_key)
        file = RecordFile(
            name=self._name(),
            sha256=hashlib.sha256(data).hexdigest(),
            bytes=len(data),
            records=len(self._waiting),
            first_key=self._next_key,
        )
        self._files.append(file)
        self._data_set.store.put(file.key, data)
        if any(self._names):
            self._data_set.store.put(file.names_key, names_bytes(self._names))
        self._next_key += file.records
        self._waiting, self._names, self._waiting_bytes = [], [], 0

    def _name(self) -> str:
        self._time_ms = max(self._time_ms + 1, time.time_ns() // 1_000_000)
        return file_name(self._build, self._time_ms)

    def _check_files(self) -> None:
        """Check that the files still exist: a cleanup may have considered this build dead."""
        for file in self._files:
            try:
                self._data_set.store.head(file.key)
            except NotFound as error:
                raise Conflict(
                    f"{file.key} of {self._data_set.where} was removed while this build was running, as by "
                    "`essp records clean`; build again"
                ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.discard()
            return
        try:
            self.commit()
        except (ConfigError, Conflict):
            self.discard()
            raise
        # After any other error the version may have been written, so its files must stay.
