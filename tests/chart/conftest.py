"""Helm, unpacked once a session."""

from __future__ import annotations

import pytest

from tests.chart.rendering import Helm


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm.unpacked(tmp_path_factory.mktemp("helm"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On one worker, so that helm is unpacked and schemas are read once."""
    for item in items:
        if "tests/chart/" in item.nodeid:
            item.add_marker(pytest.mark.xdist_group("chart"))
