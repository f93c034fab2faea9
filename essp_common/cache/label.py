"""The label in front of each value in Redis and in shared memory: its seal, and the consumers that have not acked yet.

    000064 <hash of the key> <checksum> ⏎ -extractor.flow ⏎ -trainer.a ⏎ <spaces> <the value>
    000128 <hash of the key> 128+150528 <checksums> ⏎ -trainer.a ⏎ <spaces> <the value>

Six digits give the length of the label: a multiple of 64 bytes, so that arrays in the value stay aligned. The seal
(`seal.py`), in hexadecimal digits, proves that the value belongs to its key; for a value in pieces, it contains the
length of the first and of each further piece. An ack replaces the `-` of its consumer with a `+`, in place; the ack
that leaves no `-` frees the key. So one SET stores value, seal, consumers and lifetime atomically, and storing again
starts over. On a cluster, no second key is needed.

Older releases have no seal: this release treats their values as misses (`OtherRelease`), but leaves them for readers of
that release, which can read this release's values as before.
"""

from __future__ import annotations

import re
from functools import lru_cache

from essp_common.cache.port import Buffer
from essp_common.cache.seal import Foreign, OfOtherRelease, Seal, Unsound

ACK = r"""#!lua flags=allow-oom
local label = redis.pcall('GETRANGE', KEYS[1], 0, 255)
if type(label) == 'table' then
    if not string.find(label.err, 'WRONGTYPE', 1, true) then return label end
    redis.call('UNLINK', KEYS[1])
    return 0
end
local size = tonumber(string.sub(label, 1, 6))
if not size then return 0 end
label = size > 256 and redis.call('GETRANGE', KEYS[1], 0, size - 1) or string.sub(label, 1, size)
local place = string.find(label, '\n-' .. ARGV[1] .. '\n', 1, true)
if not place then return 0 end
local first = string.find(label, '\n-', 1, true)
if first == place and not string.find(label, '\n-', place + 1, true) then
    return redis.call('UNLINK', KEYS[1])
end
redis.call('SETRANGE', KEYS[1], place, '+')
return 0
"""
"""The Lua script of an ack: key and consumer -> 1 if that freed the key, else 0. It allocates no memory. A key that is
not a value, since another program wrote it, is removed."""

DIGITS = 6
"""Number of leading characters that give the length of the label."""
SEALED = DIGITS + 1 + 16 + 1
"""Number of leading characters that show whether there is a seal."""
UNIT = 64
"""Bytes of the shortest label."""


_SEALED = re.compile(rb"[0-9]{6} [0-9a-f]{16} ")
_SEAL = re.compile(rb"[0-9]{6} ([0-9a-f]{16}) (?:([0-9]+)\+([0-9]+) )?((?:[0-9a-f]{8})+)\n")


def label(seal: Seal, consumers: tuple[str, ...]) -> bytes:
    """Return the label of a value for these consumers, whose names contain no line break."""
    pieces = b"%d+%d " % (seal.head_bytes, seal.piece_bytes) if seal.piece_bytes else b""
    begin = b" %016x %b%b\n%b" % (seal.key, pieces, seal.sums.hex().encode(), _names(consumers))
    size = -(-(DIGITS + len(begin)) // UNIT) * UNIT
    return (b"%06d%b" % (size, begin)).ljust(size)


@lru_cache(maxsize=1024)
def _names(consumers: tuple[str, ...]) -> bytes:
    return "".join(f"-{name}\n" for name in dict.fromkeys(consumers)).encode()


def seal_in(label: Buffer) -> Seal:
    """Return the seal in a label. Raises `Foreign`."""
    found = _SEAL.match(label)
    if found is None:
        raise (OfOtherRelease if label_bytes(label) else Foreign)("it is not a value of this release of ESSP")
    key, head_bytes, piece_bytes, sums = found.groups()
    return Seal(int(key, 16), bytes.fromhex(sums.decode()), int(head_bytes or 0), int(piece_bytes or 0))


def is_sealed(begin: bytes) -> bool:
    """Whether a value with these first `SEALED` characters belongs to this release."""
    return _SEALED.fullmatch(begin) is not None


def opened(key: str, stored: Buffer) -> memoryview:
    """Return the value of `key` in what is stored, without a copy. Raises `Unsound` if it is damaged or another key's
    value."""
    view = memoryview(stored)
    size = label_bytes(view)
    if size > len(view):
        raise Unsound("it is cut off")
    value = view[size:]
    seal_in(view[:size]).check(key, value)
    return value


def label_bytes(stored: Buffer) -> int:
    """Return the length of a value's label, given at least its beginning; 0 if it has none."""
    digits = bytes(memoryview(stored)[:DIGITS])
    size = int(digits) if digits.isdigit() else 0
    return size if size >= UNIT else 0
