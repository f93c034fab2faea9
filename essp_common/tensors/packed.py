"""A file of named arrays, in as few bytes as requested.

    "ESSPTNSR" | length of the header, 8 bytes | header, JSON | the bytes of the arrays, one after the other

For each array, the header has its name, type and shape, its encoding, and a checksum of the decoded result. An array is
encoded in three steps, each of which is optional:

1. **quantised** (`quantize.py`): fewer `bits` for each number;
2. as the **difference** to the array of the same name in another file (`planes.py`), which is exact;
3. in byte **planes**, each of which is **compressed** if that makes it smaller.

Arrays of integers, constant arrays, and by default arrays of one dimension (biases, statistics: small, and all outputs
depend on them) are exact in any case. Numbers are little-endian.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
import zstandard
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from essp_common.errors import ConfigError, PermanentError
from essp_common.tensors import planes
from essp_common.tensors.quantize import MOST_BITS, Codes, NotFinite, Range, quantize, range_of, range_type, restored

Array = NDArray[Any]
Scope = Literal["channel", "tensor", "global"]
Codec = Literal["none", "gzip", "zstd"]
_Bytes = bytes | memoryview
_Compress = Callable[[_Bytes], bytes]
_Shared = Mapping[np.dtype[Any], Range]

MAGIC = b"ESSPTNSR"
VERSION = 1
_LENGTH = struct.Struct("<Q")
_GZIP_LEVEL = 6
_ZSTD = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST, hash_log=6, min_match=7, window_log=17, chain_log=6, search_log=1
)
"""Searches only for long repetitions, such as zeros. There are no others, and encoding accidental ones costs more than
it saves: this takes less than half the time of level 1, and planes become smaller."""
_MOST_HEADER_BYTES = 64 * 2**20
_WORTH = 0.98
"""Data that compression hardly shrinks is stored raw: it would only take time to read."""
_Dtype = Literal[
    "float16", "float32", "float64", "bool",
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
]  # fmt: skip
DTYPES = get_args(_Dtype)
"""The number types of arrays, by their NumPy names."""


class DamagedTensors(PermanentError):
    """A damaged or inconsistent file of arrays."""

    kind = "damaged"


@dataclass(frozen=True, slots=True)
class Packing:
    """How arrays are encoded."""

    bits: int = 0
    """Bits for each number of a floating-point array; 0: exact."""
    scope: Scope = "channel"
    """What shares one range: each output channel, each array, or all arrays. With all arrays, float64 arrays share a
    second range, because their ranges are stored as float64."""
    exact_one_dimensional: bool = True
    """Whether arrays of one dimension stay exact."""
    codec: Codec = "zstd"
    planes: bool = True
    """Whether to compress the first bytes of all numbers together, then the second ones, and so on."""
    not_finite: Literal["refused", "exact"] = "refused"
    """How to handle an array with infinities or NaN, which no range can contain."""

    def __post_init__(self) -> None:
        if self.bits and not 2 <= self.bits <= MOST_BITS:
            raise ConfigError(f"{self.bits} is not 0 (exact) nor 2 to {MOST_BITS}", field="bits", code="range")


EXACT = Packing()


class Base(NamedTuple):
    """The file to which differences are computed."""

    name: str
    """Its identifier; must be the same when the file is read."""
    arrays: Mapping[str, Array]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Piece(_Part):
    codec: Codec
    stored: Annotated[int, Field(ge=0)]
    """Length in the file."""


class _Entry(_Part):
    """The encoding of one array."""

    name: str
    dtype: _Dtype
    shape: tuple[Annotated[int, Field(ge=0, lt=2**48)], ...] = Field(max_length=32)
    bits: int = Field(0, ge=0, le=MOST_BITS)
    ranges: Annotated[int, Field(ge=0)] = 0
    """Number of ranges (least, scale) before the codes: one for each channel, or one. Stored as float32, or as float64
    for float64 arrays."""
    difference: bool = False
    planes: bool
    pieces: tuple[_Piece, ...] = Field(max_length=8)
    crc: int
    """CRC-32 of the array, or of its codes."""

    @property
    def type(self) -> np.dtype[Any]:
        """The type of the array."""
        return np.dtype(np.dtype(self.dtype).newbyteorder("<"))

    @property
    def written_type(self) -> np.dtype[Any]:
        """The type of the codes, or of the array."""
        if self.bits:
            return np.dtype("<u1" if self.bits <= 8 else "<u2")
        return self.type

    @property
    def range_bytes(self) -> int:
        """The length of all ranges in bytes."""
        return 2 * self.ranges * range_type(self.type).itemsize

    @property
    def numbers(self) -> int:
        """The number of elements."""
        count = 1
        for side in self.shape:
            count *= side
        return count

    @property
    def raw_bytes(self) -> int:
        """The length in bytes of the codes, or of the array."""
        return self.numbers * self.written_type.itemsize


class _Header(_Part):
    version: int
    base: str = ""
    """The file to which differences refer; empty if there are none."""
    arrays: tuple[_Entry, ...]


class Described(NamedTuple):
    """One array of a file, without its values."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bits: int
    """0: exact."""
    difference: bool


