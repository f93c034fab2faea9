"""The protocol by which a child reads and fills its decoder's block cache (`block_cache.py`): the messages, and the
client.

    child -> decoder   request blocks of a version of an object: `g`, first, count, version
    decoder -> child   the sizes of those blocks, 0 for missing ones, and their bytes, end to end
    child -> decoder   blocks that the child has read from the store: `p`, first, count, version, sizes, bytes
    child -> decoder   drop all blocks of a version of an object, because some may be damaged: `d`, 0, 1, version

Numbers are little-endian. The child imports this module, so it must not import anything that a child does not need.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeAlias

from essp_common.cache.port import Buffer
from essp_common.objects.ranged import BLOCK_BYTES, LARGEST_REQUEST_BLOCKS

MOST_MESSAGE_BYTES = LARGEST_REQUEST_BLOCKS * (BLOCK_BYTES + 4) + 2**16
_HEAD = struct.Struct("<cQII")
_GET, _PUT, _DROP = b"g", b"p", b"d"

Blocks: TypeAlias = list[bytes | None]


@dataclass(frozen=True, slots=True)
class Asked:
    """A child's message."""

    version: str
    first: int
    count: int
    blocks: list[bytes] | None
    """Blocks to keep; None for a request."""
    drop: bool = False
    """Whether to drop all blocks of this version."""


class BlockClient:
    """The decoder's blocks over a connection to it. Implements `essp_common.objects.ranged.SharedBlocks`. Thread-safe.

    After the connection fails, nothing is found or kept: the child reads from the store.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection: Connection | None = connection
        self._lock = threading.Lock()

    def get(self, version: str, first: int, count: int) -> Blocks:
        """See `SharedBlocks.get`."""
        with self._lock:
            if self._connection is not None:
                try:
                    self._connection.send_bytes(_asked(_GET, version, first, count))
                    return _blocks(memoryview(self._connection.recv_bytes()), count)
                except (EOFError, OSError, ValueError):
                    self._connection = None
        return [None] * count

    def put(self, version: str, first: int, blocks: Sequence[Buffer]) -> None:
        """See `SharedBlocks.put`."""
        with self._lock:
            if self._connection is not None:
                try:
                    self._connection.send_bytes(_asked(_PUT, version, first, len(blocks)) + _packed(blocks))
                except OSError:
                    self._connection = None

    def drop(self, version: str) -> None:
        """See `SharedBlocks.drop`."""
        with self._lock:
            if self._connection is not None:
                try:
                    self._connection.send_bytes(_asked(_DROP, version, 0, 1))
                except OSError:
                    self._connection = None


def parsed(message: bytes) -> Asked:
    """Parse a child's message. Raises `ValueError`."""
    if len(message) < _HEAD.size:
        raise ValueError("a message without a head")
    kind, first, count, length = _HEAD.unpack_from(message)
    end = _HEAD.size + length
    version = message[_HEAD.size : end].decode()
    if not 0 < count <= LARGEST_REQUEST_BLOCKS or kind not in (_GET, _PUT, _DROP):
        raise ValueError(f"{count} blocks, {kind!r}")
    if kind != _PUT:
        return Asked(version, first, count, None, drop=kind == _DROP)
    found = _blocks(memoryview(message)[end:], count)
    return Asked(version, first, count, [block for block in found if block])


def answer(blocks: Sequence[bytes | None]) -> bytes:
    """The answer to a request for blocks; None for missing ones."""
    return _packed([block or b"" for block in blocks])


def _asked(kind: bytes, version: str, first: int, count: int) -> bytes:
    name = version.encode()
    return _HEAD.pack(kind, first, count, len(name)) + name


def _packed(blocks: Sequence[Buffer]) -> bytes:
    return b"".join((struct.pack(f"<{len(blocks)}I", *map(len, blocks)), *blocks))


def _blocks(message: memoryview, count: int) -> Blocks:
    """Parse the blocks of `_packed`. Raises `ValueError`."""
    if len(message) < 4 * count:
        raise ValueError("sizes are missing")
    sizes = struct.unpack_from(f"<{count}I", message)
    if 4 * count + sum(sizes) != len(message):
        raise ValueError("sizes do not fit the bytes")
    found: Blocks = []
    at = 4 * count
    for size in sizes:
        found.append(bytes(message[at : at + size]) if size else None)
        at += size
    return found
