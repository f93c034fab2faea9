"""The progress of unfinished work, kept next to its output so that the next run continues from there.

An object store cannot append, so a journal is a series of small objects `<output>.part-NNNNNN`. They are removed when
the output is written. The parts of a catalog's build (`Journal`) are catalogs of whole files.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import read_catalog, write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import ConfigError, PermanentError
from essp_common.objects.port import ObjectStore

_NUMBER = re.compile(r"[0-9]{6,}")
"""The names of parts. Other files may have names that begin in the same way."""
ROWS = 2000
SECONDS = 5.0
"""The most that is lost when the work is killed: this number of files, or what was read in this time."""
T = TypeVar("T")


class Parts(ABC, Generic[T]):
    """What was read, stored with a delay of a few seconds. `T`: what is kept of a file."""

    def __init__(self, store: ObjectStore, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`key`: the key of the output."""
        self._store = store
        self._prefix = f"{key}.part-"
        self._clock = clock
        keys = (info.key for info in store.list(self._prefix))
        self._parts = [key for key in keys if _NUMBER.fullmatch(key.removeprefix(self._prefix))]
        self._own: set[str] = set()
        """Parts that were written or read here. Other files may have such names, too."""
        self._rows: list[T] = []
        self._saved = clock()

    def __iter__(self) -> Iterator[T]:
        """What is stored. A part that is damaged or has another version is ignored."""
        for part in tuple(self._parts):
            try:
                rows = self._read(self._store, part)
            except (ConfigError, PermanentError):
                continue
            self._own.add(part)
            yield from rows

    def add(self, row: T) -> None:
        """Add a file; saves from time to time."""
        self._rows.append(row)
        if len(self._rows) >= ROWS or self._clock() - self._saved >= SECONDS:
            self.save()

    def save(self) -> None:
        """Store what is not stored yet."""
        if self._rows:
            last = int(self._parts[-1].removeprefix(self._prefix)) if self._parts else 0
            part = f"{self._prefix}{last + 1:06d}"
            self._write(self._store, part, tuple(self._rows))
            self._parts.append(part)
            self._own.add(part)
            self._rows.clear()
        self._saved = self._clock()

    def clear(self) -> None:
        """Remove the journal, because the output holds everything. Files that cannot be read as parts stay."""
        if self._own != set(self._parts):
            for _ in self:
                pass
        for part in self._own:
            self._store.delete(part)
        self._own.clear()
        self._parts.clear()
        self._rows.clear()

    @abstractmethod
    def _read(self, store: ObjectStore, part: str) -> Iterable[T]:
        """The content of a part. Raises `PermanentError` or `ConfigError` if it is not a part."""

    @abstractmethod
    def _write(self, store: ObjectStore, part: str, rows: Sequence[T]) -> None:
        """Write a part."""


class Journal(Parts[VideoRow]):
    """The files that a build has read."""

    def _read(self, store: ObjectStore, part: str) -> Iterable[VideoRow]:
        return read_catalog(store, part).rows

    def _write(self, store: ObjectStore, part: str, rows: Sequence[VideoRow]) -> None:
        write_catalog(store, part, Catalog(rows))
