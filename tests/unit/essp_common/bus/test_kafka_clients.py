"""What is left of a client of kafka-python when it is closed: nothing, whatever it was about to do."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest
from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.cluster import ClusterMetadata
from kafka.net.inet import create_connection
from kafka.net.transport import KafkaTCPTransport

from essp_common.bus.kafka_clients import connected
from essp_common.bus.kafka_options import KafkaOptions

_MORE_THAN_FITS = 64 * 2**20
"""Bytes, into the buffers of a connection of which nobody reads."""


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """It takes one connection, of which it reads nothing; others wait until their client gives up."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as listening:
        yield listening


def named(server: socket.socket) -> str:
    host, port = server.getsockname()
    return f"{host}:{port}"


@contextmanager
def nothing_left_open() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        yield
        gc.collect()
    assert [str(warning.message) for warning in caught if issubclass(warning.category, ResourceWarning)] == []


def test_closed_while_it_connects(server: socket.socket) -> None:
    with ExitStack() as stack:
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        options = KafkaOptions.from_url(f"kafka://{named(server)}?connect_timeout_ms=100")
        with nothing_left_open(), pytest.raises(kafka_errors.KafkaTimeoutError):
            connected(KafkaAdminClient, **options.client())


def test_closed_with_something_to_send(server: socket.socket) -> None:
    def make(kafka_client: Any) -> Any:
        return kafka_client(bootstrap_servers=[named(server)])

    client = connected(make)

    async def send() -> Any:
        net = client._net
        opened = await create_connection(net, *server.getsockname())
        transport = KafkaTCPTransport(net, opened, "127.0.0.1")
        transport.write(b"x" * _MORE_THAN_FITS)
        return transport

    with nothing_left_open():
        transport = client._net.run(send)
        transport.close()
        client.close()
        del transport


def test_a_client_that_is_closed_while_it_asks_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does one whose loop was about to read; other errors of its connections are said."""
    cluster = ClusterMetadata(bootstrap_servers=["127.0.0.1:9"])
    cluster._manager = Mock()
    cluster._manager.broker_version_data.api_version.return_value = 1
    for error in (kafka_errors.Cancelled(), kafka_errors.KafkaConnectionError("reset")):
        cluster._manager.send = AsyncMock(side_effect=error)
        with pytest.raises(type(error)):
            asyncio.run(cluster._do_refresh_metadata(0))
    transport = KafkaTCPTransport(Mock(), Mock())
    broken = MagicMock(recv=Mock(side_effect=ValueError("broken")))
    for connection in (None, broken):
        transport._sock = connection
        assert isinstance(transport._sock_recv()[1], kafka_errors.KafkaConnectionError)
    said = [(r.name, str(r.exc_info[1] if r.exc_info else r.args)) for r in caplog.records if r.levelname == "ERROR"]
    assert [(name, "reset" in text or "broken" in text) for name, text in said] == [
        ("kafka.cluster", True),
        ("kafka.net.transport", True),
    ]


@pytest.mark.parametrize(
    ("met", "told"),
    [
        (kafka_errors.KafkaTimeoutError(), kafka_errors.SaslAuthenticationFailedError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_who_cannot_connect_hears_of_a_refused_login_but_for_ctrl_c(
    met: BaseException, told: type[BaseException]
) -> None:
    def make(kafka_client: Any) -> Any:
        kafka_client().refused = kafka_errors.SaslAuthenticationFailedError("wrong password")
        raise met

    with nothing_left_open(), pytest.raises(told):
        connected(make)


def test_warning_about_a_login_without_tls_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="kafka.net.sasl.scram")  # whatever a process of other tests has set
    for _ in range(3):
        logging.getLogger("kafka.net.sasl.scram").warning("in the clear, of this test")
    assert caplog.messages == ["in the clear, of this test"]
