"""A decoder's cache of compressed video, so that it is read from an object store once, not once per epoch.

The bytes are in the decoder process, and its child processes request them over a socket each: what one child has read
is available to all, and outlives every child. Decoded frames would need about fifty times as much memory.

A block belongs to one version of an object: its URI, size and ETag. A store reads on the condition that the ETag still
matches. So when a file changes, its old blocks are never requested again, and are evicted like any unused block: when
the limit is reached, the least recently used go first.

A child compares what it has read, and what it finds here, with the checksums of the catalog. Without checksums, a video
that turns out damaged is read from the store again before it is blamed, and its blocks are dropped (`child.py`).

A failure here only costs a read from the store. Children are not trusted: a message in the wrong format ends the
service for the child that sent it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from essp_common.runtime import metrics
from essp_common.runtime.threads import guarded
from essp_engine.decoding.block_protocol import MOST_MESSAGE_BYTES, Blocks, answer, parsed

log = logging.getLogger(__name__)

_HIT, _MISS, _EVICTED = (metrics.VIDEO_CACHE.labels(what) for what in ("hit", "miss", "evicted"))
_USED = metrics.VIDEO_CACHE_BYTES.labels("used")


class BlockCache:
    """Blocks of objects, `limit_bytes` at most. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        metrics.VIDEO_CACHE_BYTES.labels("limit").set(limit_bytes)

    @property
    def held_bytes(self) -> int:
        """Size of all blocks in bytes."""
        return self._bytes

    def get(self, version: str, first: int, count: int) -> Blocks:
        """`count` blocks of a version of an object, starting with number `first`; None for missing ones."""
        with self._lock:
            found = [self._used((version, block)) for block in range(first, first + count)]
        _HIT.inc(sum(len(block) for block in found if block))
        return found

    def put(self, version: str, first: int, blocks: Sequence[bytes]) -> None:
        """Keep adjacent blocks that were read from the store; existing ones are not replaced."""
        evicted = 0
        with self._lock:
            for number, block in enumerate(blocks, first):
                if (version, number) in self._blocks or len(block) > self._limit_bytes:
                    continue
                self._blocks[version, number] = block
                self._bytes += len(block)
                while self._bytes > self._limit_bytes:
                    dropped = len(self._blocks.popitem(last=False)[1])
                    self._bytes -= dropped
                    evicted += dropped
            _USED.set(self._bytes)
        _MISS.inc(sum(map(len, blocks)))
        _EVICTED.inc(evicted)

    def drop(self, version: str) -> None:
        """Drop all blocks of a version of an object, or of all versions with this prefix, because some may be
        damaged."""
        with self._lock:
            for key in [key for key in self._blocks if key[0].startswith(version)]:
                self._bytes -= len(self._blocks.pop(key))
            _USED.set(self._bytes)

    def _used(self, key: tuple[str, int]) -> bytes | None:
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
        return block


class BlockServer:
    """Serves the blocks to one child, in a thread that ends with the child."""

    def __init__(self, cache: BlockCache, connection: Connection) -> None:
        """Takes ownership of the connection."""
        self._cache = cache
        self._connection = connection
        self._thread = guarded("essp-video-cache", self._serve)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, after the child has ended."""
        self._thread.join()

    def _serve(self) -> None:
        with self._connection, suppress(EOFError, OSError):
            while True:
                try:
                    asked = parsed(self._connection.recv_bytes(MOST_MESSAGE_BYTES))
                except ValueError as error:
                    log.warning("a decoder's child does not keep to the format of the video cache: %s", error)
                    return
                if asked.drop:
                    self._cache.drop(asked.version)
                elif asked.blocks is not None:
                    self._cache.put(asked.version, asked.first, asked.blocks)
                else:
                    found = self._cache.get(asked.version, asked.first, asked.count)
                    self._connection.send_bytes(answer(found))
