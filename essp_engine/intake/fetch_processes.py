"""Clips fetched, decoded and cut by child processes, for a machine with many cores: Python uses only one core of a
process, and each clip that the threads of one process handle takes a third of a millisecond of this core.

    fetch threads ──which clips──▶ child (`fetch_child.py`): cache ─▶ decode ─▶ view ─▶ shared memory
                  ◀──what is where──

A thread sends a request to an idle child and waits for its answer. The child writes its results to shared memory
(`shared_slots.py`): only their offsets go through the socket, and this process copies nothing. While children start,
and after one has died, threads do the work themselves. Order, accounts, acks and retries stay here. So nothing depends
on the children: this process fetches a clip that a child could not prepare again, in the clip's turn.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

from essp_common.cache.port import FrameCache
from essp_common.errors import EsspError, Unavailable
from essp_common.runtime.child_process import ChildProcess, one_thread
from essp_common.runtime.shared_slots import SharedMemory, Slot
from essp_common.wiring import open_cache
from essp_engine.intake.ordered import Prepare, Read, Stored

log = logging.getLogger(__name__)

_MODULE = "essp_engine.intake.fetch_child"
_TASK = "fetches clips"
_ALIGNED = 64
_END_S = 5.0
_MOST_LOST = 3
"""Children that may be lost in a row before they are no longer replaced."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a child. All of it is pickled."""

    open_cache: Callable[[], FrameCache]
    read: Read
    prepare: Prepare | None = None


class Asked(NamedTuple):
    """One clip, and the slot for it."""

    clip: bytes
    key: str
    size_bytes: int
    slot: Slot


class Made(NamedTuple):
    """One clip that a child has prepared: a pickle, whose arrays are one after the other in its slot."""

    pickled: bytes
    sizes: tuple[int, ...]
    """The sizes of the arrays, in bytes."""


class TooLarge(NamedTuple):
    """The clip was prepared but does not fit into its slot."""

    needed: int


Answer = Made | TooLarge | str
"""The result for one clip. A text says why the clip was not prepared."""


