"""Evicts files from the page cache, so that the next read goes to the disk.

Only pages of the given files are evicted, so other processes are not slowed down and no privileges are needed. Modified
pages cannot be evicted, so they are first written to the disk (`fsync`).

In-memory file systems (tmpfs) keep everything, and so do the caches of disks, hypervisors and servers. `still_there`
detects only the first case.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress


def evict(paths: Iterable[str]) -> int:
    """Evict the pages of these files. Returns the number of files whose first page stayed in memory."""
    return sum(_evicted(path) for path in paths)


def _evicted(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False  # whatever reads the file will report the error
    try:
        with suppress(OSError):  # fails on read-only file systems
            os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return still_there(descriptor)
    finally:
        os.close(descriptor)


def still_there(descriptor: int) -> bool:
    """Whether the first page of a file is in memory. False if the file system cannot tell."""
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return False
        raise
