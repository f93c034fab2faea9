"""What can be learned from a video in addition to its class: several labels, spans in time, a value for each frame.

A catalog's row stores them packed (`VideoRow.targets`): a JSON header followed by the arrays, compressed. Frames are
numbered in display order, as everywhere in a catalog, so a clip finds its values by frame number.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from essp_common.errors import ConfigError

MOST_BYTES = 2**28
"""Maximum unpacked bytes of one row's targets: larger ones are refused, so that a catalog cannot fill the memory."""
_LENGTH = 4
_KINDS = "biuf"


class Span(NamedTuple):
    """Frames `first_frame` to `last_frame` of the file, both inclusive, show `name`."""

    first_frame: int
    last_frame: int
    name: str


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of one video, or of one labelled segment."""

    labels: tuple[str, ...] = ()
    """What the video as a whole shows."""
    spans: tuple[Span, ...] = ()
    """Sorted by first frame. They may overlap, and leave frames out."""
    series: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Name -> `(frames, ...)`, one value for each frame of the video or segment, starting with its first frame."""

    def __bool__(self) -> bool:
        return bool(self.labels or self.spans or self.series)

    @property
    def names(self) -> frozenset[str]:
        """The names of all labels and spans."""
        return frozenset(self.labels) | {span.name for span in self.spans}


NONE = Targets()


def pack(targets: Targets) -> bytes:
    """Targets as stored in a catalog; empty if there are none. Raises `ConfigError` for arrays that are not numeric."""
    if not targets:
        return b""
    arrays = {name: np.asarray(values) for name, values in sorted(targets.series.items())}
    for name, values in arrays.items():
        if values.dtype.kind not in _KINDS or not values.ndim:
            raise ConfigError(f"{name} holds {values.dtype}, not a number for each frame", field="targets", code="type")
    header = {
        "labels": list(targets.labels),
        "spans": [list(span) for span in sorted(targets.spans)],
        "series": {name: [values.dtype.newbyteorder("<").str, list(values.shape)] for name, values in arrays.items()},
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    data = [values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes() for values in arrays.values()]
    whole = b"".join([len(text).to_bytes(_LENGTH, "little"), text, *data])
    if len(whole) > MOST_BYTES:
        raise ConfigError(
            f"{len(whole)} bytes are more than a row may hold ({MOST_BYTES})", field="targets", code="range"
        )
    return zlib.compress(whole, 6)


def unpack(packed: bytes, names_only: bool = False) -> Targets:
    """The inverse of `pack`; with `names_only`, series have no frames. Raises `ConfigError` for invalid data."""
    if not packed:
        return NONE
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(packed, _LENGTH)
        if len(data) != _LENGTH:
            raise ValueError("they end early")
        begin = int.from_bytes(data, "little")
        if begin > MOST_BYTES:
            raise ValueError("they are larger than any row's")
        text = _more(reader, begin)
        header = json.loads(text)
        spans = tuple(Span(int(first), int(last), str(name)) for first, last, name in header["spans"])
        labels = tuple(map(str, header["labels"]))
        kinds = {str(name): _kind(*kind) for name, kind in header["series"].items()}
        if sum(dtype.itemsize * math.prod(sizes) for dtype, sizes in kinds.values()) > MOST_BYTES:
            raise ValueError("they are larger than any row's")
        read = _none if names_only else partial(_array, reader)
        series = {name: read(*kind) for name, kind in kinds.items()}
    except (zlib.error, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"a catalog's targets cannot be read ({error}); build the catalog again", code="unreadable"
        ) from error
    return Targets(labels, spans, series)


def _more(reader: Any, count: int) -> bytes:
    """The next `count` bytes."""
    data: bytes = reader.decompress(reader.unconsumed_tail, count) if count else b""
    while len(data) < count:
        more = reader.decompress(reader.unconsumed_tail, count - len(data))
        if not more:
            raise ValueError("they end early")
        data += more
    return data


def _array(reader: Any, dtype: np.dtype[Any], sizes: list[int]) -> NDArray[Any]:
    count = math.prod(sizes)
    return np.frombuffer(_more(reader, count * dtype.itemsize), dtype).reshape(sizes)


def _none(dtype: np.dtype[Any], sizes: list[int]) -> NDArray[Any]:
    return np.empty((0, *sizes[1:]), dtype)


def _kind(kind: str, shape: list[int]) -> tuple[np.dtype[Any], list[int]]:
    dtype = np.dtype(kind)
    sizes = [int(size) for size in shape]
    if dtype.kind not in _KINDS or min(sizes, default=-1) < 0:
        raise ValueError(f"{kind} {shape} cannot be a target of a row")
    return dtype, sizes
