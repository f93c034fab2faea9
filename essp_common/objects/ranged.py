"""A seekable file over a source that is read in byte ranges.

Reading a video takes three steps: open it, read its index (often at the end), and decode a few groups of pictures of
some hundred kilobytes each, whose byte offsets are in the catalog. The file therefore caches blocks, and drops the
least recently used one first.

Ranges announced with `expect` are fetched in the background, in a few large requests: the next group of pictures
arrives while the present one is decoded. Other blocks are fetched when they are read. A read that continues where the
last request ended doubles the size of the next request. So a small file takes one request, a large one a few, and
seeking back takes none.

Blocks may also come from a cache that several files and processes share, and that outlives them (`share`). A block
belongs to one version of an object, which the store names.

If checksums are known (`verify`), bytes are compared with them before they are returned or cached. They are then read
in whole checked blocks. A block that does not match is fetched again: a wire, a proxy or a cache may have damaged it.
If the same bytes come twice, the object itself has changed.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

from essp_common.errors import BadVideo, Unavailable
from essp_common.objects.block_sums import BlockSums, block_bytes_of, checksum
from essp_common.objects.seekable import SeekableFile

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_log = logging.getLogger(__name__)

BLOCK_BYTES = 2**16
CACHED_BLOCKS = 512
LARGEST_REQUEST_BLOCKS = 64
_READERS = 2
"""Concurrent requests in the background."""
_FETCHES_AGAIN = 4
"""How often to fetch bytes again that do not match their checksum."""

Range = tuple[int, int]
"""Bytes [start, end)."""


class SharedBlocks(Protocol):
    """A cache of blocks that several files, and possibly several processes, share. Thread-safe."""

    def get(self, version: str, first: int, count: int) -> Sequence[bytes | None]:
        """Return `count` blocks of a version of an object, starting with number `first`; None for missing ones."""

    def put(self, version: str, first: int, blocks: Sequence[memoryview]) -> None:
        """Cache adjacent blocks that were read from the store; `first` is the number of the first."""

    def drop(self, version: str) -> None:
        """Drop all blocks of a version of an object: some may be damaged."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Adjacent blocks, fetched by one request."""

    first: int
    data: Future[memoryview]


