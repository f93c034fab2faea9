"""Proves that bytes in the frame cache are those that were stored under their key.

Each value is kept with a hash of its key and with checksums of its bytes, computed where the bytes were made. A reader
checks both, so neither a flipped bit, nor another key's value, nor another release's is used for training: such a value
is `Unsound`, which adapters convert to a `CacheMiss`, and the clip is rebuilt.

A checksum covers a piece: the whole value, or its head and each of its equal pieces (a header, and frames), so that
pieces can be read and checked separately. It is the lower half of XXH3-64, the fastest that was measured here (40 GB/s,
CRC-32C 25, zlib's CRC-32 4), and fast without special instructions, too. It releases the interpreter lock, and copies
nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from essp_common.cache.port import Buffer, Part, Summed

SUM_BYTES = 4


class Unsound(Exception):
    """Bytes that are not those that were stored under the key; the message says what they are."""


class Foreign(Unsound):
    """Not a value of this release. Not damage: another program stored it."""


class OfOtherRelease(Foreign):
    """A value with another release's label, which readers of that release may still want."""


class Seal(NamedTuple):
    """The reference that a value is checked against."""

    key: int
    """`key_hash` of the key under which it was stored."""
    sums: bytes
    head_bytes: int = 0
    piece_bytes: int = 0

    @classmethod
    def of(cls, key: str, value: Buffer | Summed) -> Seal:
        """Return the seal of a value; the checksum is computed now unless the value has one."""
        if isinstance(value, Summed):
            return cls(key_hash(key), value.sums, value.head_bytes, value.piece_bytes)
        return cls(key_hash(key), packed([checksum(value)]))

    def check_key(self, key: str) -> None:
        """Raise `Unsound` if this seal belongs to another key."""
        if self.key != key_hash(key):
            raise Unsound("it holds the value of another key")

    def check(self, key: str, value: memoryview) -> None:
        """Check that these are all bytes of the value of `key`. Raises `Unsound`."""
        self.check_key(key)
        pieces = [value]
        if self.piece_bytes:
            begins = range(self.head_bytes, len(value), self.piece_bytes)
            pieces = [value[: self.head_bytes], *(value[begin : begin + self.piece_bytes] for begin in begins)]
        if packed([checksum(piece) for piece in pieces]) != self.sums:
            raise Unsound("its bytes are not those that were stored: a checksum does not match")

    def places(self, parts: Sequence[Part]) -> list[int] | None:
        """Return the index of the piece for each part; None if a part is not a piece, so that it cannot be checked
        separately."""
        if not self.piece_bytes:
            return None
        found = []
        for begin, end in parts:
            place, rest = divmod(begin - self.head_bytes, self.piece_bytes)
            if (begin, end) == (0, self.head_bytes):
                found.append(0)
            elif begin >= self.head_bytes and not rest and end - begin == self.piece_bytes:
                found.append(1 + place)
            else:
                return None
        return found

    def check_pieces(self, key: str, places: Sequence[int], pieces: Iterable[Buffer]) -> None:
        """Check that these are the pieces of the value of `key` with these indices. Raises `Unsound`."""
        self.check_key(key)
        sums = b"".join([self.sums[SUM_BYTES * place : SUM_BYTES * (place + 1)] for place in places])
        if packed([checksum(piece) for piece in pieces]) != sums:
            raise Unsound("its bytes are not those that were stored: a checksum does not match")


def checksum(data: Buffer) -> int:
    """Return a 32-bit checksum of contiguous bytes."""
    return xxh3_64_intdigest(data) & 0xFFFF_FFFF


def packed(sums: Sequence[int]) -> bytes:
    """Return checksums as bytes."""
    return struct.pack(f"<{len(sums)}I", *sums)


@lru_cache(maxsize=256)
def key_hash(key: str) -> int:
    """Return a 64-bit hash of a key."""
    return xxh3_64_intdigest(key.encode())
