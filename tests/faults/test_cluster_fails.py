"""A Redis Cluster loses a primary during a job: the replica takes over, and clips that it lacks are made again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from essp.servers.servers import KafkaServer
from tests.faults.conftest import REDIS_BYTES
from tests.faults.deployment import SESSION_TIMEOUT_MS, Deployment, Run
from tests.faults.redis_cluster import Cluster

pytestmark = pytest.mark.integration

SIDES = ("worker", "master", "consumer")


class ClusterDeployment(Deployment):
    """A deployment over the cluster; everything else as in the other one, but for a broker of its own."""

    cluster: Cluster

    def urls(self, side: str) -> dict[str, str]:
        return super().urls(side) | {"ESSP_CACHE": self.cluster.url}

    def keys(self) -> list[str]:
        return re.findall(r"essp:\S+", self.cluster.keys())


@pytest.fixture
def clustered(deployment: Deployment, undisturbed: None, tmp_path: Path) -> Iterator[ClusterDeployment]:
    with (
        Cluster(tmp_path, REDIS_BYTES) as cluster,
        KafkaServer(tmp_path, session_timeout_ms=SESSION_TIMEOUT_MS) as kafka,
    ):
        made = ClusterDeployment(
            kafka, deployment.redis, deployment.s3, deployment.bucket, tmp_path, expected=deployment.expected
        )
        made.cluster = cluster
        for side in SIDES:
            made.link(side)
        yield made
        for process in made.processes:
            process.end()
        for links in made.links.values():
            for proxy in links.all():
                proxy.close()


def test_a_job_outlives_a_failover(clustered: ClusterDeployment, unique: str) -> None:
    deployment = clustered
    consumers, own = deployment.adapters("consumer"), deployment.adapters("master")
    decoder, extractor = deployment.decoder(), deployment.extractor()
    for process in (decoder, extractor):
        deployment.joined(process)
    with deployment.master(own) as master:
        run = Run(deployment, master, consumers, deployment.spec(unique), hold_at=3)
        try:
            run.held()
            assert deployment.keys()
            deployment.cluster.fail_over()
            run.finish()
        finally:
            run.close()
    for process in (decoder, extractor):
        deployment.drain(process)
    for adapters in (consumers, own):
        adapters.close()
