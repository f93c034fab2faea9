"""Checksums of a file's blocks, which verify that bytes from a store belong to the file.

A catalog keeps them in a column: one byte for the size of the blocks, and four per block. They are computed from bytes
that a build reads anyway. A file has a few hundred blocks at most, so blocks grow with the file, up to a size that is
still cheap to read for a few frames: 21 bytes for a video of 1 MB, a KiB for one of 64 to 256 MB, then 4 bytes per MiB.

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
"""A file has no more blocks than this, unless they have the largest size."""
HEAD_BYTES = 2**16
"""For a file on this machine's disk, only the beginning is compared: enough to recognise another video."""
_SUM_BYTES = 4
_SIZES = range(1, 31)
"""Exponents of the allowed block sizes, which are powers of two."""


@dataclass(frozen=True, slots=True)
class BlockSums:
    """The checksums of the first blocks of a file; further blocks are not checked."""

    block_bytes: int
    sums: bytes

    @classmethod
    def of(cls, block_bytes: int, checksums: Sequence[int]) -> BlockSums:
        """Create from the checksum of each block, in order."""
        return cls(block_bytes, struct.pack(f"<{len(checksums)}I", *checksums))

    @classmethod
    def unpacked(cls, data: bytes) -> BlockSums | None:
        """Parse the result of `packed`; None if nothing is known. Raises `ValueError`."""
        if not data:
            return None
        if len(data) % _SUM_BYTES != 1 or data[0] not in _SIZES:
            raise ValueError("these are not checksums of blocks")
        return cls(1 << data[0], data[1:])

    def __len__(self) -> int:
        return len(self.sums) // _SUM_BYTES

    def packed(self) -> bytes:
        """Return the form in catalogs and messages."""
        return bytes([self.block_bytes.bit_length() - 1]) + self.sums

    def fit(self, number: int, block: Buffer) -> bool:
        """Whether these are the bytes of a block; True for a block without a checksum."""
        known = self.sums[_SUM_BYTES * number : _SUM_BYTES * (number + 1)]
        return not known or known == struct.pack("<I", checksum(block))


def checksum(data: Buffer) -> int:
    """Return a 32-bit checksum of contiguous bytes."""
    return xxh3_64_intdigest(data) & 0xFFFF_FFFF


def head_sums(path: str) -> BlockSums | None:
    """Return the checksum of the beginning of a file on a disk; None for an empty file."""
    with open(path, "rb", buffering=0) as file:
        head = file.read(HEAD_BYTES)
    return BlockSums.of(HEAD_BYTES, [checksum(head)]) if head else None


def block_bytes_of(size_bytes: int) -> int:
    """Return the block size for a file that is read from a store."""
    block_bytes = SMALLEST_BLOCK
    while block_bytes < LARGEST_BLOCK and block_bytes * MOST_SMALL_BLOCKS < size_bytes:
        block_bytes *= 2
    return block_bytes
