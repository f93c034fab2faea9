"""A predict job that waits for its predictor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.predictor_bench import (
    PredictorBench,
    model_at,
)


@pytest.fixture
def bench(tmp_path: Path) -> PredictorBench:
    model_at(tmp_path)
    return PredictorBench(tmp_path)
