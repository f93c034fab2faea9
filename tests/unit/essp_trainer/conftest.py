"""What tests of several duties of trainers compare with."""

from __future__ import annotations

import pytest

from tests.harness.training_jobs import Stage, finished


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A training that nothing interrupted."""
    return finished(tmp_path_factory.mktemp("whole"))
