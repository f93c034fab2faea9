"""Transforms numbers into bytes that compress well: differences, and byte planes.

The sign and exponent of trained weights take few values, while their last bits are noise. If all first bytes are stored
together, then all second ones, and so on, each plane compresses to its entropy; in their usual memory layout, numbers
hardly compress.

The difference to an earlier state of the same weights is small. For this, floats are mapped to integers so that
neighbouring floats differ by one (with IEEE 754, the bit pattern as an integer does that, except for the sign). So the
difference is exact, and the first bytes of small differences are zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]

_BLOCK = 32 * 1024


def planes_of(array: Numbers) -> NDArray[np.uint8]:
    """`(bytes of an element, elements)`: the last bytes of all elements, then the ones before, and so on."""
    rows = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, array.dtype.itemsize)
    planes = np.empty((array.dtype.itemsize, len(rows)), np.uint8)
    for block in _blocks(len(rows)):
        planes[:, block] = rows[block].T
    return planes


def of_planes(planes: Sequence[NDArray[np.uint8]], dtype: np.dtype[Any]) -> Numbers:
    """The inverse of `planes_of`, flattened."""
    rows = np.empty((len(planes[0]), len(planes)), np.uint8)
    for block in _blocks(len(rows)):
        for place, plane in enumerate(planes):
            rows[block, place] = plane[block]
    return rows.reshape(-1).view(dtype)


def difference(array: Numbers, base: Numbers) -> Numbers:
    """The distance of each number from the base's, flattened, as unsigned integers of the same size; close numbers give
    small values."""
    ours, theirs = _signed(array), _signed(base)
    steps, scratch = np.empty_like(ours), np.empty(min(len(ours), _BLOCK), ours.dtype)
    for block in _blocks(len(ours)):
        step, other = steps[block], scratch[: len(ours[block])]
        _count(ours[block], array.dtype, step)
        _count(theirs[block], array.dtype, other)
        np.subtract(step, other, out=step)  # wraps around
        np.right_shift(step, _sign_bit(step), out=other)
        np.left_shift(step, 1, out=step)
        np.bitwise_xor(step, other, out=step)
    return steps.view(f"u{steps.itemsize}")


def of_difference(step: Numbers, base: Numbers, dtype: np.dtype[Any]) -> Numbers:
    """The inverse of `difference`, flattened."""
    steps, theirs = np.ascontiguousarray(step).reshape(-1), _signed(base)
    found, scratch = np.empty_like(theirs), np.empty(min(len(theirs), _BLOCK), theirs.dtype)
    for block in _blocks(len(theirs)):
        number, other = found[block], scratch[: len(theirs[block])]
        np.right_shift(steps[block], 1, out=number.view(steps.dtype))
        np.bitwise_and(steps[block].view(other.dtype), 1, out=other)
        np.negative(other, out=other)
        np.bitwise_xor(number, other, out=number)
        _count(theirs[block], dtype, other)
        np.add(number, other, out=number)
        _uncount(number, dtype, other)
    return found.view(dtype)


def _count(bits: Numbers, dtype: np.dtype[Any], out: Numbers) -> None:
    """Map numbers of this type to integers in the same order; neighbours differ by one. Wraps around in the middle."""
    if dtype.kind != "f":
        out[:] = bits
        return
    np.right_shift(bits, _sign_bit(bits), out=out)  # all ones for negative numbers, all zeros for others
    np.bitwise_or(out, _top(bits), out=out)
    np.bitwise_xor(out, bits, out=out)


def _uncount(counted: Numbers, dtype: np.dtype[Any], scratch: Numbers) -> None:
    """The inverse of `_count`, in place."""
    if dtype.kind != "f":
        return
    np.right_shift(counted, _sign_bit(counted), out=scratch)
    np.invert(scratch, out=scratch)
    np.bitwise_or(scratch, _top(counted), out=scratch)
    np.bitwise_xor(counted, scratch, out=counted)


def _signed(array: Numbers) -> Numbers:
    """The bits of all numbers, flattened, as signed integers."""
    return np.ascontiguousarray(array).reshape(-1).view(f"i{array.dtype.itemsize}")


def _sign_bit(signed: Numbers) -> int:
    return 8 * signed.itemsize - 1


def _top(signed: Numbers) -> Any:
    return np.iinfo(signed.dtype).min


def _blocks(count: int) -> Iterator[slice]:
    """Blocks that fit into the caches of a core, because several passes are made over each."""
    return (slice(first, first + _BLOCK) for first in range(0, count, _BLOCK))
