"""Frame codecs: an array of frames as one self-describing cache value, and back.

    raw    uncompressed: costs no CPU and is read as a view, without a copy
    jpeg   lossy, uint8 `(T, H, W, C)` only; also suits stacks of flow
    zstd   lossless, any type and shape; smooth flow shrinks to a quarter

The first axis is time. Each frame is compressed separately (`compressors.py`), so `decode(value, frames=...)` reads
only these frames.

Layout, little-endian:

    64 bytes       header: magic, version, codec, dimensions, colour, parts, payload bytes, dtype, shape, CRC-32
    table          compressed: 8 bytes a part, its size and checksum, covered by the header's CRC-32
                   raw: 4 bytes a frame, its checksum, and zeros up to a multiple of 64 bytes
    payload        the raw array in C order, or the parts one after another

Bytes in any other format raise `BadFrames`. Header, table and length are always checked before memory is allocated. A
frame, raw or compressed, is checked against its checksum (`essp_common/cache/seal.py`) when it is read. Data that the
cache has returned is already checked: `summed` gives the cache the checksums of raw frames to use as its own, and
`decode` can be told not to check those a second time.

Header and table can move a raw value of exactly a power of two (such as 16 frames of 256x256) into the next allocation
class of Redis, which takes up to a fifth more memory. 15 or 17 frames avoid this.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from essp_common.cache.port import Buffer, Part, Summed
from essp_common.cache.seal import SUM_BYTES, checksum, packed
from essp_common.errors import BadFrames, ConfigError
from essp_common.pb.v1.messages_pb2 import FrameCodec
from essp_engine.video.colour import COLOURS, Colour
from essp_engine.video.compressors import COMPRESSORS, Compressor
from essp_engine.video.joined import has_motion, is_joined

MAX_BYTES = 2**32
"""Largest size of an array. A header with more is damaged or malicious: real clips are far smaller."""

_MAGIC = b"ESSP"
_VERSION = 2
_HEAD = struct.Struct("<4sBBBBIQ8s8I")
_CRC = struct.Struct("<I")
_HEAD_BYTES = _HEAD.size + _CRC.size
_PARTS = slice(8, 12)
"""The position of the number of parts in a header."""
_PART = struct.Struct("<II")
_ALIGNED = 64
"""Raw frames begin at a multiple of this many bytes in a value."""
_MIN_DIMENSIONS = 2
_MAX_DIMENSIONS = 8
_CODECS = ("raw", *COMPRESSORS)
_DTYPES = frozenset({"|u1", "|i1", "<u2", "<i2", "<f2", "<u4", "<i4", "<f4", "<u8", "<i8", "<f8"})


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The header of a value, which describes its array."""

    codec: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    parts: tuple[tuple[int, int], ...]
    """Size and checksum of each compressed part; empty for raw."""
    colour: Colour | None = None
    """The colour space of frames kept as YUV 4:2:0 or luma (`essp_engine/video/colour.py`)."""

    @property
    def nbytes(self) -> int:
        """Size of the decoded array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def payload_start(self) -> int:
        """Byte of the value at which the payload begins."""
        if self.codec == "raw":
            return _raw_start(self.shape[0])
        return _HEAD_BYTES + _PART.size * len(self.parts)

    @property
    def frame_bytes(self) -> int:
        """Size of a decoded frame in bytes."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def encode(array: NDArray[Any], codec: FrameCodec, colour: Colour | None = None) -> Buffer:
    """`array` as a cache value. Strides and byte order are arbitrary; the first axis is time.

    `colour`: of frames that are kept as YUV 4:2:0 or luma. Raises `ConfigError` if the codec cannot hold such an array.
    """
    if codec.name in ("", "raw"):
        value, frames = frame_buffer(array.shape, array.dtype)
        frames[...] = array
        complete(value, colour)
        return value
    dtype = _storable(array.shape, array.dtype)
    parts = _compressor(codec.name).compress(array, dtype, codec)
    table = [(len(part), checksum(part)) for part in parts]
    return b"".join([_pack_header(codec.name, array.shape, dtype, table, colour), *parts])


def frame_buffer(
    shape: Sequence[int], dtype: DTypeLike, into: memoryview | None = None
) -> tuple[memoryview, NDArray[Any]]:
    """A raw value to be filled in place: the whole value for the cache, and the array inside it.

    This saves a copy of the clip: a decoder writes directly into the stored value. Call `complete` after writing the
    frames, and do not write to them afterwards. `into`: memory to use, such as shared memory, of at least `raw_bytes`;
    it is not cleared. Without it, memory is allocated and zeroed.
    """
    stored = _storable(shape, np.dtype(dtype))
    size = raw_bytes(shape, stored)
    value = memoryview(bytearray(size)) if into is None else into[:size]
    value[:_HEAD_BYTES] = _pack_header("raw", shape, stored, [])
    return value, np.ndarray(tuple(shape), stored, buffer=value, offset=_raw_start(shape[0]))