def pack(arrays: Mapping[str, Array], packing: Packing = EXACT, base: Base | None = None) -> bytes:
    """Encode these arrays. An exact array becomes a difference if `base` has one of the same name, shape and type.

    Quantised arrays are restored and compared before this returns. Raises `PermanentError`, which names the array, for
    infinities or NaN that would be quantised, and for unsupported types.
    """
    shared = _shared_ranges(arrays, packing)
    compress = _compressor(packing.codec)
    entries: list[_Entry] = []
    pieces: list[_Bytes] = []
    for name, array in arrays.items():
        entry, written = _written(name, array, packing, base, shared, compress)
        entries.append(entry)
        pieces += written
    with_differences = base is not None and any(entry.difference for entry in entries)
    named = base.name if base is not None and with_differences else ""
    header = _Header(version=VERSION, base=named, arrays=tuple(entries)).model_dump_json().encode()
    return b"".join((MAGIC, _LENGTH.pack(len(header)), header, *pieces))


def unpack(data: bytes | memoryview, base: Base | None = None, most_bytes: int | None = None) -> dict[str, Array]:
    """Decode the arrays of a file. `base`: the file to which differences refer (`base_of`).

    `most_bytes`: the limit for all arrays together. It is required for files from others, because a few kilobytes may
    expand to gigabytes of zeros. None: no limit.

    Raises `DamagedTensors`; for a file that declares more than the limit, before any array is created.
    """
    header, payload = _opened(data)
    made = sum(entry.numbers * entry.type.itemsize for entry in header.arrays)
    if most_bytes is not None and made > most_bytes:
        raise DamagedTensors(f"its arrays have {made:,} bytes, and {most_bytes:,} are the most that can be in it")
    if header.base and (base is None or base.name != header.base):
        raise DamagedTensors(f"its arrays are differences to {header.base}, which was not given")
    return {entry.name: _read(entry, part, base) for entry, part in _parts(header, payload)}


def base_of(data: bytes | memoryview) -> str:
    """The name of the file to which the arrays of this one are differences; empty if the file is complete by itself.

    Raises `DamagedTensors`.
    """
    return _opened(data)[0].base


def described(data: bytes | memoryview) -> list[Described]:
    """The contents of a file, without reading the values. Raises `DamagedTensors`."""
    header, payload = _opened(data)
    return [
        Described(entry.name, entry.dtype, entry.shape, entry.bits, entry.difference)
        for entry, _ in _parts(header, payload)
    ]


# --- writing ---


