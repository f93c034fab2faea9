"""What a transform of `essp.Records` sees, and what it may give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import essp
from essp_common.errors import ConfigError
from tests.unit.essp.api.numbered_records import RECORDS, taken


def test_a_transform_cannot_change_the_record(raw: Path) -> None:
    """Which later epochs show again."""

    def darken(frames: Any, generator: np.random.Generator) -> Any:
        frames[:] = 0
        return frames

    with essp.Records(raw, batch_size=8, transform=darken) as loader, pytest.raises(ValueError, match="read-only"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda frames, generator: None, r"transform: must return an array of numbers .*array\(None"),
        (lambda frames, generator: 1.5, r"transform: must return an array of numbers .*array\(1.5\)"),
        (lambda frames, generator: frames[:, generator.integers(3) :], "the clips of a batch differ"),
        (lambda frames, generator: frames / 2 if generator.integers(2) else frames, "float64 .* and uint8"),
    ],
)
def test_what_a_transform_may_not_give_is_named(raw: Path, transform: Any, message: str) -> None:
    with essp.Records(raw, transform=transform) as loader, pytest.raises(ConfigError, match=message):
        next(iter(loader))


def test_a_transform_may_give_a_tensor_or_any_byte_order(raw: Path) -> None:
    transforms: list[Any] = [
        lambda frames, generator: torch.from_numpy(frames.astype(np.float32)),
        lambda frames, generator: frames.astype(">f4"),
    ]
    for transform in transforms:
        with essp.Records(raw, batch_size=8, transform=transform) as loader:
            assert sorted(taken(loader)) == list(range(RECORDS))


def test_a_transform_sees_each_record_with_its_own_random_numbers(raw: Path) -> None:
    def noisy(frames: Any, generator: np.random.Generator) -> Any:
        return frames.astype(np.float32) + generator.random(dtype=np.float32)

    seen = []
    for size in (8, 50):
        with essp.Records(raw, batch_size=size, transform=noisy) as loader:
            epoch = torch.cat([batch.frames for batch in loader])
            assert epoch.dtype == torch.float32
            seen.append(epoch)
    assert torch.equal(seen[0], seen[1])
