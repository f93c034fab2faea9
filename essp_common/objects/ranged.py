"""A seekable file over a source that is read in byte ranges.

Reading a video takes three steps: open it, read its index (often at the end), and decode a few groups of pictures of
some hundred kilobytes each, whose byte offsets are in the catalog. The file therefore caches blocks, and drops the
least recently used one first.

Ranges announced with `expect` are fetched in the background, in a few large requests: the next group of pictures
arrives while the present one is decoded.

Other blocks are fetched when they are read. A read that continues where the last request ended doubles the size of the
next request. A small file therefore takes one request, a large one a few, and seeking back takes none.

Blocks may also come from a cache that several files and processes share, and that outlives them (`share`). A block
belongs to one version of an object, which the store names.
"""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

from essp_common.errors import Unavailable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BLOCK_BYTES = 2**16
CACHED_BLOCKS = 512
LARGEST_REQUEST_BLOCKS = 64
_READERS = 2
"""Concurrent requests in the background."""

Range = tuple[int, int]
"""Bytes [start, end)."""


class SharedBlocks(Protocol):
    """A cache of blocks that several files, and perhaps several processes, share. Thread-safe."""

    def get(self, version: str, first: int, count: int) -> Sequence[bytes | None]:
        """`count` blocks of a version of an object, from number `first` on; None for those that are not held."""

    def put(self, version: str, first: int, blocks: Sequence[memoryview]) -> None:
        """Keep adjacent blocks that were read from the store; `first` is the number of the first."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Adjacent blocks, fetched by one request."""

    first: int
    data: Future[memoryview]


class RangedFile(io.RawIOBase):
    """A read-only file. Use it through `io.BufferedReader`, whose lock makes it thread-safe."""

    def __init__(
        self, size_bytes: int, fetch: Callable[[int, int], bytes], block_bytes: int = BLOCK_BYTES, version: str = ""
    ) -> None:
        """`fetch(start, length)` returns exactly that range or raises. The range never exceeds `size_bytes`.

        `version`: a name that no other object has, nor this one with other content, and `fetch` raises when it has
        other content; empty: there is none, so that blocks are kept nowhere else.
        """
        self.shared: SharedBlocks | None = None
        """Where blocks are looked up before they are fetched, and kept after that."""
        self._version = f"{version} {size_bytes} {block_bytes}" if version else ""
        self._size_bytes = size_bytes
        self._fetch = fetch
        self._block_bytes = block_bytes
        self._blocks: OrderedDict[int, memoryview] = OrderedDict()
        self._coming: dict[int, _Piece] = {}
        """Blocks that are announced and not yet read."""
        self._background: ThreadPoolExecutor | None = None
        self._position = 0
        self._next_block = 0
        self._request_blocks = 1

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read. Fetches nothing. Raises `ValueError` for a position before the start."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read up to the end of the block at the position. Returns 0 at the end of the file."""
        target = memoryview(buffer).cast("B")
        if self._position >= self._size_bytes:
            return 0
        index, offset = divmod(self._position, self._block_bytes)
        found = self._block(index)[offset : offset + len(target)]
        target[: len(found)] = found
        self._position += len(found)
        return len(found)

    def expect(self, ranges: Iterable[Range]) -> None:
        """Announce the ranges to be read next, in this order. Cancels earlier requests that have not begun."""
        for piece in self._coming.values():
            piece.data.cancel()
        self._coming.clear()
        if self._background is None:
            self._background = ThreadPoolExecutor(_READERS, "read-ahead")
        for first, end in self._missing(ranges):
            piece = _Piece(first, self._background.submit(self._fetched, first, end))
            self._coming.update(dict.fromkeys(range(first, end), piece))

    def close(self) -> None:
        """Close the file and abandon requests in the background. Idempotent."""
        if self._background is not None:
            self._background.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _missing(self, ranges: Iterable[Range]) -> Iterator[Range]:
        """Missing blocks as ranges of one request each. Together they fill at most half of the cache."""
        left = CACHED_BLOCKS // 2
        last = -(-self._size_bytes // self._block_bytes)
        for start, end in ranges:
            stop = min(-(-end // self._block_bytes), last)
            first = start // self._block_bytes
            while first < stop and left > 0:
                if first in self._blocks or first in self._coming:
                    first += 1
                    continue
                to = first + 1
                while to < min(stop, first + LARGEST_REQUEST_BLOCKS) and to not in self._blocks:
                    to += 1
                left -= to - first
                yield first, to
                first = to

    def _block(self, index: int) -> memoryview:
        if index not in self._blocks:
            if index in self._coming:
                self._receive(self._coming[index])
            else:
                self._read_on(index)
        self._blocks.move_to_end(index)
        return self._blocks[index]

    def _receive(self, piece: _Piece) -> None:
        """Wait for an announced piece. If its request failed, the next read sends a new one."""
        for block in [block for block, other in self._coming.items() if other is piece]:
            del self._coming[block]
        self._keep(piece.first, piece.data.result())

    def _read_on(self, index: int) -> None:
        """Request block `index` and, in sequential reading, the blocks after it, up to the next cached one."""
        on = index == self._next_block and index > 0
        self._request_blocks = min(2 * self._request_blocks, LARGEST_REQUEST_BLOCKS) if on else 1
        end = index + 1
        while end < index + self._request_blocks and end not in self._blocks and end not in self._coming:
            end += 1
        self._keep(index, self._fetched(index, end))

    def _fetched(self, first: int, end: int) -> memoryview:
        """Blocks from the shared cache, and those that it lacks from the store, in one request."""
        if self.shared is None or not self._version:
            return self._requested(first, end)
        end = min(end, -(-self._size_bytes // self._block_bytes))
        found = list(self.shared.get(self._version, first, end - first))
        missing = [number for number, block in enumerate(found, first) if block is None]
        if missing:
            data = self._requested(missing[0], missing[-1] + 1)
            blocks = [data[at : at + self._block_bytes] for at in range(0, len(data), self._block_bytes)]
            self.shared.put(self._version, missing[0], blocks)
            if len(blocks) == len(found):
                return data
            found[missing[0] - first : missing[-1] + 1 - first] = map(bytes, blocks)
        return memoryview(b"".join(block for block in found if block))

    def _requested(self, first: int, end: int) -> memoryview:
        start = first * self._block_bytes
        length = min(end * self._block_bytes, self._size_bytes) - start
        data = memoryview(self._fetch(start, length))
        if len(data) != length:
            raise Unavailable(f"received {len(data)} bytes of the {length} requested")
        return data

    def _keep(self, first: int, data: memoryview) -> None:
        blocks = range(first, first + -(-len(data) // self._block_bytes))
        for block in blocks:
            at = (block - first) * self._block_bytes
            self._blocks[block] = data[at : at + self._block_bytes]
        self._next_block = blocks.stop
        while len(self._blocks) > CACHED_BLOCKS:
            self._blocks.popitem(last=False)


def expect(file: BinaryIO, ranges: Iterable[Range]) -> None:
    """Announce ranges to be read of `file`, if it is a `RangedFile` behind a buffer."""
    raw = getattr(file, "raw", None)
    if isinstance(raw, RangedFile):
        raw.expect(ranges)


def share(file: BinaryIO, shared: SharedBlocks) -> None:
    """Have `file`, if it is a `RangedFile` behind a buffer, take blocks from `shared`, and put there what it reads."""
    raw = getattr(file, "raw", None)
    if isinstance(raw, RangedFile):
        raw.shared = shared
    elif (whole := getattr(raw, "whole", None)) is not None:  # of which this file is a part
        share(whole, shared)
