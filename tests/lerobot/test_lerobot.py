"""LeRobot itself: its items are those of `essp.lerobot.LeRobotDataset`, and its policy learns from both alike."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from benchmarks.lerobot_environment import LeRobot, compared

STEPS = 50
LEAST_TENSORS = 4 * 12 * 9
"""All episodes and some, each with windows and without: 12 items of each, with 9 tensors or more."""

pytestmark = pytest.mark.timeout(3600)  # the first test may install LeRobot


@pytest.mark.parametrize("pictures", ["", "-uint8"], ids=["float32", "uint8"])
def test_items_are_those_of_lerobot(lerobot: LeRobot, recorded: Path, pictures: str) -> None:
    theirs, ours = (lerobot.items(recorded, reader + pictures) for reader in ("torchcodec", "essp"))
    assert compared(theirs, ours) >= LEAST_TENSORS


def test_lerobots_act_learns_from_our_class_as_from_its_own(lerobot: LeRobot, recorded: Path) -> None:
    theirs, ours = (lerobot.losses(recorded, reader, STEPS) for reader in ("torchcodec", "essp"))
    assert ours == theirs
    assert len(ours) == STEPS
    assert mean(ours[-5:]) < mean(ours[:5]) / 4
