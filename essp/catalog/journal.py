"""What an unfinished build has read so far, kept beside its output so that the next one goes on from there.

An object store cannot append, so the journal is a row of small objects `<output>.part-NNNNNN`, each a catalog of
whole files. They go when the build has written its output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from essp_common.catalog.table import Catalog, VideoRow, read_catalog, write_catalog
from essp_common.errors import ConfigError, PermanentError
from essp_common.objects.port import ObjectStore

ROWS = 2000
SECONDS = 5.0
"""At most so much is lost when a build is killed: this many files, or what was read in this time."""


class Journal:
    """The files that were read, at most some seconds behind."""

    def __init__(self, store: ObjectStore, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`key`: of the output."""
        self._store = store
        self._prefix = f"{key}.part-"
        self._clock = clock
        self._parts = [info.key for info in store.list(self._prefix)]
        self._rows: list[VideoRow] = []
        self._saved = clock()

    def __iter__(self) -> Iterator[VideoRow]:
        """What earlier builds left. A part of another version or a damaged one is as good as none."""
        for part in tuple(self._parts):
            try:
                yield from read_catalog(self._store, part).rows
            except (ConfigError, PermanentError):
                continue

    def add(self, row: VideoRow) -> None:
        """Remember a file; saves now and then."""
        self._rows.append(row)
        if len(self._rows) >= ROWS or self._clock() - self._saved >= SECONDS:
            self.save()

    def save(self) -> None:
        """Store what is not stored yet."""
        if self._rows:
            last = int(self._parts[-1].removeprefix(self._prefix)) if self._parts else 0
            part = f"{self._prefix}{last + 1:06d}"
            write_catalog(self._store, part, Catalog(tuple(self._rows)))
            self._parts.append(part)
            self._rows.clear()
        self._saved = self._clock()

    def clear(self) -> None:
        """Remove the journal: the output holds everything."""
        for part in self._parts:
            self._store.delete(part)
        self._parts.clear()
        self._rows.clear()
