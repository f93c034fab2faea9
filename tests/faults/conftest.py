"""Starts one deployment for all tests of this folder. Each test runs its own job on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from essp.catalog.build import BuildOptions, build
from essp.servers.servers import RedisServer, S3Server, free_port
from essp_common.wiring import Adapters, Stores
from essp_master.service import Master
from tests.faults.deployment import SESSION_TIMEOUT_MS, Deployment, Run
from tests.faults.s3_front import S3Front
from tests.harness.brokers import kafka_broker
from tests.harness.journeys import make_videos

REDIS_BYTES = 32 * 2**20

Begin = Callable[..., Run]


@pytest.fixture(scope="package")
def deployment(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Servers with the small set on them, and one healthy decoder and extractor."""
    folder = tmp_path_factory.mktemp("faults")
    bucket = "essp-faults"
    s3_server.create_bucket(bucket)
    with (
        kafka_broker(folder, session_timeout_ms=SESSION_TIMEOUT_MS) as kafka,
        RedisServer(folder, free_port(), maxmemory_bytes=REDIS_BYTES) as redis,
        S3Front(s3_server.port) as front,
    ):
        deployment = Deployment(kafka, redis, front, bucket, folder)
        fill(deployment, s3_server, folder / "videos")
        for side in ("worker", "master", "consumer"):
            deployment.link(side)
        deployment.adapters("consumer").close()
        try:
            with deployment.working():
                yield deployment
        finally:
            for links in deployment.links.values():
                for proxy in links.all():
                    proxy.close()


def fill(deployment: Deployment, server: S3Server, videos: Path) -> None:
    make_videos(videos)
    store_url = deployment.store_url(server.port)
    root = f"s3://{deployment.bucket}"
    store = Stores((store_url,)).under(root)
    for path in sorted(videos.rglob("*.*")):
        store.put_file(f"videos/{path.relative_to(videos)}", str(path))
    build(f"{root}/videos", f"{root}/catalog.parquet", (store_url,), BuildOptions("folders"))


@pytest.fixture(scope="package")
def consumers(deployment: Deployment) -> Iterator[Adapters]:
    """How the consumers of all jobs reach the servers."""
    adapters = deployment.adapters("consumer")
    yield adapters
    adapters.close()


@pytest.fixture(scope="package")
def master(deployment: Deployment) -> Iterator[Master]:
    """The master of all jobs."""
    adapters = deployment.adapters("master")
    with deployment.master(adapters) as master:
        yield master
    adapters.close()


@pytest.fixture(scope="package")
def undisturbed(deployment: Deployment, master: Master, consumers: Adapters) -> None:
    """Learn what the job comes to when nothing fails."""
    learn(deployment, Run(deployment, master, consumers, deployment.spec("undisturbed")))


@pytest.fixture(scope="package")
def undisturbed_large(deployment: Deployment, master: Master, consumers: Adapters) -> None:
    """The same of the large one."""
    learn(deployment, Run(deployment, master, consumers, deployment.spec("undisturbed-large", large=True)))


def learn(deployment: Deployment, run: Run) -> None:
    """Remember what an undisturbed run comes to."""
    try:
        run.complete()
    finally:
        run.close()
    deployment.expected[run.clips] = run.taken
    status = run.leaves_nothing()
    assert status.counts.issued == status.counts.decoded == len(run.taken["trainer.rgb"])
    clips = run.taken["trainer.rgb"]
    assert len({digest for _, _, digest in clips}) > len(clips) / 2


@pytest.fixture
def begin(
    deployment: Deployment, master: Master, consumers: Adapters, undisturbed: None, unique: str
) -> Iterator[Begin]:
    """Starts the job of this test. Afterwards all links are whole again, and the job has ended."""
    started: list[Run] = []

    def begin_one(hold_at: int = 0, **limits: Any) -> Run:
        started.append(
            Run(deployment, master, consumers, deployment.spec(f"{unique}-{len(started)}", **limits), hold_at)
        )
        return started[-1]

    yield begin_one
    for links in deployment.links.values():
        for proxy in links.all():
            proxy.heal()
    deployment.s3.heal()
    for run in started:
        run.close()
