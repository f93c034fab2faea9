"""The copy of a GPU's tensors that is saved: what they were at that moment, whatever is launched next."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
import torch

from essp_trainer.checkpoints.state_memory import StateMemory, bytes_of
from tests.gpu.conftest import nearly_full

Files = dict[str, dict[str, torch.Tensor]]


def made_up(gpu: torch.device, large: int = 2**22) -> Files:
    """Tensors of several types and orders in memory, one of the host among them."""
    generator = torch.Generator(gpu).manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=gpu)

    return {
        "model": {
            "large": drawn(large),
            "channels_last": drawn(8, 3, 5, 7).to(memory_format=torch.channels_last),
            "scalar": torch.tensor(3, device=gpu),
            "half": drawn(7).half(),
            "transposed": drawn(5, 9).t(),
            "empty": drawn(0, 4),
        },
        "optimizer": {"first": drawn(large), "scale": torch.tensor(65536.0, dtype=torch.float64), "last": drawn(3)},
    }


def on_host(files: Files) -> dict[tuple[str, str], torch.Tensor]:
    return {(file, name): tensor.cpu().clone() for file, named in files.items() for name, tensor in named.items()}


def change(files: Files) -> None:
    for named in files.values():
        for tensor in named.values():
            tensor.add_(1)


def assert_held(memory: StateMemory, expected: dict[tuple[str, str], torch.Tensor]) -> None:
    memory.wait()
    copied = memory.arrays()
    for (file, name), tensor in expected.items():
        np.testing.assert_array_equal(copied[file][name], tensor.numpy(), strict=True, err_msg=name)


@pytest.mark.parametrize("reserved", [True, False])
def test_it_holds_the_moment_of_taking(gpu: torch.device, reserved: bool) -> None:
    files = made_up(gpu)
    with closing(StateMemory()) as memory:
        if reserved:
            memory.reserve(bytes_of(files), pinned=True)
        for _ in range(5):
            expected = on_host(files)
            memory.take(files, ())
            memory.wait_for_copy()
            change(files)
            change(files)
            assert_held(memory, expected)
        assert memory._pinned, "the copy would cross the bus slowly, and the step wait for it"


def test_the_next_save_waits_for_what_is_still_crossing(gpu: torch.device) -> None:
    files = made_up(gpu, large=2**26)
    with closing(StateMemory()) as memory:
        for _ in range(4):
            memory.take(files, ())
            memory.wait_for_copy()
            change(files)
        expected = on_host(files)
        memory.take(files, ())
        memory.wait_for_copy()
        change(files)
        assert_held(memory, expected)


def test_without_room_for_a_copy_the_next_step_waits(gpu: torch.device) -> None:
    files = made_up(gpu, large=2**24)
    with closing(StateMemory()) as memory, nearly_full(gpu, 2**25):
        for _ in range(2):
            expected = on_host(files)
            memory.take(files, ())
            memory.wait_for_copy()
            change(files)
            assert_held(memory, expected)
        assert memory._on_device is None
