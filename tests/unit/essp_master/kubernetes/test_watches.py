"""What is in the cluster is watched: what others do is seen, and a watch that breaks is made good."""

from __future__ import annotations

import threading

import pytest
from kubernetes.client.exceptions import ApiException

from essp_common.errors import PermanentError, Unavailable
from essp_master.pools.informer import Informer
from essp_master.pools.kubernetes import KubernetesDriver
from essp_master.pools.port import PoolSize
from tests.harness.kubernetes_api import Cluster
from tests.harness.kubernetes_objects import (
    PAUSES_S,
    deployment,
    seen,
)
from tests.harness.waiting import LONGEST_S, until


@pytest.mark.double
def test_what_somebody_else_does_is_seen_without_asking_again(
    cluster: Cluster, driver: KubernetesDriver, changes: threading.Event
) -> None:
    cluster.put("deployments", deployment("essp-decoder", "decoder", 3))
    seen(driver, decoder=PoolSize(3, 0))
    until(lambda: cluster.watching == 2)
    lists = cluster.count("GET", "deployments")
    changes.clear()
    body = deployment("essp-decoder", "decoder", 9) | {"status": {"readyReplicas": 5}}
    cluster.put("deployments", body)
    assert changes.wait(LONGEST_S)
    seen(driver, decoder=PoolSize(9, 5))
    cluster.put("deployments", {**body, "metadata": {**body["metadata"], "labels": {}}})
    seen(driver)
    assert cluster.count("GET", "deployments") == lists


def test_a_watch_that_ends_goes_on_where_it_was(cluster: Cluster, driver: KubernetesDriver) -> None:
    seen(driver)
    until(lambda: cluster.watching == 2)
    lists = cluster.count("GET", "deployments")
    cluster.hang_up()
    cluster.put("deployments", deployment("essp-decoder", "decoder", 3))
    seen(driver, decoder=PoolSize(3, 0))
    assert cluster.count("GET", "deployments") == lists


@pytest.mark.double
def test_bookmarks_keep_the_version_young(cluster: Cluster, driver: KubernetesDriver) -> None:
    """Others' objects change, ours do not, and what was is forgotten: with a bookmark nothing has to be listed anew."""
    seen(driver)
    until(lambda: cluster.watching == 2)
    lists = cluster.count("GET", "deployments")
    cluster.put("deployments", {**deployment("theirs", "x", 1), "metadata": {"name": "theirs", "labels": {}}})
    cluster.bookmark()
    until(lambda: driver._deployments._version == str(cluster.version))
    cluster.compact()
    watches = cluster.count("WATCH", "deployments")
    cluster.hang_up()
    until(lambda: cluster.count("WATCH", "deployments") > watches)
    cluster.put("deployments", deployment("essp-decoder", "decoder", 3))
    seen(driver, decoder=PoolSize(3, 0))
    assert cluster.count("GET", "deployments") == lists


@pytest.mark.double
def test_what_was_missed_for_good_is_listed_anew(cluster: Cluster, driver: KubernetesDriver) -> None:
    cluster.put("deployments", deployment("gone-meanwhile", "extractor.flow", 1))
    seen(driver, extractor_flow=PoolSize(1, 0))
    lists = cluster.count("GET", "deployments")
    with cluster.lock:  # nobody is told of what happens in here
        cluster.delete("deployments", "gone-meanwhile")
        cluster.put("deployments", deployment("essp-decoder", "decoder", 3))
        cluster.compact()
        cluster.hang_up()
    seen(driver, decoder=PoolSize(3, 0))
    assert cluster.count("GET", "deployments") == lists + 1


def test_an_api_that_does_not_answer_is_tried_again_later(cluster: Cluster, driver: KubernetesDriver) -> None:
    cluster.put("deployments", deployment("essp-decoder", "decoder", 3))
    seen(driver, decoder=PoolSize(3, 0))
    cluster.outage = True

    def unknown() -> bool:
        try:
            driver.sizes()
        except Unavailable as error:
            return "503" in str(error)
        return False

    until(unknown)
    cluster.put("deployments", deployment("essp-decoder", "decoder", 4))
    cluster.outage = False
    until(lambda: not unknown())
    seen(driver, decoder=PoolSize(4, 0))


def test_the_longer_it_is_away_the_more_seldom_it_is_asked(cluster: Cluster) -> None:
    """Pauses of an hour: after its first tries the view asks no more, and ends at once all the same."""
    cluster.outage = True
    tried = threading.Event()

    def lists(**_: object) -> object:
        cluster.requests.append(("GET", "/deployments"))
        tried.set()
        raise ApiException(status=503, reason="away")

    view = Informer("deployments", "V1Deployment", lists, lambda: None, (3600.0, 7200.0))
    view.start()
    assert tried.wait(LONGEST_S)
    with pytest.raises(Unavailable, match="503 away"):
        view.objects()
    view.close()
    assert cluster.count("GET", "deployments") == 1


def test_a_right_that_is_missing_is_named(cluster: Cluster) -> None:
    def lists(**_: object) -> object:
        raise ApiException(status=403, reason="Forbidden")

    view = Informer("jobs", "V1Job", lists, lambda: None, PAUSES_S)
    view.start()
    with pytest.raises(PermanentError, match="the chart's Role"):
        view.objects()
    view.close()


def test_a_driver_that_is_closed_watches_no_more(cluster: Cluster, driver: KubernetesDriver) -> None:
    seen(driver)
    until(lambda: cluster.watching == 2)
    driver.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("essp-watch")]
