"""Memory of pictures is used again, but never while somebody refers to it."""

from __future__ import annotations

import numpy as np
import torch

from essp.lerobot.buffers import Buffers

SHAPE = (4, 3, 256, 256)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_block_is_used_again_once_nobody_refers_to_it() -> None:
    buffers = Buffers(1 << 30)
    first = buffers.empty(SHAPE, np.uint8)
    place = address(first)
    view = torch.from_numpy(first)[2]
    del first
    second = buffers.empty(SHAPE, np.uint8)
    assert address(second) != place
    del view
    third = buffers.empty((3, 3, 256, 256), np.uint8)
    assert address(third) == place
    assert address(buffers.empty((3, 3, 256, 256), np.float32)) not in (place, address(second))


def test_no_more_is_kept_than_allowed() -> None:
    buffers = Buffers(1 << 20)
    arrays = [buffers.empty(SHAPE, np.uint8) for _ in range(4)]
    assert len({address(array) for array in arrays}) == 4
    assert len(buffers._blocks) == 1