def _shared_ranges(arrays: Mapping[str, Array], packing: Packing) -> _Shared:
    """The common range of all arrays, if the packing uses one: one for each type in which ranges are stored.

    Rounded to float32, the range of float64 numbers would be a different one, or not finite at all.
    """
    if not packing.bits or packing.scope != "global":
        return {}
    quantised: dict[np.dtype[Any], list[Array]] = {}
    for array in arrays.values():
        if _is_quantised(array, packing):
            quantised.setdefault(range_type(array.dtype), []).append(array)
    try:
        return {kind: range_of(own, packing.bits) for kind, own in quantised.items()}
    except NotFinite as error:
        raise _not_finite(next(n for n, a in arrays.items() if not np.isfinite(a).all())) from error


def _is_quantised(array: Array, packing: Packing) -> bool:
    if not packing.bits or array.dtype.kind != "f" or not array.size:
        return False
    if array.ndim <= 1 and packing.exact_one_dimensional:
        return False
    return packing.not_finite == "refused" or bool(np.isfinite(array).all())


def _written(
    name: str, array: Array, packing: Packing, base: Base | None, shared: _Shared, compress: _Compress
) -> tuple[_Entry, list[_Bytes]]:
    dtype = str(array.dtype.newbyteorder("="))
    if dtype not in DTYPES:
        raise PermanentError(f"{name}: arrays of {array.dtype} cannot be written; there are {', '.join(DTYPES)}")
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    ranges = b""
    count, bits = 0, 0
    difference = False
    body = array
    if _is_quantised(array, packing):
        body, found = _quantised(name, array, packing, shared)
        bits, count = packing.bits, len(found.least)
        ranges = np.stack(found, axis=1).astype(range_type(array.dtype)).tobytes()
    elif base is not None and (other := base.arrays.get(name)) is not None:
        difference = other.shape == array.shape and other.dtype == array.dtype and array.dtype.kind != "b"
        body = planes.difference(array, other) if difference else array
    in_planes = packing.planes and body.dtype.itemsize > 1 and body.size > 0
    rows = [row.data for row in planes.planes_of(body)] if in_planes else [_bytes_of(body)]
    written = [_compressed(row, packing.codec, compress) for row in rows]
    entry = _Entry(
        name=name,
        dtype=dtype,
        shape=array.shape,
        bits=bits,
        ranges=count,
        difference=difference,
        planes=in_planes,
        pieces=tuple(_Piece(codec=codec, stored=len(piece)) for codec, piece in written),
        crc=zlib.crc32(_bytes_of(body if bits else array)),
    )
    return entry, [ranges, *(piece for _, piece in written)]


def _quantised(name: str, array: Array, packing: Packing, shared: _Shared) -> tuple[Codes, Range]:
    by_channel = packing.scope == "channel" and array.ndim > 1
    try:
        found = shared.get(range_type(array.dtype)) or range_of([array], packing.bits, by_channel)
    except NotFinite as error:
        raise _not_finite(name) from error
    codes, beyond = quantize(array, packing.bits, found)
    if beyond > 0:
        raise PermanentError(f"{name}: a number would be restored {beyond:g} beyond half a step; save it exactly")
    return codes, found


def _compressed(raw: memoryview, codec: Codec, compress: _Compress) -> tuple[Codec, _Bytes]:
    if codec != "none":
        packed = compress(raw)
        if len(packed) < _WORTH * len(raw):
            return codec, packed
    return "none", raw


def _compressor(codec: Codec) -> _Compress:
    """A compressor for all arrays of a file: creating one for zstd takes about as long as compressing a small array."""
    if codec == "zstd":
        return zstandard.ZstdCompressor(compression_params=_ZSTD).compress
    return partial(zlib.compress, level=_GZIP_LEVEL, wbits=31)


# --- reading ---