def places_of(sizes: Sequence[int]) -> list[int]:
    """Where arrays of these sizes begin in a slot; the last element is where the last array ends."""
    places = [0]
    for size in sizes:
        places.append(-(-(places[-1] + size) // _ALIGNED) * _ALIGNED)
    return places


class FetchProcesses:
    """Implements `essp_engine.intake.ordered.Elsewhere`. The processes start at the first request."""

    def __init__(self, work: Work, count: int) -> None:
        self._work = pickle.dumps(work)
        self._to_start = count
        self._idle: list[_Child] = []
        self._busy: list[_Child] = []
        self._lost = 0
        """Children that were lost since the last answer."""
        self._lock = threading.Lock()

    @classmethod
    def of(cls, count: int, cache_url: str, tenant: str, read: Read, prepare: Prepare | None = None) -> Self | None:
        """Processes with the cache at this URL. None for a count of 0, or for a cache in memory, which other processes
        cannot reach."""
        if not count or cache_url.startswith("memory:"):
            return None
        return cls(Work(partial(open_cache, cache_url, tenant), read, prepare), count)

    @property
    def pids(self) -> list[int]:
        """The ids of processes that have started or are starting."""
        with self._lock:
            return [child.process.pid for child in (*self._idle, *self._busy)]

    def start(self) -> None:
        """Start the processes and wait until they are ready. Raises `EOFError` if one ends instead."""
        with self._lock:
            self._begin()
            for child in self._idle:
                child.wait()

    def values(self, clips: Sequence[Stored]) -> list[Any] | None:
        """See `Elsewhere`."""
        child = self._leased()
        if child is None:
            return None
        try:
            made = child.values(clips)
        except (EOFError, OSError, pickle.UnpicklingError):
            with self._lock:
                self._busy.remove(child)
                self._lose(child)
            return None
        except Unavailable:  # there is no shared memory at present; the child got no request
            made = None
        with self._lock:
            self._lost = 0
            self._busy.remove(child)
            self._idle.append(child)
        return made

    def close(self) -> None:
        """End the children. No child may have a pending request. Their results stay."""
        with self._lock:
            self._to_start = 0
            children = [*self._idle, *self._busy]
            self._idle, self._busy = [], []
        for child in children:
            child.process.kill()  # in any state: they hold nothing
        for child in children:
            child.end()

    def _leased(self) -> _Child | None:
        """An idle child."""
        with self._lock:
            self._begin()
            for child in tuple(self._idle):
                try:
                    ready = child.is_ready
                except (EOFError, OSError):
                    self._idle.remove(child)
                    self._lose(child)
                    continue
                if ready:
                    self._idle.remove(child)
                    self._busy.append(child)
                    return child
        return None

    def _begin(self) -> None:
        while self._to_start:
            self._to_start -= 1
            try:
                self._idle.append(_Child(self._work))
            except (OSError, Unavailable) as error:
                log.warning("threads do the work of a process that %s: %s", _TASK, error)

    def _lose(self, child: _Child) -> None:
        self._lost += 1
        goes_on = self._lost <= _MOST_LOST
        self._to_start += goes_on
        then = "it is replaced" if goes_on else "threads do its work"
        log.warning("a process that %s %s; %s", _TASK, child.end(_END_S), then)


class _Child(ChildProcess):
    """Used from one thread, except `end`."""

    def __init__(self, work: bytes) -> None:
        self._memory = SharedMemory()
        self._room = 0
        """Bytes that the largest clip has needed so far."""
        self._ready = False
        try:
            super().__init__(_MODULE, _TASK, files=[self._memory.fd], environment=one_thread())
        except Unavailable:
            self._memory.close()
            raise
        self.tell(work)

    @property
    def is_ready(self) -> bool:
        """Whether it has started. Raises `EOFError` if it has ended instead."""
        if not self._ready and self.channel.poll():
            self.wait()
        return self._ready

    def wait(self) -> None:
        """Wait until it has started. Raises `EOFError` if it ends instead."""
        if not self._ready:
            self.channel.receive()
            self._ready = True

    def values(self, clips: Sequence[Stored]) -> list[Any]:
        """See `FetchProcesses.values`. Raises `EOFError` or `OSError` if the child is gone, and `Unavailable` if the
        machine has no memory for the clips."""
        made: list[Any] = [None] * len(clips)
        left = list(range(len(clips)))
        while left:
            slots = self._slots(len(left))
            request = [
                Asked(clips[at].clip.SerializeToString(), clips[at].key, clips[at].size_bytes, slot)
                for at, slot in zip(left, slots, strict=True)
            ]
            self.channel.send(pickle.dumps((self._memory.size, request)))
            answers: list[Answer] = pickle.loads(self.channel.receive())  # noqa: S301  from our own child
            again = []
            for at, slot, answer in zip(left, slots, answers, strict=True):
                if isinstance(answer, Made):
                    made[at] = self._loaded(slot, answer)
                    continue
                self._memory.give_back(slot)
                if isinstance(answer, TooLarge):
                    self._room = max(self._room, answer.needed)
                    again.append(at)
                else:
                    made[at] = EsspError(answer)
            left = again
        return made

    def _slots(self, count: int) -> list[Slot]:
        """Slots as large as the largest clip so far. Raises `Unavailable`, without keeping any slot."""
        slots: list[Slot] = []
        try:
            for _ in range(count):
                slots.append(self._memory.take(max(self._room, _ALIGNED)))
        except Unavailable:
            for slot in slots:
                self._memory.give_back(slot)
            raise
        return slots

    def _loaded(self, slot: Slot, answer: Made) -> Any:
        places = places_of(answer.sizes)
        whole = self._memory.view(slot, places[-1], writable=True)  # as this process's own arrays would be
        buffers = [whole[begin : begin + size] for begin, size in zip(places, answer.sizes, strict=False)]
        return pickle.loads(answer.pickled, buffers=buffers)  # noqa: S301  from our own child

    def end(self, patience_s: float = 0.0) -> str:
        """End the process by closing its connection, and describe how it ended."""
        fate = super().end(patience_s)
        self._memory.close()
        return fate
