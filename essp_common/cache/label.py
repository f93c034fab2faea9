"""The label before each value in Redis names the consumers that have not acked yet.

    000064 ⏎ -extractor.flow ⏎ -trainer.a ⏎ <spaces> <the value>

Six digits tell how long the label is: a multiple of 64 bytes, so that arrays in the value stay aligned. An ack turns
the `-` of its consumer into a `+`, in place; the one that leaves no `-` frees the key. So one SET stores value,
consumers and lifetime, whole or not at all, and storing again begins anew. On a cluster a key needs no companion.
"""

from __future__ import annotations

from functools import lru_cache

from essp_common.cache.port import Buffer

ACK = r"""#!lua flags=allow-oom
local label = redis.call('GETRANGE', KEYS[1], 0, 255)
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
"""The Lua script of an ack: key and consumer -> 1 if that freed the key, else 0. It needs no memory: nothing grows."""

DIGITS = 6
"""Characters at the beginning that say how long the label is."""
UNIT = 64
"""Bytes of the shortest label."""


@lru_cache(maxsize=1024)
def label(consumers: tuple[str, ...]) -> bytes:
    """The label of a value for these consumers, whose names contain no line break."""
    names = "".join(f"-{name}\n" for name in dict.fromkeys(consumers)).encode()
    size = -(-(DIGITS + 1 + len(names)) // UNIT) * UNIT
    return (b"%06d\n%b" % (size, names)).ljust(size)


def unlabelled(stored: Buffer) -> memoryview | None:
    """The value, not copied; None for what has no label: another release or another program wrote it."""
    view = memoryview(stored)
    size = label_bytes(view)
    return view[size:] if 0 < size <= len(view) else None


def label_bytes(stored: Buffer) -> int:
    """How long the label of a value is, of which at least the beginning is here; 0: it has none."""
    digits = bytes(memoryview(stored)[:DIGITS])
    size = int(digits) if digits.isdigit() else 0
    return size if size >= UNIT else 0
