"""The pages of files that the system keeps in memory: given up, so that the next read asks the disk.

Only pages of the files that are named are touched, never all of the machine's, so nobody else is slowed down and no
rights are needed. What was not written to the disk yet is written first (`fsync`), since such pages stay.

File systems in memory (tmpfs) keep everything, and so does the cache of a disk, a hypervisor or a server; `still_there`
tells of the first of these.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress


def evict(paths: Iterable[str]) -> int:
    """Give up the pages of these files; in how many of them the first page is there all the same."""
    return sum(_evicted(path) for path in paths)


def _evicted(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False  # whoever reads it will say so
    try:
        with suppress(OSError):  # of a file system that is only read
            os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return still_there(descriptor)
    finally:
        os.close(descriptor)


def still_there(descriptor: int) -> bool:
    """Whether the first page of a file is in memory; False where the file system cannot say."""
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return False
        raise
