"""Damaged copies of video files, each of which follows from a seed alone.

The kinds are those that reach a data set for real: copies that were cut short, bad blocks and flipped bits in header,
index or data, pieces in the wrong order, and headers that lie; beside them what was never a video but is called one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

HEADER = 400
"""Bytes at the beginning that are taken as header."""
_BOX_FIELDS = (b"stsz", b"stts", b"stco", b"stsc", b"stss", b"ctts", b"mvhd", b"mdhd", b"tkhd", b"elst", b"trun")
_LENGTH_FIELDS = (b"moov", b"mdat", b"trak", b"stbl", b"avcC", b"hvcC", b"movi", b"idx1", b"strh", b"strf", b"avih")
_TEN_HOURS_MS = 36_000_000


@dataclass(frozen=True, slots=True)
class Damaged:
    """One file."""

    name: str
    kind: str
    data: bytes


def truncated(data: bytes, rng: random.Random) -> bytes:
    """Cut short."""
    return data[: rng.randrange(1, len(data))]


def flipped_in_header(data: bytes, rng: random.Random) -> bytes:
    """Some bits of the first bytes are wrong."""
    return _flipped(data, rng, 0, min(HEADER, len(data)))


def flipped_in_index(data: bytes, rng: random.Random) -> bytes:
    """Some bits are wrong where MP4 and AVI written in one go have their index: at the end."""
    return _flipped(data, rng, max(0, len(data) - 1200), len(data))


def flipped_in_data(data: bytes, rng: random.Random) -> bytes:
    """Some bits anywhere are wrong."""
    return _flipped(data, rng, 0, len(data))


def overwritten(data: bytes, rng: random.Random) -> bytes:
    """A bad block: zeros or noise."""
    size = min(rng.choice((16, 64, 512)), len(data) // 2)
    at = rng.randrange(len(data) - size)
    block = bytes(size) if rng.random() < 0.5 else rng.randbytes(size)
    return data[:at] + block + data[at + size :]


def swapped(data: bytes, rng: random.Random) -> bytes:
    """Two pieces changed places."""
    a, b, c, d = sorted(rng.sample(range(len(data)), 4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def missing_piece(data: bytes, rng: random.Random) -> bytes:
    """A piece is not there."""
    start, end = sorted(rng.sample(range(len(data)), 2))
    return data[:start] + data[min(end, start + len(data) // 3) :]


def doubled_piece(data: bytes, rng: random.Random) -> bytes:
    """A piece is there twice."""
    start, end = sorted(rng.sample(range(len(data)), 2))
    return data[:end] + data[start:]


def huge_size(data: bytes, rng: random.Random) -> bytes:
    """A field that holds a length or a number of entries says billions."""
    huge = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x40\x00\x00\x00", b"\x01\xff\xff\xff"))
    places = [at for tag in _LENGTH_FIELDS for at in _found(data, tag)]
    sizes = [at - 4 for at in places if at >= 4] + [at + 4 for at in places]
    counts = [at + 8 for tag in _BOX_FIELDS for at in _found(data, tag)]
    ebml = [at + 4 for at in _found(data, b"\x1f\x43\xb6\x75") + _found(data, b"\x18\x53\x80\x67")]
    at = rng.choice(sizes + counts + ebml or [rng.randrange(len(data) - 4)])
    return data[:at] + huge + data[at + 4 :]


def ten_hours(data: bytes, rng: random.Random) -> bytes:
    """A header that declares ten hours, or frames enough for them."""
    long = (rng.choice((1, 25)) * _TEN_HOURS_MS).to_bytes(4, "big")
    places = [at + 20 for tag in (b"mvhd", b"mdhd") for at in _found(data, tag)]
    places += [at + 24 for at in _found(data, b"tkhd")] + [at + 8 for at in _found(data, b"stts")]
    places += [at + 12 for at in _found(data, b"stts")]
    for at in _found(data, b"avih"):  # little-endian: total frames
        return data[: at + 24] + long[::-1] + data[at + 28 :]
    for at in _found(data, b"\x44\x89\x88"):  # Matroska: the duration, a double
        return data[: at + 3] + bytes.fromhex("41812a8800000000") + data[at + 11 :]
    at = rng.choice(places or [rng.randrange(len(data) - 4)])
    return data[:at] + long + data[at + 4 :]


def emptied(data: bytes, rng: random.Random) -> bytes:
    """Nothing, or next to nothing."""
    return data[: rng.choice((0, 1, 4, 12))]


def zeros(data: bytes, rng: random.Random) -> bytes:
    """A file system that promised the size and never wrote: zeros from somewhere on."""
    at = rng.randrange(len(data))
    return data[:at] + bytes(len(data) - at)


KINDS: dict[str, tuple[int, Callable[[bytes, random.Random], bytes]]] = {
    "truncated": (6, truncated),
    "flipped-header": (5, flipped_in_header),
    "flipped-index": (5, flipped_in_index),
    "flipped-data": (5, flipped_in_data),
    "overwritten": (4, overwritten),
    "swapped": (3, swapped),
    "missing": (3, missing_piece),
    "doubled": (2, doubled_piece),
    "huge": (4, huge_size),
    "ten-hours": (1, ten_hours),
    "emptied": (1, emptied),
    "zeros": (2, zeros),
}
"""Kind -> how many of each dozen or so, and what does it."""

NEVER_VIDEO: dict[str, bytes] = {
    "playlist.mp4": b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
    "remote-playlist.mp4": b"#EXTM3U\n#EXTINF:10,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n",
    "concat.mp4": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "sdp.mp4": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n",
    "text.mp4": b"this is not a video\n" * 50,
    "page.webm": b"<!DOCTYPE html><title>404 Not Found</title><h1>Not Found</h1>" * 5,
    "picture.mp4": b"\x89PNG\r\n\x1a\n" + bytes(200),
    "archive.mkv": b"PK\x03\x04" + bytes(range(256)),
    "subtitles.mkv": b"1\n00:00:01,000 --> 00:00:02,000\nhello\n" * 20,
}


def variants(source: str, data: bytes, count: int, seed: int) -> Iterator[Damaged]:
    """`count` damaged copies of one file."""
    stem, _, suffix = source.rpartition(".")
    rng = random.Random(f"{seed} {source}")
    kinds = [kind for kind, (weight, _) in KINDS.items() for _ in range(weight)]
    for number in range(count):
        kind = kinds[number % len(kinds)]
        damaged = KINDS[kind][1](data, rng)
        if rng.random() < 0.15 and len(damaged) > 100:  # troubles come in pairs
            kind, damaged = f"{kind}+flipped", flipped_in_data(damaged, rng)
        yield Damaged(f"{stem}-{number:03}-{kind}.{suffix}", kind, damaged)


def _flipped(data: bytes, rng: random.Random, start: int, end: int) -> bytes:
    copy = bytearray(data)
    for _ in range(rng.choice((1, 2, 8, 40))):
        copy[rng.randrange(start, end)] ^= 1 << rng.randrange(8)
    return bytes(copy)


def _found(data: bytes, tag: bytes) -> list[int]:
    places = []
    at = data.find(tag)
    while at >= 0:
        places.append(at)
        at = data.find(tag, at + 1)
    return places
