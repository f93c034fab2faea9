"""A store whose outages are waited out, for programs that lose their work if one request fails: builds of catalogs and
records, `essp.stream`, `essp.predict`.

Workers open stores without it: their loop waits (`essp_engine/worker/loop.py`), and can leave meanwhile.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from essp_common.errors import StorageFull, Unavailable
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.objects.ranged import reroute
from essp_common.objects.wrapper import StoreWrapper
from essp_common.runtime.retry import LONGEST_WAIT_S, Outage, log, wait_out

T = TypeVar("T")

_TELL_EVERY_S = 1.0


class Patience:
    """How long the stores of a program are waited for. Shared by them, and thread-safe."""

    def __init__(
        self,
        limit_s: float,
        wait: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit_s`: how long failures in a row are waited for; then `Unavailable` is raised."""
        self._limit_s = limit_s
        self._ended = threading.Event()
        self._wait = wait or self._wait_until_ended
        self._clock = clock
        self._told_s = -math.inf

    def end(self) -> None:
        """Requests that wait now, or would wait later, fail: the program is interrupted."""
        self._ended.set()

    def outage(self) -> Outage:
        """What waits for one request."""
        limit_s = 0.0 if self._ended.is_set() else self._limit_s
        return Outage("a store does not answer", self._wait, LONGEST_WAIT_S, limit_s, self._clock, self._tell)

    def _wait_until_ended(self, wait_s: float) -> None:
        if self._ended.wait(wait_s):
            raise Unavailable("a store did not answer until the program was interrupted")

    def _tell(self, text: str, *words: object) -> None:
        """Many threads may wait for one store."""
        if self._clock() - self._told_s >= _TELL_EVERY_S:
            self._told_s = self._clock()
            log.warning(text, *words)


class PatientStore(StoreWrapper):
    """An `ObjectStore` that repeats each request until the other store answers, or `patience` is over.

    A conditional write is not repeated, because it may have succeeded. A full store is reported at once.
    """

    def __init__(self, store: ObjectStore, patience: Patience) -> None:
        super().__init__(store)
        self._patience = patience

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a range."""
        return self._answered(lambda: self._store.get(key, start, length))

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        """Write an object; with `if_absent`, in one try."""
        if if_absent:
            return self._store.put(key, data, if_absent=True)
        return self._answered(lambda: self._store.put(key, data))

    def put_file(self, key: str, path: str) -> ObjectInfo:
        """Write an object from a file."""
        return self._answered(lambda: self._store.put_file(key, path))

    def head(self, key: str) -> ObjectInfo:
        """Return what is known about an object."""
        return self._answered(lambda: self._store.head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List again after a failure, and continue behind the last object."""
        last = b""
        while True:
            reached, outage = last, self._patience.outage()
            while last == reached:  # no progress since the last failure
                with outage:
                    for info in self._store.list(prefix):
                        if (place := _place(info.key)) > last:
                            last = place
                            yield info
                    return

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._answered(lambda: self._store.delete(key))

    def open(self, key: str) -> BinaryIO:
        """Return a file whose reads are repeated, too."""
        file = self._answered(lambda: self._store.open(key))
        reroute(file, self._answered)
        return file

    def local_path(self, key: str) -> str | None:
        """Return the path that the other store has."""
        return self._store.local_path(key)

    def below(self, folder: str) -> PatientStore:
        """Return the store for a folder."""
        return PatientStore(self._store.below(folder), self._patience)

    def _answered(self, request: Callable[[], T]) -> T:
        def unless_full() -> T | StorageFull:
            try:
                return request()
            except StorageFull as error:  # waiting makes no room
                return error

        answer = wait_out(unless_full, self._patience.outage())
        if isinstance(answer, StorageFull):
            raise answer
        return answer


def _place(key: str) -> bytes:
    """Keys compare as their bytes do."""
    return key.encode("utf-8", "surrogateescape")
