"""The master's own token, which Kubernetes replaces in its pod every hour."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from essp_common.errors import EsspError
from essp_master.assembly import kubernetes_api
from essp_master.pools.kubernetes import KubernetesDriver
from essp_master.pools.port import PoolSize
from tests.harness.kubernetes_api import ApiServer
from tests.harness.kubernetes_objects import begun, deployment, seen, template
from tests.harness.kubernetes_pod import ServiceAccount
from tests.harness.tls_front import TlsFront, make_identity
from tests.harness.waiting import until


@pytest.mark.double
def test_a_token_that_was_replaced_is_used_for_watches_and_writes(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "extractor-deployment.yaml").write_text(template("Deployment"))
    identity = make_identity(tmp_path / "tls")
    cluster, cluster.token = server.cluster, "first"
    cluster.put("deployments", deployment("essp-decoder", "decoder", 3))
    with TlsFront(identity, server.port) as front:
        account = ServiceAccount(tmp_path, monkeypatch, ("127.0.0.1", front.port), identity.ca.read_text(), "first")
        api = kubernetes_api()
        with closing(begun(api, tmp_path, lambda: None)) as driver:
            seen(driver, decoder=PoolSize(3, 0))
            account.replace("second")
            cluster.token = "second"
            cluster.hang_up()  # what is under way is not asked for its token again
            driver.scale("decoder", 5, [])
            seen(driver, decoder=PoolSize(5, 0))

            cluster.token = "third"
            cluster.hang_up()
            until(lambda: "Kubernetes refuses: Unauthorized" in error_of(driver))
        api.rest_client.pool_manager.clear()


def error_of(driver: KubernetesDriver) -> str:
    try:
        driver.sizes()
    except EsspError as error:
        return str(error)
    return ""
