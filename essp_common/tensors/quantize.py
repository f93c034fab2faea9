"""Uniform quantisation of floating-point arrays.

    scale = (max - min) / (2**bits - 1),   code = round((x - min) / scale),   restored = min + code * scale

after "Check-QZP: A Lightweight Checkpoint Mechanism for Deep Learning Frameworks" (Applied Sciences, 2024). The loss
depends on what shares a range. The paper uses one range for all parameters, which leaves most layers with a few codes
and destroys networks; with a range for each output channel (the first axis), eight bits are nearly as good as
thirty-two. Every number is restored within half a scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Codes = NDArray[np.uint8] | NDArray[np.uint16]

MOST_BITS = 16
_BLOCK = 32 * 1024
"""Numbers processed at a time."""


class Range(NamedTuple):
    """The range of the numbers of each channel, `(channels,)` each; a single channel means the whole array."""

    least: Floats
    scale: Floats
    """Distance of two codes; 0: all numbers of the channel equal the least one."""


class NotFinite(ValueError):
    """An array contains infinities or NaN, which no range can contain."""


def range_of(arrays: Sequence[Floats], bits: int, by_channel: bool = False) -> Range:
    """The range of all numbers of these arrays, or of each channel of a single array; float32 for float32 arrays.

    Raises `NotFinite`.
    """
    rows = [_rows(array, len(array) if by_channel else 1) for array in arrays if array.size]
    least = np.min([row.min(axis=1) for row in rows], axis=0).astype(np.float64)
    most = np.max([row.max(axis=1) for row in rows], axis=0).astype(np.float64)
    if not (np.isfinite(least).all() and np.isfinite(most).all()):
        raise NotFinite
    scale = most / (2**bits - 1) - least / (2**bits - 1)  # divided first, because the difference may overflow
    kind = range_type(np.result_type(*arrays))
    rounded = scale.astype(kind)
    # rounded up, so that all codes are in range
    rounded = np.where(rounded < scale, np.nextafter(rounded, kind.type(np.inf)), rounded)
    return Range(least.astype(kind), rounded)


def range_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which the ranges of such arrays are stored."""
    return np.dtype("<f8" if dtype.itemsize > 4 else "<f4")


def quantize(array: Floats, bits: int, found: Range) -> tuple[Codes, float]:
    """The codes of an array whose numbers are in this range, in its shape; and by how much the worst restored number
    exceeds its error bound.

    The bound is half a scale plus the rounding error of the type. The excess is 0 unless the range belongs to another
    array. `bits`: 2 to 16.
    """
    rows = _rows(array, len(found.least))
    codes = np.empty(rows.shape, np.uint8 if bits <= 8 else np.uint16)
    worst = 0.0
    for block in _blocks(rows):
        exact = rows[block]
        least, scale = _of(found, block)
        steps = exact - least
        steps /= np.where(scale > 0, scale, 1)
        np.rint(steps, out=steps)
        np.clip(steps, 0, 2**bits - 1, out=steps)
        codes[block] = steps
        # The restored numbers, in the type in which they will be read.
        steps *= scale
        steps += least
        apart = np.abs(steps.astype(array.dtype) - exact.astype(np.float64))
        # Rounding applies to the restored number, which is at most half a scale larger than the exact one.
        kind = np.finfo(array.dtype)
        apart -= scale / 2 * (1 + float(kind.eps)) + kind.eps * np.abs(exact) + float(kind.tiny)
        worst = max(worst, float(apart.max()))
    return codes.reshape(array.shape), worst


def restored(codes: Codes, found: Range, dtype: np.dtype[Any]) -> Floats:
    """The array that the codes represent."""
    rows = _rows(codes, len(found.least))
    numbers = np.empty(rows.shape, dtype)
    for block in _blocks(rows):
        least, scale = _of(found, block)
        numbers[block] = rows[block] * scale + least
    return numbers.reshape(codes.shape)


def _rows(array: NDArray[Any], channels: int) -> NDArray[Any]:
    return array.reshape(channels, -1)


def _blocks(rows: NDArray[Any]) -> Iterator[tuple[slice, slice]]:
    """Blocks that fit into the caches of a core, because several passes are made over each."""
    count, width = rows.shape
    tall = max(1, _BLOCK // max(1, width))
    for first in range(0, count, tall):
        for left in range(0, width, _BLOCK):
            yield slice(first, first + tall), slice(left, left + _BLOCK)


def _of(found: Range, block: tuple[slice, slice]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Least and scale of the rows of a block, as columns, in float64 for exact arithmetic."""
    part = block[0] if len(found.least) > 1 else slice(None)
    return found.least[part, None].astype(np.float64), found.scale[part, None].astype(np.float64)
