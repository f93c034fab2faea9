from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def gpu() -> torch.device:
    """The first GPU, whose driver has opened what it keeps open. Tests fail where there is none."""
    assert torch.cuda.is_available(), "there is no GPU here, or torch was installed without CUDA"
    device = torch.device("cuda", 0)
    (torch.ones(8, 8).pin_memory().to(device, non_blocking=True) @ torch.ones(8, 8, device=device)).sum().item()
    return device
