"""A cluster, and a driver at work in it.

The cluster is a double of the API server; in the lane `cluster` it is the real one that KUBECONFIG names.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from essp_master.pools.kubernetes import KubernetesDriver
from tests.harness.kubernetes_api import ApiServer, Cluster
from tests.harness.kubernetes_objects import (
    NAMESPACE,
    OWNER,
    begun,
    template,
)
from tests.harness.kubernetes_real import real_cluster


@pytest.fixture
def server(request: pytest.FixtureRequest, unique: str) -> Iterator[ApiServer]:
    with ExitStack() as stack:
        real = request.config.getoption("--lane") == "cluster"
        cluster = stack.enter_context(real_cluster(f"essp-{unique}", NAMESPACE)) if real else None
        yield stack.enter_context(ApiServer(cluster))


@pytest.fixture
def cluster(server: ApiServer) -> Iterator[Cluster]:
    """It is said of everything that was changed who it was: Helm shows that to people."""
    yield server.cluster
    assert server.cluster.writers <= {"essp-master"}


@pytest.fixture
def api(server: ApiServer) -> client.ApiClient:
    return server.client()


@pytest.fixture
def changes() -> threading.Event:
    """Set when the driver says that something has changed."""
    return threading.Event()


@pytest.fixture
def driver(api: client.ApiClient, tmp_path: Path, changes: threading.Event) -> Iterator[KubernetesDriver]:
    (tmp_path / "extractor-deployment.yaml").write_text(template("Deployment"))
    (tmp_path / "trainer-job.yaml").write_text(template("Job"))
    core: Any = client.CoreV1Api(api)
    core.create_namespaced_config_map(NAMESPACE, OWNER, field_manager="essp-master")
    with closing(begun(api, tmp_path, changes.set)) as started:
        yield started
    with suppress(client.ApiException):  # a test has removed it
        core.delete_namespaced_config_map(OWNER["metadata"]["name"], NAMESPACE)
