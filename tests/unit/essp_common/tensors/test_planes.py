"""Planes and differences of arrays longer than what is worked on at a time, against what their definition says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from essp_common.tensors import planes

COUNT = 2 * planes._BLOCK + 1
TYPES = ("<f2", "<f4", "<f8", "<i1", "<u2", "<i4", "<u8")


def any_bits(dtype: str, seed: int) -> NDArray[Any]:
    """All kinds of numbers, infinities and NaN among them."""
    return np.frombuffer(np.random.default_rng(seed).bytes(COUNT * np.dtype(dtype).itemsize), dtype)


def counted(array: NDArray[Any]) -> list[int]:
    """The place of each number among all of its type, from the least on."""
    size = 8 * array.dtype.itemsize
    bits: list[int] = array.view(f"<u{array.dtype.itemsize}").tolist()
    if array.dtype.kind != "f":
        return bits
    negative = 1 << (size - 1)
    return [(1 << size) - 1 - each if each & negative else each + negative for each in bits]


@pytest.mark.parametrize("dtype", TYPES)
def test_planes_are_the_bytes_of_each_place(dtype: str) -> None:
    array = any_bits(dtype, 0)
    found = planes.planes_of(array)
    assert [row.tobytes() for row in found] == [array.tobytes()[place :: len(found)] for place in range(len(found))]
    assert planes.of_planes(list(found), array.dtype).tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", TYPES)
def test_differences_count_the_numbers_between(dtype: str) -> None:
    array, base = any_bits(dtype, 1), any_bits(dtype, 2)
    size = 8 * array.dtype.itemsize
    found = planes.difference(array, base)
    apart = [(ours - theirs) % (1 << size) for ours, theirs in zip(counted(array), counted(base), strict=True)]
    assert found.tolist() == [
        2 * each if each < 1 << (size - 1) else 2 * ((1 << size) - each) - 1 for each in apart
    ]  # to and fro: 0, -1, 1, -2, 2, ...
    assert planes.of_difference(found, base, array.dtype).tobytes() == array.tobytes()