def complete(value: memoryview, colour: Colour | None = None) -> None:
    """Add to a raw value what is only known after its frames are written: their checksums, and their colour space if it
    is not RGB. An incomplete value raises `BadFrames` when it is read."""
    found = header(value)
    if colour is not None:
        value[:_HEAD_BYTES] = _pack_header("raw", found.shape, found.dtype, [], colour)
    table = packed([checksum(frame) for frame in _raw_frames(value, found)])
    value[_HEAD_BYTES : found.payload_start] = table.ljust(found.payload_start - _HEAD_BYTES, b"\0")


def summed(value: Buffer) -> Summed:
    """A value with the checksums for the cache: for a raw value one for each frame, so that frames can be read
    separately.

    The checksums of raw frames are taken from the value, not computed again. Values that were joined are read together,
    and have one.
    """
    view = memoryview(value).cast("B")
    if is_joined(view) or has_motion(view):
        return Summed(value, packed([checksum(view)]))
    found = header(view)
    start = found.payload_start
    if found.codec != "raw" or not found.frame_bytes or not found.shape[0]:
        return Summed(value, packed([checksum(view)]))
    table = bytes(view[_HEAD_BYTES : _HEAD_BYTES + SUM_BYTES * found.shape[0]])
    return Summed(value, packed([checksum(view[:start])]) + table, start, found.frame_bytes)


def raw_bytes(shape: Sequence[int], dtype: DTypeLike) -> int:
    """Size of a raw value of such frames. Raises `ConfigError` for arrays that no codec supports."""
    return _raw_start(shape[0]) + math.prod(shape) * _storable(shape, np.dtype(dtype)).itemsize


