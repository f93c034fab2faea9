"""What shows that bytes of the frame cache are those that were stored under their key.

Each value is kept with a hash of its key and with checksums of its bytes, made by who made the bytes. Who takes them
from the cache checks both, so neither a flipped bit, nor another key's value, nor another release's is used for
training: it is `Unsound`, which adapters turn into a `CacheMiss`, and the clip is made again.

A checksum is of a piece: the whole value, or its head and each of its equal pieces (a header, and frames), so that
pieces can be read and checked alone. It is the lower half of XXH3-64, the fastest of what was measured here (40 GB/s,
CRC-32C 25, zlib's CRC-32 4), and fast without special instructions too. It lets other threads run, and copies nothing.
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
    """Bytes that are not those that were stored under the key; the words say what they are."""


class Foreign(Unsound):
    """No value of this release. No damage: another program stored it."""


class OfOtherRelease(Foreign):
    """A value with another release's label, which readers of that release may still want."""


class Seal(NamedTuple):
    """What a value is checked against."""

    key: int
    """`key_hash` of the key that it was stored under."""
    sums: bytes
    head_bytes: int = 0
    piece_bytes: int = 0

    @classmethod
    def of(cls, key: str, value: Buffer | Summed) -> Seal:
        """The seal of a value, whose checksum is made now where it has none yet."""
        if isinstance(value, Summed):
            return cls(key_hash(key), value.sums, value.head_bytes, value.piece_bytes)
        return cls(key_hash(key), packed([checksum(value)]))

    def check_key(self, key: str) -> None:
        """Raises `Unsound`."""
        if self.key != key_hash(key):
            raise Unsound("it holds the value of another key")

    def check(self, key: str, value: memoryview) -> None:
        """Whether these are all bytes of the value of `key`. Raises `Unsound`."""
        self.check_key(key)
        pieces = [value]
        if self.piece_bytes:
            begins = range(self.head_bytes, len(value), self.piece_bytes)
            pieces = [value[: self.head_bytes], *(value[begin : begin + self.piece_bytes] for begin in begins)]
        if packed([checksum(piece) for piece in pieces]) != self.sums:
            raise Unsound("its bytes are not those that were stored: a checksum does not match")

    def places(self, parts: Sequence[Part]) -> list[int] | None:
        """The piece that each part is; None if one of them is no piece, so that it cannot be checked alone."""
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
        """Whether these are the pieces of the value of `key` at these places. Raises `Unsound`."""
        self.check_key(key)
        sums = b"".join([self.sums[SUM_BYTES * place : SUM_BYTES * (place + 1)] for place in places])
        if packed([checksum(piece) for piece in pieces]) != sums:
            raise Unsound("its bytes are not those that were stored: a checksum does not match")


def checksum(data: Buffer) -> int:
    """32 bits of any contiguous bytes."""
    return xxh3_64_intdigest(data) & 0xFFFF_FFFF


def packed(sums: Sequence[int]) -> bytes:
    """Checksums as bytes."""
    return struct.pack(f"<{len(sums)}I", *sums)


@lru_cache(maxsize=256)
def key_hash(key: str) -> int:
    """64 bits of a key."""
    return xxh3_64_intdigest(key.encode())
