"""LeRobot itself, which the lane `lerobot` alone installs (`make test-lerobot`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.lerobot_environment import LeRobot
from tests.harness.caches import cached

VARIABLE = "ESSP_TEST_LEROBOT"
"""A folder where LeRobot is, or will be, installed."""


@pytest.fixture(scope="session")
def lerobot() -> LeRobot:
    """The first run installs it, which takes minutes."""
    folder = Path(os.environ.get(VARIABLE) or cached("lerobot")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return LeRobot(folder)


@pytest.fixture(scope="session")
def recorded(lerobot: LeRobot, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set that LeRobot has recorded: three episodes of two cameras."""
    root = tmp_path_factory.mktemp("lerobot") / "small"
    lerobot.record(root, "small")
    return root
