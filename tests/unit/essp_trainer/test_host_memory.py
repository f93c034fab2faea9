"""Memory of batches is used again, and never while somebody can still see what is in it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from essp_trainer.data.host_memory import HostMemory

SHAPE = (2, 3, 8)


def address(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_that_nobody_sees_any_more_is_used_again() -> None:
    memory = HostMemory()
    first = memory.array(SHAPE, np.uint8)
    place = address(first)
    del first
    assert address(memory.array(SHAPE, np.uint8)) == place
    assert address(memory.array((1, 3, 4), np.float32)) == place, "a smaller one fits, of any type"


@pytest.mark.parametrize(
    "held",
    [
        lambda tensor: tensor,
        lambda tensor: tensor.view(-1),
        lambda tensor: tensor[1:],
        lambda tensor: tensor.numpy()[0],
        lambda tensor: tensor.untyped_storage(),
    ],
    ids=["tensor", "view", "slice", "numpy", "storage"],
)
def test_memory_of_a_batch_that_is_kept_is_left_alone(held: Callable[[torch.Tensor], Any]) -> None:
    memory = HostMemory()
    array = memory.array(SHAPE, np.uint8)
    array[:] = 7
    kept = held(torch.from_numpy(array))
    del array
    gc.collect()
    others = [memory.array(SHAPE, np.uint8) for _ in range(4)]
    for other in others:
        other[:] = 9
    assert set(np.asarray(list(kept)).ravel().tolist()) == {7}


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 7)), max_size=30))
def test_arrays_never_share_memory(asked: list[tuple[int, int]]) -> None:
    """Some are kept, up to eight at a time, each in place of the one before it."""
    memory = HostMemory()
    kept: dict[int, tuple[int, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]] = {}
    for number, (length, place) in enumerate(asked):
        array = memory.array((length, 4), np.uint8)
        array[:] = number
        kept[place] = number, array
        assert all((array == number).all() for number, array in kept.values())


def test_few_free_blocks_are_kept() -> None:
    memory = HostMemory()
    arrays = [memory.array(SHAPE, np.uint8) for _ in range(9)]
    places = {address(array) for array in arrays}
    arrays.clear()
    again = [memory._taken(48) for _ in range(2)]
    assert {address(block) for block in again} <= places
    assert not memory._free
