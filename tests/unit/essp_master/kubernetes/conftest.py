"""A cluster, and a driver at work in it.

The cluster is a double of the API server, or, with KUBECONFIG set, the one that it names, in the namespace of
ESSP_TEST_NAMESPACE (default: essp-test), which has to exist and is used up.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from essp_master.pools.kubernetes import KubernetesDriver
from tests.harness.kubernetes_api import ApiServer, Cluster
from tests.harness.kubernetes_objects import (
    NAMESPACE,
    OWNER,
    begun,
    template,
)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def cluster(server: ApiServer) -> Iterator[Cluster]:
    """It is said of everything that was changed who it was: Helm shows that to people."""
    yield server.cluster
    assert server.cluster.writers <= {"essp-master"}


@pytest.fixture
def api(server: ApiServer, request: pytest.FixtureRequest) -> client.ApiClient:
    """Of the real cluster, if there is one, for the tests that do nothing to the double."""
    real = os.environ.get("KUBECONFIG") and "cluster" not in request.fixturenames
    return config.new_client_from_config() if real else server.client()


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