class RangedFile(SeekableFile):
    """A read-only file. Use it through `io.BufferedReader`, whose lock makes it thread-safe."""

    def __init__(
        self, size_bytes: int, fetch: Callable[[int, int], bytes], block_bytes: int = BLOCK_BYTES, version: str = ""
    ) -> None:
        """`fetch(start, length)` returns exactly that range or raises. The range never exceeds `size_bytes`. `version`:
        unique to this object and its content; `fetch` raises if the content has changed. Empty: unknown, so that blocks
        are not shared.
        """
        super().__init__(size_bytes)
        self.shared: SharedBlocks | None = None
        """The shared cache, which is searched before blocks are fetched, and filled afterwards."""
        self._sums: BlockSums | None = None
        """The checksums that bytes are compared with."""
        self._noted: dict[int, int] | None = None
        """Checksums of the fetched blocks, if they are wanted."""
        self._together = 1
        """Number of blocks that are fetched together because they have one checksum."""
        self._name = version.rpartition(" ")[0]
        self._version = f"{version} {size_bytes} {block_bytes}" if version else ""
        self._fetch = fetch
        self._block_bytes = block_bytes
        self._blocks: OrderedDict[int, memoryview] = OrderedDict()
        self._coming: dict[int, _Piece] = {}
        """Announced blocks that were not read yet."""
        self._background: ThreadPoolExecutor | None = None
        self._next_block = 0
        self._request_blocks = 1

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
        """Announce the ranges to be read next, in order. Cancels earlier requests that have not begun."""
        for piece in self._coming.values():
            piece.data.cancel()
        self._coming.clear()
        if self._background is None:
            self._background = ThreadPoolExecutor(_READERS, "read-ahead")
        for first, end in self._missing(ranges):
            piece = _Piece(first, self._background.submit(self._fetched, first, end))
            self._coming.update(dict.fromkeys(range(first, end), piece))

    def reroute(self, through: Callable[[Callable[[], bytes]], bytes]) -> None:
        """Have each request made by `through`, which may call it again."""
        fetch = self._fetch
        self._fetch = lambda start, length: through(lambda: fetch(start, length))

    def verify(self, sums: BlockSums) -> None:
        """Compare everything read from now on with these checksums. Call it before the first read."""
        self._sums = sums
        self._together = max(1, sums.block_bytes // self._block_bytes)

    def note(self) -> None:
        """Compute checksums of everything read from now on. Call it before the first read."""
        self._noted = {}
        self._together = block_bytes_of(self._size_bytes) // self._block_bytes

    def noted(self) -> BlockSums:
        """Return the checksums of the whole file. Fetches what was not read yet.

        Raises `Unavailable` if the store has returned different bytes at different times.
        """
        if self._noted is None:
            raise ValueError("nothing was noted")
        block_bytes = self._together * self._block_bytes
        for number in range(-(-self._size_bytes // block_bytes)):
            if number not in self._noted:
                self._fetched(number * self._together, (number + 1) * self._together)
        return BlockSums.of(block_bytes, [self._noted[number] for number in sorted(self._noted)])

    def forget(self) -> None:
        """Drop this object's blocks from the shared cache."""
        if self.shared is not None and self._version:
            self.shared.drop(self._version)

    def close(self) -> None:
        """Close the file and abandon background requests. Idempotent."""
        if self._background is not None:
            self._background.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _missing(self, ranges: Iterable[Range]) -> Iterator[Range]:
        """Yield missing blocks as ranges of one request each. Together they fill at most half of the cache."""
        left = CACHED_BLOCKS // 2
        last = -(-self._size_bytes // self._block_bytes)
        for start, end in ranges:
            first, stop = self._whole(start // self._block_bytes, min(-(-end // self._block_bytes), last))
            while first < stop and left > 0:
                if self._is_there(first, coming=True):
                    first += self._together
                    continue
                to = first + self._together
                while to < min(stop, first + LARGEST_REQUEST_BLOCKS) and not self._is_there(to):
                    to += self._together
                left -= to - first
                yield first, to
                first = to

    def _whole(self, first: int, end: int) -> tuple[int, int]:
        """Extend a range to blocks that are fetched together."""
        return first // self._together * self._together, -(-end // self._together) * self._together

    def _is_there(self, first: int, coming: bool = False) -> bool:
        """Whether the blocks that are fetched together from `first` are all cached or, with `coming`, announced."""
        last = -(-self._size_bytes // self._block_bytes)
        return all(
            block in self._blocks or (coming and block in self._coming)
            for block in range(first, min(first + self._together, last))
        )

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
        """Request block `index` and, for sequential reading, the blocks after it, up to the next cached one."""
        on = index == self._next_block and index > 0
        self._request_blocks = min(2 * self._request_blocks, LARGEST_REQUEST_BLOCKS) if on else 1
        first, end = self._whole(index, index + 1)
        while end < first + self._request_blocks and not self._is_there(end, coming=True):
            end += self._together
        self._keep(first, self._fetched(first, end))

    def _fetched(self, first: int, end: int) -> memoryview:
        """Return blocks from the shared cache, and the missing ones from the store, in one request."""
        if self.shared is None or not self._version:
            return self._checked(first, self._requested(first, end))
        end = min(end, -(-self._size_bytes // self._block_bytes))
        found = list(self.shared.get(self._version, first, end - first))
        missing = [number for number, block in enumerate(found, first) if block is None]
        if not missing:
            return self._checked(first, memoryview(b"".join(block for block in found if block)))
        begin, stop = self._whole(missing[0], missing[-1] + 1)
        fetched = self._checked(begin, self._requested(begin, stop))
        blocks = [fetched[at : at + self._block_bytes] for at in range(0, len(fetched), self._block_bytes)]
        self.shared.put(self._version, begin, blocks)
        if len(blocks) == len(found):
            return fetched
        found[begin - first : begin - first + len(blocks)] = map(bytes, blocks)
        return self._checked(first, memoryview(b"".join(block for block in found if block)))

    def _checked(self, first: int, data: memoryview) -> memoryview:
        """Return the blocks from `first` after checking their checksums. Raises `BadVideo`."""
        if self._noted is not None:
            self._note(first, data, self._noted)
        if (sums := self._sums) is None:
            return data
        step = sums.block_bytes
        begin = first * self._block_bytes // step
        pieces = [data[at : at + step] for at in range(0, len(data), step)]
        wrong = [place for place, piece in enumerate(pieces) if not sums.fit(begin + place, piece)]
        if not wrong:
            return data
        self.forget()
        for place in wrong:
            pieces[place] = self._fetched_again(sums, begin + place, pieces[place])
        return memoryview(b"".join(pieces))

    def _fetched_again(self, sums: BlockSums, number: int, wrong: memoryview) -> memoryview:
        """Fetch a block again that did not match its checksum."""
        first, begin = number * self._together, number * sums.block_bytes
        where = f"{self._name or 'a video'}: bytes {begin} to {begin + len(wrong) - 1}"
        for _ in range(_FETCHES_AGAIN):
            again = self._requested(first, first + self._together)
            if sums.fit(number, again):
                _log.warning("%s came damaged, and right when they were read again", where)
                return again
            if again == wrong:
                raise BadVideo(
                    f"{where} differ from the file that the catalog was built from; build a new catalog", "changed"
                )
            wrong = again
        raise BadVideo(
            f"{where} came {_FETCHES_AGAIN + 1} times, different each time, and never as in the file that the "
            "catalog was "
            "built from; look for a proxy, a network card or memory that damages what it passes on"
        )

    def _note(self, first: int, data: memoryview, noted: dict[int, int]) -> None:
        step = self._together * self._block_bytes
        for number, at in enumerate(range(0, len(data), step), first // self._together):
            found = checksum(data[at : at + step])
            if noted.setdefault(number, found) != found:
                raise Unavailable(f"{self._name or 'a file'}: the store has given other bytes when it was read again")

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
    """Announce ranges to be read from `file`, if it is a `RangedFile` behind a buffer."""
    raw = getattr(file, "raw", None)
    if isinstance(raw, RangedFile):
        raw.expect(ranges)


def verify(file: BinaryIO, sums: BlockSums) -> None:
    """Verify everything read from `file` with checksums, if it is a `RangedFile` behind a buffer."""
    raw = getattr(file, "raw", None)
    if isinstance(raw, RangedFile):
        raw.verify(sums)


def noting(file: BinaryIO) -> RangedFile | None:
    """Compute checksums of everything read from `file`, if it is a `RangedFile` behind a buffer. Returns that file."""
    raw = getattr(file, "raw", None)
    if not isinstance(raw, RangedFile):
        return None
    raw.note()
    return raw


def forget(file: BinaryIO) -> None:
    """Drop the blocks of `file` from the shared cache, if it is a `RangedFile` behind a buffer: they may be damaged."""
    raw = getattr(file, "raw", None)
    if isinstance(raw, RangedFile):
        raw.forget()
    elif (whole := getattr(raw, "whole", None)) is not None:  # the file that this one is a part of
        forget(whole)


def reroute(file: BinaryIO, through: Callable[[Callable[[], bytes]], bytes]) -> None:
    """Have each request of `file`, if it is a `RangedFile` behind a buffer, made by `through`."""
    raw = getattr(file, "raw", None)
    if isinstance(raw, RangedFile):
        raw.reroute(through)


def share(file: BinaryIO, shared: SharedBlocks) -> None:
    """Let `file`, if it is a `RangedFile` behind a buffer, use blocks of `shared`, and add what it reads."""
    raw = getattr(file, "raw", None)
    if isinstance(raw, RangedFile):
        raw.shared = shared
    elif (whole := getattr(raw, "whole", None)) is not None:  # the file that this one is a part of
        share(whole, shared)