def _raw_start(frames: int) -> int:
    """The byte at which the frames of a raw value begin."""
    return -(-(_HEAD_BYTES + SUM_BYTES * frames) // _ALIGNED) * _ALIGNED


def _raw_frames(value: memoryview, found: FrameHeader) -> list[memoryview]:
    """The bytes of each frame of a raw value."""
    size, start = found.frame_bytes, found.payload_start
    return [value[start + frame * size : start + (frame + 1) * size] for frame in range(found.shape[0])]


def max_encoded_bytes(shape: Sequence[int], dtype: DTypeLike, codec: str) -> int:
    """Upper bound for the size of such an array's value, for any content and quality.

    Raises `ConfigError` if the codec cannot hold such an array.
    """
    stored = _storable(shape, np.dtype(dtype))
    if codec in ("", "raw"):
        return raw_bytes(shape, stored)
    compressor = _compressor(codec)
    compressor.check(shape, stored)
    parts = shape[0] * (compressor.parts_per_frame(shape, stored) or 0)
    return _HEAD_BYTES + parts * (_PART.size + compressor.max_part_bytes(shape, stored))


def header(buffer: Buffer) -> FrameHeader:
    """The header of a value, checked against the value's length. Raises `BadFrames`."""
    view = memoryview(buffer).cast("B")
    found = _unpack_header(view)
    _check_length(view, found)
    return found


def raw_parts(size_bytes: int, count: int, frames: Sequence[int]) -> list[Part]:
    """The parts of a raw value of `size_bytes` and `count` frames that contain header and table, and these `frames`.

    `decode` accepts them joined, with the same `frames`.
    """
    start = _raw_start(count)
    frame_bytes, rest = divmod(size_bytes - start, count)
    if rest or frame_bytes < 0:
        raise BadFrames(f"{size_bytes} bytes are not a raw value of {count} frames")
    begins = [start + frame * frame_bytes for frame in _existing(frames, count)]
    return [(0, start), *((begin, begin + frame_bytes) for begin in begins)]


def described(buffer: Buffer) -> FrameHeader:
    """The header at the beginning of a value or its parts. Raises `BadFrames`."""
    return _unpack_header(memoryview(buffer).cast("B"))


def decode(
    buffer: Buffer,
    frames: Sequence[int] | None = None,
    described_by: FrameHeader | None = None,
    checked: bool = False,
) -> NDArray[Any]:
    """The array in a value, or only the frames with the indices `frames`, in that order.

    Raw: a read-only view of `buffer`; a copy only if `frames` are not evenly spaced. Other codecs: a new array, for
    which only the chosen frames are read. `buffer` may also be the parts of a raw value that contain just these frames
    (`raw_parts`). `described_by`: its header, if it was already read. `checked`: the cache has checked these bytes
    (`FrameCache.get`), so raw frames are not checked again. Raises `BadFrames` for damage and `IndexError` for an index
    out of range.
    """
    view = memoryview(buffer).cast("B")
    found = _unpack_header(view) if described_by is None else described_by
    if frames is not None and found.codec == "raw" and found.shape[0]:
        held = (len(_existing(frames, found.shape[0])), *found.shape[1:])
        if len(frames) < found.shape[0] and len(view) == found.payload_start + len(frames) * found.frame_bytes:
            if not checked:
                _check_raw(view, found, frames, range(len(frames)))
            return np.ndarray(held, found.dtype, buffer=view[found.payload_start :].toreadonly())
    _check_length(view, found)
    payload = view[found.payload_start :]
    chosen = range(found.shape[0]) if frames is None else _existing(frames, found.shape[0])
    if found.codec == "raw":
        if not checked:
            _check_raw(view, found, chosen, chosen)
        array: NDArray[Any] = np.ndarray(found.shape, found.dtype, buffer=payload.toreadonly())
        if frames is None:
            return array
        even = _as_slice(chosen)
        return array[even] if even is not None else array[list(chosen)]
    parts = _checked_parts(found, payload, chosen)
    return COMPRESSORS[found.codec].decompress(parts, (len(chosen), *found.shape[1:]), found.dtype)


def _compressor(codec: str) -> Compressor:
    """The compressor of a codec. Raises `ConfigError` for an unknown codec."""
    if codec not in COMPRESSORS:
        raise ConfigError(f"codec {codec!r}: use one of {', '.join(_CODECS)}", code="unknown")
    return COMPRESSORS[codec]


def _storable(shape: Sequence[int], dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type as stored. Raises `ConfigError` for arrays that no codec supports."""
    stored = dtype.newbyteorder("<")
    if stored.str not in _DTYPES:
        raise ConfigError(
            f"frames of type {dtype} cannot be stored; convert them to one of {sorted(_DTYPES)}", code="unsupported"
        )
    if not _MIN_DIMENSIONS <= len(shape) <= _MAX_DIMENSIONS or max(shape) >= 2**32:
        limits = f"{_MIN_DIMENSIONS} to {_MAX_DIMENSIONS} dimensions, the first one time"
        raise ConfigError(f"frames of shape {tuple(shape)} cannot be stored: {limits}", code="unsupported")
    if (nbytes := math.prod(shape) * stored.itemsize) > MAX_BYTES:
        raise ConfigError(
            f"frames of shape {tuple(shape)} are {nbytes} bytes, more than {MAX_BYTES}: use shorter clips", code="range"
        )
    return stored


def _pack_header(
    codec: str,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    table: Sequence[tuple[int, int]],
    colour: Colour | None = None,
) -> bytes:
    payload = sum(size for size, _ in table) if table else math.prod(shape) * dtype.itemsize
    padded = (*shape, *[0] * (_MAX_DIMENSIONS - len(shape)))
    of_colour = 0 if colour is None else 1 + COLOURS.index((colour.matrix, colour.full))
    head = _HEAD.pack(
        _MAGIC, _VERSION, _CODECS.index(codec), len(shape), of_colour, len(table), payload, dtype.str.encode(), *padded
    )
    packed = b"".join(_PART.pack(size, crc) for size, crc in table)
    return head + _CRC.pack(zlib.crc32(packed, zlib.crc32(head))) + packed


def _unpack_header(view: memoryview) -> FrameHeader:
    """The header, with every field checked."""
    if len(view) < _HEAD_BYTES:
        raise BadFrames(f"{len(view)} bytes are not frames: the header alone has {_HEAD_BYTES}")
    head = bytes(view[:_HEAD_BYTES])
    return _checked_header(view) if any(head[_PARTS]) else _raw_header(head)


@lru_cache(maxsize=64)
def _raw_header(head: bytes) -> FrameHeader:
    """The header of a value without parts. Cached: all raw clips of a job have the same header, and parsing it takes
    longer than reading the clip."""
    return _checked_header(memoryview(head))


def _checked_header(view: memoryview) -> FrameHeader:
    """The CRC finds damage; the other checks find forged headers."""
    magic, version, codec, dimensions, colour, parts, payload, dtype, *shape = _HEAD.unpack_from(view)
    if magic != _MAGIC:
        raise BadFrames(f"no frames: the value begins with {magic!r}, not {_MAGIC!r}")
    if version != _VERSION:
        raise BadFrames(f"frames of format version {version}; this release reads version {_VERSION}")
    table = view[_HEAD_BYTES : _HEAD_BYTES + _PART.size * parts]
    (crc,) = _CRC.unpack_from(view, _HEAD.size)
    if len(table) != _PART.size * parts or zlib.crc32(table, zlib.crc32(view[: _HEAD.size])) != crc:
        raise BadFrames("the header of the frames is damaged: its checksum does not match")
    name = dtype.rstrip(b"\0").decode("ascii", "replace")
    if codec >= len(_CODECS) or name not in _DTYPES or not _MIN_DIMENSIONS <= dimensions <= _MAX_DIMENSIONS:
        raise BadFrames(f"frames of unknown kind: codec {codec}, type {name!r}, {dimensions} dimensions")
    if colour > len(COLOURS):
        raise BadFrames(f"frames of unknown colour: {colour}")
    found = FrameHeader(
        _CODECS[codec],
        tuple(shape[:dimensions]),
        np.dtype(name),
        tuple(_PART.iter_unpack(table)),
        Colour(*COLOURS[colour - 1]) if colour else None,
    )
    if found.colour is not None and not _has_colour(found):
        raise BadFrames(f"impossible frames: {found.dtype} of shape {found.shape} of a video's own colours")
    promised = found.nbytes if found.codec == "raw" else sum(size for size, _ in found.parts)
    if parts != _parts(found) or payload != promised or found.nbytes > MAX_BYTES:
        raise BadFrames(f"impossible frames: {found.codec} of shape {found.shape} in {parts} parts, {payload} bytes")
    return found


def _check_length(view: memoryview, found: FrameHeader) -> None:
    promised = sum(size for size, _ in found.parts) if found.codec != "raw" else found.nbytes
    held = len(view) - found.payload_start
    if held != promised:
        state = "truncated" if held < promised else "followed by foreign bytes"
        raise BadFrames(f"frames are {state}: {held} bytes of payload, the header promises {promised}")


def _has_colour(found: FrameHeader) -> bool:
    """Whether the array can contain frames of YUV 4:2:0, `(T, 3H/2, W)`, or of luma, `(T, H, W, 1)`."""
    if found.dtype != np.uint8:
        return False
    planar = len(found.shape) == 3 and found.shape[1] % 3 == 0 and found.shape[2] % 2 == 0
    return planar or (len(found.shape) == 4 and found.shape[3] == 1)


def _parts(found: FrameHeader) -> int | None:
    """The number of parts of such an array; None if its codec does not support it."""
    if found.codec == "raw":
        return 0
    each = COMPRESSORS[found.codec].parts_per_frame(found.shape, found.dtype)
    return None if each is None else found.shape[0] * each


def _existing(frames: Sequence[int], count: int) -> Sequence[int]:
    if frames and not (min(frames) >= 0 and max(frames) < count):
        raise IndexError(f"frames {list(frames)} of a clip that has {count}")
    return frames


def _as_slice(chosen: Sequence[int]) -> slice | None:
    """The indices as a slice, if they are evenly spaced and ascending."""
    if not chosen:
        return slice(0, 0)
    step = chosen[1] - chosen[0] if len(chosen) > 1 else 1
    if step < 1 or any(b - a != step for a, b in pairwise(chosen)):
        return None
    return slice(chosen[0], chosen[-1] + 1, step)


def _checked_parts(found: FrameHeader, payload: memoryview, chosen: Iterable[int]) -> list[memoryview]:
    """The parts of the chosen frames, in order, each with its checksum verified."""
    count = found.shape[0]
    a_frame = len(found.parts) // count if count else 0
    starts = [0, *accumulate(size for size, _ in found.parts)]
    parts = []
    for frame in chosen:
        for index in range(frame * a_frame, (frame + 1) * a_frame):
            part = payload[starts[index] : starts[index + 1]]
            if checksum(part) != found.parts[index][1]:
                raise _damaged(frame)
            parts.append(part)
    return parts


def _check_raw(view: memoryview, found: FrameHeader, frames: Sequence[int], places: Sequence[int]) -> None:
    """Raises `BadFrames` if one of these frames is damaged; `places`: their indices among the frames in `view`."""
    sums = struct.unpack_from(f"<{found.shape[0]}I", view, _HEAD_BYTES)
    size, start = found.frame_bytes, found.payload_start
    if any(view[_HEAD_BYTES + SUM_BYTES * len(sums) : start]):
        raise BadFrames("the table of the frames is damaged: zeros have to follow it")
    for frame, place in zip(frames, places, strict=True):
        if checksum(view[start + place * size : start + (place + 1) * size]) != sums[frame]:
            raise _damaged(frame)


def _damaged(frame: int) -> BadFrames:
    return BadFrames(f"frame {frame} is damaged: its checksum does not match")
