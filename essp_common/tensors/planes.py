"""Numbers as bytes that compress: as differences, and by planes.

The sign and exponent of trained weights take few values, while their last bits are noise. All first bytes together,
then all second ones, and so on, compress to the entropy of each; mixed as they lie in memory, hardly at all.

The difference to an earlier state of the same weights is small. Floats are counted for that: two neighbours are one
apart (with IEEE 754 the integer of the same bits counts them, but for the sign). So the difference is exact, and the
first bytes of small ones are zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]


def planes_of(array: Numbers) -> NDArray[np.uint8]:
    """`(bytes of an element, elements)`: the last byte of all elements, then the one before it."""
    size = array.dtype.itemsize
    return np.ascontiguousarray(np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, size).T)


def of_planes(planes: NDArray[np.uint8], dtype: np.dtype[Any]) -> Numbers:
    """The inverse of `planes_of`, as a row."""
    return np.ascontiguousarray(planes.T).reshape(-1).view(dtype)


def difference(array: Numbers, base: Numbers) -> Numbers:
    """How far each number is from that of the base, as a row of unsigned integers of the same size; close is small."""
    step = _counted(array) - _counted(base)  # wraps around
    signed = step.view(_signed(step))
    return ((signed << 1) ^ (signed >> (8 * step.itemsize - 1))).view(step.dtype)


def of_difference(step: Numbers, base: Numbers, dtype: np.dtype[Any]) -> Numbers:
    """The inverse of `difference`, as a row."""
    signed = (step >> 1) ^ (~(step & 1) + step.dtype.type(1))
    return _uncounted(signed + _counted(base), dtype)


def _counted(array: Numbers) -> Numbers:
    """Unsigned integers in the order of the numbers; neighbours are one apart."""
    bits = np.ascontiguousarray(array).reshape(-1).view(np.dtype(f"u{array.dtype.itemsize}"))
    if array.dtype.kind != "f":
        return bits
    top = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    return np.where(bits & top, ~bits, bits | top)


def _uncounted(counted: Numbers, dtype: np.dtype[Any]) -> Numbers:
    if dtype.kind != "f":
        return np.ascontiguousarray(counted).view(dtype)
    top = counted.dtype.type(1 << (8 * counted.itemsize - 1))
    return np.ascontiguousarray(np.where(counted & top, counted ^ top, ~counted)).view(dtype)


def _signed(array: Numbers) -> np.dtype[Any]:
    return np.dtype(f"i{array.dtype.itemsize}")
