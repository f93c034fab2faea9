"""Checksums of a file's blocks, by which bytes that come from a store are known to be those of the file.

A catalog keeps them in a column: a byte for the size of the blocks, and four for each. They are made of the bytes that
a build reads anyway. A file has some hundred at most, so blocks grow with it, up to a size that is still no burden to
read for the sake of a few frames: 21 bytes for a video of 1 MB, a KiB for one of 64 to 256 MB, then 4 bytes for each
MiB.

A checksum is the lower half of XXH3-64, as in the frame cache (`essp_common/cache/seal.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xxhash import xxh3_64_intdigest

Buffer: TypeAlias = bytes | bytearray | memoryview

SMALLEST_BLOCK = 2**18
LARGEST_BLOCK = 2**20
MOST_SMALL_BLOCKS = 256
"""A file has no more blocks, unless they are the largest."""
HEAD_BYTES = 2**16
"""Of a file on this machine's disk only the beginning is compared: enough to know another video."""
_SUM_BYTES = 4
_SIZES = range(1, 31)
"""Powers of two that a block may have."""


@dataclass(frozen=True, slots=True)
class BlockSums:
    """The checksums of the first blocks of a file; a file may have more blocks, which are not checked."""

    block_bytes: int
    sums: bytes

    @classmethod
    def of(cls, block_bytes: int, checksums: Sequence[int]) -> BlockSums:
        """From the checksum of each block, by its place."""
        return cls(block_bytes, struct.pack(f"<{len(checksums)}I", *checksums))

    @classmethod
    def unpacked(cls, data: bytes) -> BlockSums | None:
        """From what `packed` has made; None where nothing is known. Raises `ValueError`."""
        if not data:
            return None
        if len(data) % _SUM_BYTES != 1 or data[0] not in _SIZES:
            raise ValueError("these are not checksums of blocks")
        return cls(1 << data[0], data[1:])

    def packed(self) -> bytes:
        """As catalogs and messages hold them."""
        return bytes([self.block_bytes.bit_length() - 1]) + self.sums

    def fit(self, number: int, block: Buffer) -> bool:
        """Whether these are the bytes of a block; true for one that has no checksum."""
        known = self.sums[_SUM_BYTES * number : _SUM_BYTES * (number + 1)]
        return not known or known == struct.pack("<I", checksum(block))


def checksum(data: Buffer) -> int:
    """32 bits of any contiguous bytes."""
    return xxh3_64_intdigest(data) & 0xFFFF_FFFF


def head_sums(path: str) -> BlockSums | None:
    """That of the beginning of a file on a disk; None for an empty one."""
    with open(path, "rb", buffering=0) as file:
        head = file.read(HEAD_BYTES)
    return BlockSums.of(HEAD_BYTES, [checksum(head)]) if head else None


def block_bytes_of(size_bytes: int) -> int:
    """How large the blocks of a file are that is read from a store."""
    block_bytes = SMALLEST_BLOCK
    while block_bytes < LARGEST_BLOCK and block_bytes * MOST_SMALL_BLOCKS < size_bytes:
        block_bytes *= 2
    return block_bytes
