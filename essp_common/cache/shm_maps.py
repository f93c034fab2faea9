"""Memory maps of value files, kept for the next value in the same file.

Mapping 2 MB, touching them and unmapping them takes as long as copying them, and files are reused for other values. So
when nothing refers to a value any more, only the lock of its file is released; the map stays.

A map takes two file descriptors, one of them Python's. A process with a low limit copies further values.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
import sys
import weakref
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

_MOST_IDLE = 128
_SHARE = 8
"""At most one map per this many available descriptors; a map takes two."""
_LOOK_EVERY = 32


_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_parent=_forked, after_in_child=_forked)


@dataclass(slots=True)
class _Map:
    """A mapped file, used by one view at a time."""

    inode: int
    file: int
    memory: mmap.mmap
    forks: int
    """How often the process had been forked when the view was created. A fork has the view, and shares the lock:
    releasing it would take it from the other process. It is released when both have closed the file."""

    def __del__(self) -> None:
        os.close(self.file)


class Maps:
    """Unused maps of files, by inode. Thread-safe: a map that is taken has one user."""

    def __init__(self) -> None:
        self._idle: dict[int, _Map] = {}
        self._used: set[int] = set()
        """Maps in use, by identity."""
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = sys.maxsize if descriptors == resource.RLIM_INFINITY else max(1, descriptors // _SHARE)
        self._process = os.getpid()
        self._made = 0
        self._closed = False

    def view(self, file: int, begin: int, end: int) -> memoryview:
        """Return a view of bytes in a file that is locked for reading.

        This object takes over the file: it stays locked until the view and everything derived from it are gone, unless
        the view is a copy.
        """
        if self._process != os.getpid():
            self._idle.clear()
            self._used.clear()
            self._process = os.getpid()
        status = os.fstat(file)
        found = self._idle.pop(status.st_ino, None)
        if found is None and not self._has_room():
            return _copied(file, begin, end)
        if found is None:
            try:
                memory = mmap.mmap(file, status.st_size, access=mmap.ACCESS_READ)
            except BaseException:
                os.close(file)
                raise
            found = _Map(status.st_ino, file, memory, _forks)
            self._made += 1
            if self._made % _LOOK_EVERY == 0:
                self._forget_removed()
        else:
            fcntl.flock(found.file, fcntl.LOCK_SH)  # immediate: `file` has the same lock
            os.close(file)
            found.forks = _forks
        self._used.add(id(found))
        array = np.frombuffer(found.memory, np.uint8, end - begin, begin)
        weakref.finalize(array, self._give_back, found).atexit = False
        return array.data.toreadonly()

    def close(self) -> None:
        """Drop all idle maps. Views stay valid."""
        self._closed = True
        self._idle.clear()

    def _give_back(self, used: _Map) -> None:
        self._used.discard(id(used))
        if used.forks != _forks:
            return
        fcntl.flock(used.file, fcntl.LOCK_UN)
        if not self._closed and len(self._idle) < _MOST_IDLE:
            self._idle[used.inode] = used

    def _has_room(self) -> bool:
        """Whether there is room for another map, possibly by dropping an idle one."""
        if len(self._used) >= self._most:
            return False
        if len(self._used) + len(self._idle) >= self._most:
            with suppress(KeyError):  # another thread has taken the last one
                self._idle.popitem()
        return True

    def _forget_removed(self) -> None:
        """Drop maps of removed files, whose memory no cache counts."""
        for inode, one in list(self._idle.items()):
            if not os.fstat(one.file).st_nlink:
                self._idle.pop(inode, None)


def _copied(file: int, begin: int, end: int) -> memoryview:
    """Return a copy of these bytes, and close the file."""
    found = bytearray(end - begin)
    left = memoryview(found)
    try:
        while left:
            left = left[os.preadv(file, [left], end - len(left)) :]
    finally:
        os.close(file)
    return memoryview(found).toreadonly()
