"""A predict job that waits for its predictor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.predictor_world import (
    World,
    model_at,
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    model_at(tmp_path)
    return World(tmp_path)
