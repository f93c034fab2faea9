"""A namespace of the cluster that KUBECONFIG names, helm, and the chart in it. One namespace a test; it is removed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.chart.rendering import Helm
from tests.cluster.release import Release
from tests.harness.kubernetes_real import administrator


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm.unpacked(tmp_path_factory.mktemp("helm"))


@pytest.fixture
def api() -> Iterator[httpx.Client]:
    """With all rights."""
    with administrator() as client:
        yield client


@pytest.fixture
def release(api: httpx.Client, helm: Helm, unique: str) -> Iterator[Release]:
    """A namespace that enforces the restricted standard; nothing is installed in it yet."""
    made = Release(api, helm, f"essp-{unique}")
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    body = {"metadata": {"name": made.namespace, "labels": labels}}
    api.post("/api/v1/namespaces", json=body).raise_for_status()
    try:
        yield made
    finally:
        made.remove()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Those with pods need images."""
    return True if collection_path.name == "test_pods.py" and "ESSP_IMAGES" not in os.environ else None
