"""The deployment of `tests/faults` on Apache Kafka: without proxies, and with a user of its own for each service."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from essp.servers.servers import KafkaServer, RedisServer, S3Server
from essp_common import topics
from essp_common.runtime.login import NOBODY, Login
from essp_common.wiring import Adapters, Stores, open_bus, open_cache
from tests.faults.conftest import REDIS_BYTES, fill
from tests.faults.deployment import CONNECT_TIMEOUT_MS, Deployment
from tests.faults.s3_front import S3Front
from tests.harness.acls import give, grants
from tests.harness.apache_kafka import ApacheCluster, admin_of
from tests.harness.command_line import essp
from tests.harness.waiting import until
from tests.integration.fleet import Process

_BUCKET = "essp-kafka"
_OPTIONS = f"session_timeout_ms=6000&connect_timeout_ms={CONNECT_TIMEOUT_MS}"


def password_of(service: str) -> str:
    """Of the user of a service."""
    return f"pw-{service}"


@dataclass
class KafkaDeployment(Deployment):
    """Everybody reaches the servers directly."""

    bus: str = ""
    """The URL of the brokers."""
    secured: bool = False
    """Whether each service logs in as its own user, `essp-SERVICE`."""

    def urls(self, side: str) -> dict[str, str]:
        joint = "&" if "?" in self.bus else "?"
        return {
            "ESSP_BUS": f"{self.bus}{joint}{_OPTIONS}",
            "ESSP_CACHE": f"{self.redis.url}?socket_timeout=2",
            "ESSP_STORES": json.dumps([self.store_url(self.s3.port)]),
        }

    def login(self, service: str) -> Login:
        """How a service logs in."""
        return Login(f"essp-{service}", password_of(service)) if self.secured else NOBODY

    def start(self, *arguments: str, failpoint: str = "", **environment: str) -> Process:
        login = self.login(arguments[0])
        users = {"ESSP_BUS_USER": login.user, "ESSP_BUS_PASSWORD": login.password} if self.secured else {}
        return super().start(*arguments, failpoint=failpoint, **users, **environment)

    def adapters(self, side: str) -> Adapters:
        """Connections of this process, as those of the service `side`."""
        urls = self.urls(side)
        bus = open_bus(urls["ESSP_BUS"], self.login(side))
        return Adapters(bus, open_cache(urls["ESSP_CACHE"]), Stores(tuple(json.loads(urls["ESSP_STORES"]))))


def secure(cluster: ApacheCluster, passwords: Mapping[str, str]) -> None:
    """Make the topics, and a user for each service, with exactly the rights of `essp setup --acls`. `passwords`: by
    user."""
    with pytest.MonkeyPatch.context() as patch, admin_of(cluster.url) as admin:
        admin.alter_user_scram_credentials(
            [
                UserScramCredentialUpsertion(name, ScramMechanism.SCRAM_SHA_512, password)
                for name, password in passwords.items()
            ]
        )
        patch.setenv("ESSP_BUS", cluster.login_url)
        patch.setenv("ESSP_BUS_USER", "essp-setup")
        patch.setenv("ESSP_BUS_PASSWORD", passwords["essp-setup"])
        give(admin, grants(essp("setup", "--acls").stdout))
        assert essp("setup", "--feature", "flow").exit_code == 0
    until(cluster.whole)


def set_up(url: str) -> None:
    """What `essp setup --feature flow` makes."""
    bus = open_bus(url)
    bus.ensure_topics({topic: topics.partitions(topic) for topic in (*topics.FIXED, topics.features("flow"))})
    bus.close()


@contextmanager
def deployed(
    folder: Path, kafka: KafkaServer, s3: S3Server, bus: str, *more: str, secured: bool = False
) -> Iterator[KafkaDeployment]:
    """A deployment with the small set, one decoder, one extractor, and these services."""
    s3.create_bucket(_BUCKET)
    with RedisServer(folder, maxmemory_bytes=REDIS_BYTES) as redis, S3Front(s3.port) as front:
        deployment = KafkaDeployment(kafka, redis, front, _BUCKET, folder, bus=bus, secured=secured)
        fill(deployment, s3, folder / "videos")
        with deployment.working(*more):
            yield deployment
