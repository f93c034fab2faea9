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

from essp_engine.loading.host_memory import HostMemory
from tests.lanes import often

SHAPE = (2, 3, 8)


def test_memory_that_nobody_sees_any_more_is_used_again() -> None:
    memory = HostMemory()
    first = memory.tensor(SHAPE, np.uint8)
    place = first.data_ptr()
    del first
    assert memory.tensor(SHAPE, np.uint8).data_ptr() == place
    assert memory.tensor((1, 3, 4), np.float32).data_ptr() == place, "a smaller one fits, of any type"


HELD: dict[str, Callable[[torch.Tensor], Any]] = {
    "slice": lambda tensor: tensor[1:],
    "buffer": lambda tensor: tensor.numpy().ravel().data[2:],
    "storage": lambda tensor: tensor.untyped_storage(),
    "tensor": lambda tensor: tensor,
    "view": lambda tensor: tensor.view(-1),
    "array": lambda tensor: tensor.numpy(),
    "row": lambda tensor: tensor.numpy()[0],
    "view of a row": lambda tensor: tensor.numpy()[0][1:],
    "array of a row": lambda tensor: tensor[0].numpy().reshape(-1)[3:],
}


@pytest.mark.parametrize("held", often(HELD, 1))
def test_memory_of_a_batch_that_is_kept_is_left_alone(held: str) -> None:
    memory = HostMemory()
    tensor = memory.tensor(SHAPE, np.uint8)
    tensor[:] = 7
    kept = HELD[held](tensor)
    del tensor
    gc.collect()
    others = [memory.tensor(SHAPE, np.uint8) for _ in range(4)]
    for other in others:
        other[:] = 9
    assert set(np.asarray(list(kept)).ravel().tolist()) == {7}


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 7)), max_size=30))
def test_tensors_never_share_memory(asked: list[tuple[int, int]]) -> None:
    """Some are kept, up to eight at a time, each in place of the one before it."""
    memory = HostMemory()
    kept: dict[int, tuple[int, torch.Tensor]] = {}
    for number, (length, place) in enumerate(asked):
        tensor = memory.tensor((length, 4), np.uint8)
        tensor[:] = number
        kept[place] = number, tensor
        assert all((tensor == number).all() for number, tensor in kept.values())


def test_few_free_blocks_are_kept() -> None:
    memory = HostMemory()
    tensors = [memory.tensor(SHAPE, np.uint8) for _ in range(9)]
    places = {tensor.data_ptr() for tensor in tensors}
    tensors.clear()
    again = [memory._taken(48) for _ in range(2)]
    assert {block.ctypes.data for block in again} <= places
    assert not memory._free
