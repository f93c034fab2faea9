"""A seekable file over something that is read in ranges.

A video is opened, its index read (often at the end), and then a few places in it decoded, each for some
hundred kilobytes. So blocks are kept, least recently used ones dropped first, and reading on from where the last
request ended doubles the next one: one request for a small file, few for a large one, none for seeking back.
"""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from essp_common.errors import Unavailable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BLOCK_BYTES = 2**20
CACHED_BLOCKS = 16
LARGEST_REQUEST_BLOCKS = 8


class RangedFile(io.RawIOBase):
    """Read-only; used through `io.BufferedReader`, whose lock makes it safe for threads."""

    def __init__(self, size_bytes: int, fetch: Callable[[int, int], bytes], block_bytes: int = BLOCK_BYTES) -> None:
        """`fetch(start, length)` gives exactly that range, which always lies within the size, or raises."""
        self._size_bytes = size_bytes
        self._fetch = fetch
        self._block_bytes = block_bytes
        self._blocks: OrderedDict[int, memoryview] = OrderedDict()
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
        """Costs nothing until something is read."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Up to the end of the block in which the position lies; 0 at the end of the file."""
        target = memoryview(buffer).cast("B")
        if self._position >= self._size_bytes:
            return 0
        index, offset = divmod(self._position, self._block_bytes)
        found = self._block(index)[offset : offset + len(target)]
        target[: len(found)] = found
        self._position += len(found)
        return len(found)

    def _block(self, index: int) -> memoryview:
        if index not in self._blocks:
            self._load(index)
        self._blocks.move_to_end(index)
        return self._blocks[index]

    def _load(self, index: int) -> None:
        """Request `index` and, when reading on, blocks after it, up to one that is there already."""
        on = index == self._next_block and index > 0
        self._request_blocks = min(2 * self._request_blocks, LARGEST_REQUEST_BLOCKS) if on else 1
        end = index + 1
        while end < index + self._request_blocks and end not in self._blocks:
            end += 1
        start = index * self._block_bytes
        length = min(end * self._block_bytes, self._size_bytes) - start
        data = memoryview(self._fetch(start, length))
        if len(data) != length:
            raise Unavailable(f"{len(data)} bytes came where {length} were asked for")
        for block in range(index, end):
            at = (block - index) * self._block_bytes
            if at < length:
                self._blocks[block] = data[at : at + self._block_bytes]
        self._next_block = end
        while len(self._blocks) > CACHED_BLOCKS:
            self._blocks.popitem(last=False)
