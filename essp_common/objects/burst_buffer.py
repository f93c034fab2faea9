"""A burst buffer: writes go to a fast store at once, and a thread copies them to the slow one, in their order.

    put ──▶ fast: 000000000007/put/<key> ──▶ returns        the caller goes on
                       └── copied, then removed ──▶ slow: <key>

The idea is that of DataWarp and IME, as Chien and others (2018) use it for checkpoints.

**Order.** The slow store is at each moment as if the first so many writes and deletions had gone to it directly. Who
writes data before the manifest that names it finds there a whole checkpoint or none, whatever stops the copying.

**Kills.** A write that has returned is in the fast store, durable as that is. The next buffer over the same fast store
begins with what the last one has left. A write that was cut off is in neither store.

**Bounds.** No more than `most_bytes` wait in the fast store: a write waits until it has room. What is larger than that,
or does not fit into a fast store that is full, goes to the slow store directly, behind all that waits.

**Errors.** A slow store that does not answer is tried again for `patience_s`. An error that lasts is raised from the
next call; no more is copied then, and what waits stays in the fast store for the next buffer.

Whoever writes has the buffer, and the fast store, for itself alone. Reading is from the slow store, after `flush`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from essp_common.errors import StorageFull, TransientError
from essp_common.objects.keys import checked
from essp_common.objects.port import ObjectStore

_DIGITS = 12
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class _Write:
    """One call that has to reach the slow store."""

    number: int
    what: Literal["put", "delete"]
    key: str
    size_bytes: int

    @property
    def name(self) -> str:
        """Its object in the fast store."""
        return f"{self.number:0{_DIGITS}}/{self.what}/{self.key}"

    @classmethod
    def named(cls, name: str, size_bytes: int) -> _Write | None:
        """The write that an object of the fast store is; None: it is nothing of ours."""
        number, _, rest = name.partition("/")
        what, _, key = rest.partition("/")
        if len(number) != _DIGITS or not number.isdecimal() or not key:
            return None
        if what == "put":
            return cls(int(number), "put", key, size_bytes)
        return cls(int(number), "delete", key, size_bytes) if what == "delete" else None


class BurstBuffer:
    """Writes to `slow`, by way of `fast`. Thread-safe; calls of several threads are ordered as they come."""

    def __init__(
        self,
        fast: ObjectStore,
        slow: ObjectStore,
        most_bytes: int,
        patience_s: float = _PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`fast`: on this machine, and nobody else's. Begins to copy what a buffer before this one has left there."""
        if most_bytes < 1:
            raise ValueError(f"most_bytes is {most_bytes}")
        self.stalled_s = 0.0
        """How long writers have waited for room, or for the slow store."""
        self.passed_by = 0
        """How many writes went to the slow store directly, as there was no room for them."""
        self._fast = fast
        self._slow = slow
        self._most_bytes = most_bytes
        self._patience_s = patience_s
        self._clock = clock
        self._order = threading.Lock()
        """Held by the caller whose write is put into the queue."""
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._leaving = threading.Event()
        left = (_Write.named(info.key, info.size_bytes) for info in fast.list())
        self._queue = deque(sorted((write for write in left if write is not None), key=lambda write: write.number))
        self.recovered = len(self._queue)
        """How many writes a buffer before this one has left."""
        self._next = self._queue[-1].number + 1 if self._queue else 0
        self._thread = threading.Thread(target=self._run, name="essp-burst", daemon=True)
        self._thread.start()

    def __enter__(self) -> BurstBuffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that have not reached the slow store."""
        with self._changed:
            return sum(write.size_bytes for write in self._queue)

    def put(self, key: str, data: bytes) -> None:
        """Write an object; returns once it is in the fast store."""
        self._write("put", key, data)

    def delete(self, key: str) -> None:
        """Remove an object, behind all that was written before."""
        self._write("delete", key, b"")

    def flush(self) -> None:
        """Wait until everything is in the slow store."""
        self._wait_for(lambda: not self._queue)

    def close(self) -> None:
        """`flush`, and end the thread."""
        try:
            self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End the thread behind the copy in hand. What waits stays in the fast store."""
        self._leaving.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()

    def _write(self, what: Literal["put", "delete"], key: str, data: bytes) -> None:
        checked(key)
        with self._order:
            began_s = self._clock()
            fits = len(data) <= self._most_bytes
            self._wait_for(lambda: self._room_for(len(data)) if fits else not self._queue)
            self.stalled_s += self._clock() - began_s
            if not fits or not self._queued(_Write(self._next, what, key, len(data)), data):
                self._directly(what, key, data)

    def _queued(self, write: _Write, data: bytes) -> bool:
        """Put a write into the fast store and the queue; False: there is no room left on it."""
        try:
            self._fast.put(write.name, data)
        except StorageFull:
            return False
        with self._changed:
            self._next += 1
            self._queue.append(write)
            self._changed.notify_all()
        return True

    def _directly(self, what: Literal["put", "delete"], key: str, data: bytes) -> None:
        """Write to the slow store, behind all that waits."""
        began_s = self._clock()
        self.passed_by += 1
        self._wait_for(lambda: not self._queue)
        if what == "put":
            self._slow.put(key, data)
        else:
            self._slow.delete(key)
        self.stalled_s += self._clock() - began_s

    def _room_for(self, size_bytes: int) -> bool:
        return sum(write.size_bytes for write in self._queue) + size_bytes <= self._most_bytes

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        """Raises what keeps the thread from copying."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._leaving.is_set() or ready())
            if self._error is not None:
                raise self._error
            if self._leaving.is_set():
                raise RuntimeError("this buffer is closed")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._leaving.is_set())
                if self._leaving.is_set():
                    return
                write = self._queue[0]
            try:
                self._copy(write)
                self._fast.delete(write.name)
            except Exception as error:  # noqa: BLE001  whoever writes next is told
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._queue.popleft()
                self._changed.notify_all()

    def _copy(self, write: _Write) -> None:
        """One write to the slow store, tried again while that does not answer. Doing it twice changes nothing."""
        until_s = self._clock() + self._patience_s
        while True:
            try:
                if write.what == "delete":
                    self._slow.delete(write.key)
                elif (path := self._fast.local_path(write.name)) is not None:
                    self._slow.put_file(write.key, path)
                else:
                    self._slow.put(write.key, self._fast.get(write.name))
                return
            except TransientError as error:
                if self._clock() >= until_s or self._leaving.wait(error.retry_after_s):
                    raise
