"""Apache Kafka's brokers, which the lane `kafka` alone starts (`make test-kafka`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.apache_kafka import SECURED, ApacheCluster, ApacheKafka


@pytest.fixture(scope="session")
def broker(server_logs: Path) -> Iterator[ApacheKafka]:
    """One broker with Kafka's own bounds for sessions."""
    settings = {"group.min.session.timeout.ms": "6000"}
    with ApacheKafka(server_logs / "bounds", session_timeout_ms=6000, settings=settings) as server:
        yield server


@pytest.fixture(scope="session")
def cluster(server_logs: Path) -> Iterator[ApacheCluster]:
    """Three brokers that let nobody in at `login_url` without a password, nor do anything without a right."""
    with ApacheCluster(server_logs / "three", settings=SECURED) as brokers:
        yield brokers