def _opened(data: bytes | memoryview) -> tuple[_Header, memoryview]:
    view = memoryview(data)
    if bytes(view[: len(MAGIC)]) != MAGIC:
        raise DamagedTensors("it is not a file of packed arrays")
    start = len(MAGIC) + _LENGTH.size
    if len(view) < start:
        raise DamagedTensors("it ends within its header")
    (size,) = _LENGTH.unpack(view[len(MAGIC) : start])
    if size > min(_MOST_HEADER_BYTES, len(view) - start):
        raise DamagedTensors("it ends within its header")
    try:
        document = json.loads(bytes(view[start : start + size]))
        if isinstance(document, dict) and document.get("version", VERSION) != VERSION:
            raise DamagedTensors(f"it is of version {document['version']}; this program reads version {VERSION}")
        header = _Header.model_validate(document)
        if len({entry.name for entry in header.arrays}) < len(header.arrays):
            raise ValueError("two arrays of one name")
    except (ValidationError, ValueError, RecursionError) as error:
        raise DamagedTensors("its header cannot be read") from error
    return header, view[start + size :]


def _parts(header: _Header, payload: memoryview) -> Iterator[tuple[_Entry, memoryview]]:
    """Each array with its bytes."""
    begin = 0
    for entry in header.arrays:
        end = begin + entry.range_bytes + sum(piece.stored for piece in entry.pieces)
        if end > len(payload):
            raise DamagedTensors(f"it ends within {entry.name}")
        yield entry, payload[begin:end]
        begin = end
    if begin != len(payload):
        raise DamagedTensors(f"{len(payload) - begin} bytes follow its last array")


def _read(entry: _Entry, data: memoryview, base: Base | None) -> Array:
    try:
        body = _body(entry, data[entry.range_bytes :])
    except (zstandard.ZstdError, zlib.error, ValueError, MemoryError, OverflowError) as error:
        raise DamagedTensors(f"{entry.name}: its bytes are damaged") from error
    if entry.difference:
        other = base.arrays.get(entry.name) if base is not None else None
        if other is None or other.shape != entry.shape or other.dtype != entry.type:
            raise DamagedTensors(f"{entry.name}: the file that it is a difference to has no such array")
        body = planes.of_difference(body, other, entry.type)
    if zlib.crc32(_bytes_of(body)) != entry.crc:
        raise DamagedTensors(f"{entry.name}: its bytes are damaged")
    if not entry.bits:
        return body.reshape(entry.shape)
    pairs = np.frombuffer(data[: entry.range_bytes], range_type(entry.type)).reshape(-1, 2)
    if not len(pairs) or len(pairs) not in (1, *entry.shape[:1]) or not np.isfinite(pairs).all():
        raise DamagedTensors(f"{entry.name}: its ranges are damaged")
    return restored(body.reshape(entry.shape), Range(pairs[:, 0], pairs[:, 1]), entry.type)


def _body(entry: _Entry, data: memoryview) -> Array:
    """The codes, the array, or the difference, flattened."""
    dtype = np.dtype(f"<u{entry.type.itemsize}") if entry.difference else entry.written_type
    pieces = dtype.itemsize if entry.planes else 1
    if len(entry.pieces) != pieces or entry.raw_bytes % pieces:
        raise ValueError("another number of planes")
    size = entry.raw_bytes // pieces
    rows, begin = [], 0
    for piece in entry.pieces:
        rows.append(_decompressed(data[begin : begin + piece.stored], piece.codec, size))
        begin += piece.stored
    if entry.planes:
        return planes.of_planes([np.frombuffer(row, np.uint8) for row in rows], dtype)
    return np.frombuffer(bytearray(rows[0]), dtype)


def _decompressed(data: memoryview, codec: Codec, size: int) -> bytes | memoryview:
    """Decompress to exactly `size` bytes; never allocates more, whatever `data` declares."""
    raw: bytes | memoryview = data
    if codec == "zstd":
        if zstandard.frame_content_size(data) != size:
            raise ValueError("another size")
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
    elif codec == "gzip":
        raw = zlib.decompressobj(wbits=31).decompress(data, size + 1)
    if len(raw) != size:
        raise ValueError("another size")
    return raw


def _bytes_of(array: Array) -> memoryview:
    """The bytes of an array, in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _not_finite(name: str) -> PermanentError:
    return PermanentError(f"{name} has infinities or NaN, which have no place in a range; save it exactly")
