"""The broker that tests start: that of `essp servers`, or Apache Kafka where ESSP_TEST_KAFKA names it."""

from __future__ import annotations

import os
from pathlib import Path

from essp.servers.servers import KafkaServer
from tests.harness.apache_kafka import VARIABLE, ApacheKafka


def kafka_broker(
    directory: Path | str,
    port: int | None = None,
    *,
    session_timeout_ms: int = 2000,
    advertised_port: int | None = None,
) -> KafkaServer:
    """A broker that forgets everything when it stops; enter it. `session_timeout_ms` is part of its URL."""
    kind = ApacheKafka if VARIABLE in os.environ else KafkaServer
    return kind(directory, port, session_timeout_ms=session_timeout_ms, advertised_port=advertised_port)
