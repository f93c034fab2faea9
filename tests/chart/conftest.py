"""Helm, unpacked once a session."""

from __future__ import annotations

import pytest

from tests.chart.rendering import Helm


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm.unpacked(tmp_path_factory.mktemp("helm"))
