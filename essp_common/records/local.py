"""Reads ascending byte ranges of a local file.

Records are read one by one, without the gaps between them: reading from the page cache costs as little as copying a few
kilobytes. If they are far apart, the system is advised of many of them in advance and requests them from the disk at
once, which disks need to be fast; if they are close together, its own read-ahead suffices. Measured on a virtual disk
with 3 KiB records and a cold cache: reading one record in 64 took 20 to 24 us each, and 160 to 258 us without the
advice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

AHEAD, AHEAD_BYTES = 256, 8 * 2**20
"""The system is advised of this many ranges, or this many bytes, in advance."""
_FAR_BYTES = 32 * 1024
"""Average distance between ranges beyond which the system's own read-ahead does not help."""


def read(descriptor: int, begins: Sequence[int], ends: Sequence[int], offset: int = 0) -> Iterator[bytes]:
    """The bytes of each range, in ascending order, shorter at the end of the file; ranges are shifted by `offset` in
    the file."""
    far = bool(begins) and ends[-1] - begins[0] > _FAR_BYTES * len(begins)
    told = told_bytes = 0
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        while far and told < min(len(begins), number + AHEAD) and (told_bytes < AHEAD_BYTES or told <= number):
            length = ends[told] - begins[told]
            os.posix_fadvise(descriptor, offset + begins[told], length, os.POSIX_FADV_WILLNEED)
            told, told_bytes = told + 1, told_bytes + length
        told_bytes -= end - begin if far else 0
        yield os.pread(descriptor, end - begin, offset + begin)
