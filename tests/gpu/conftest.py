from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def gpu() -> torch.device:
    """The first GPU, whose driver has opened what it keeps open. Tests fail where there is none."""
    assert torch.cuda.is_available(), "there is no GPU here, or torch was installed without CUDA"
    device = torch.device("cuda", 0)
    (torch.ones(8, 8).pin_memory().to(device, non_blocking=True) @ torch.ones(8, 8, device=device)).sum().item()
    return device


@contextmanager
def nearly_full(gpu: torch.device, left_bytes: int) -> Iterator[None]:
    """A GPU that has memory for what is there, and for so many bytes more."""
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(gpu).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(gpu) + left_bytes) / whole, gpu)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, gpu)
