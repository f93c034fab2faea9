"""Joins the frames of several views of an event, or the frames of a clip and their motion, to one value of the cache,
and takes one of them out again.

They differ in shape, so each is a value of its own (`codec.py`). Layout, little-endian:

    16 bytes       magic (views, or frames and motion), version, number of values, bytes up to the first value
    8 bytes each   size of each value
    4 bytes        CRC-32 of all this
    values         one after the other, each at a multiple of 64 bytes, as raw frames are

Any other bytes raise `BadFrames`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from itertools import accumulate

from essp_common.cache.port import Buffer
from essp_common.errors import BadFrames

MOST_VIEWS = 32

_VIEWS, _MOTION = b"ESSV", b"ESSM"
_VERSION = 1
_HEAD = struct.Struct("<4sIII")
_SIZE = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_ALIGNED = 64


def begins(sizes: Sequence[int]) -> list[int]:
    """The byte at which each value begins in the joined one, and the end of the last one."""
    places = accumulate((_aligned(size) for size in sizes[:-1]), initial=_start(len(sizes)))
    return [*places, joined_bytes(sizes)]


def joined_bytes(sizes: Sequence[int]) -> int:
    """Bytes of values of these sizes, joined."""
    return _start(len(sizes)) + sum(map(_aligned, sizes[:-1])) + sizes[-1]


def write_head(value: memoryview, sizes: Sequence[int], *, motion: bool = False) -> None:
    """Write what precedes values of these sizes, which are put at `begins`, into a joined value. `motion`: they are
    frames and their motion, not views."""
    start = _start(len(sizes))
    head = _HEAD.pack(_MOTION if motion else _VIEWS, _VERSION, len(sizes), start) + b"".join(map(_SIZE.pack, sizes))
    value[:start] = (head + _CRC.pack(zlib.crc32(head))).ljust(start, b"\0")
    edges = begins(sizes)
    for begin, size, end in zip(edges, sizes, edges[1:], strict=False):
        value[begin + size : end] = bytes(end - begin - size)


def joined(values: Sequence[Buffer], *, motion: bool = False) -> memoryview:
    """These values as one. `motion`: they are frames and their motion, not views."""
    views = [memoryview(value).cast("B") for value in values]
    sizes = [len(view) for view in views]
    whole = memoryview(bytearray(joined_bytes(sizes)))
    write_head(whole, sizes, motion=motion)
    for begin, view in zip(begins(sizes), views, strict=False):
        whole[begin : begin + len(view)] = view
    return whole


def is_joined(value: Buffer) -> bool:
    """Whether it joins several views."""
    return bytes(memoryview(value).cast("B")[:4]) == _VIEWS


def has_motion(value: Buffer) -> bool:
    """Whether it joins frames and their motion."""
    return bytes(memoryview(value).cast("B")[:4]) == _MOTION


def separate(value: Buffer) -> list[memoryview]:
    """The values that were joined, without a copy. Raises `BadFrames` for damage."""
    whole = memoryview(value).cast("B")
    if len(whole) < _HEAD.size:
        raise BadFrames(f"{len(whole)} bytes are not the frames of several views")
    magic, version, count, start = _HEAD.unpack_from(whole)
    if magic not in (_VIEWS, _MOTION) or version != _VERSION or not 1 <= count <= MOST_VIEWS or start != _start(count):
        raise BadFrames(f"no frames of several views: the value begins with {magic!r}, version {version}")
    end = _HEAD.size + count * _SIZE.size
    if len(whole) < start or _CRC.unpack_from(whole, end)[0] != zlib.crc32(whole[:end]):
        raise BadFrames("the header of the views is damaged: its checksum does not match")
    sizes = [_SIZE.unpack_from(whole, _HEAD.size + place * _SIZE.size)[0] for place in range(count)]
    if len(whole) != joined_bytes(sizes):
        raise BadFrames(f"the frames of the views are {len(whole)} bytes, the header promises {joined_bytes(sizes)}")
    return [whole[begin : begin + size] for begin, size in zip(begins(sizes), sizes, strict=False)]


def _start(count: int) -> int:
    return _aligned(_HEAD.size + count * _SIZE.size + _CRC.size)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
