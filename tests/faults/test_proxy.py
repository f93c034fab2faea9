"""Each fault of the proxy has the effect it describes, and is counted."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.proxy import Proxy
from tests.harness.waiting import LONGEST_S


class Echo:
    """Answers what it is told, framed as Kafka does it, and remembers it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while piece := connection.recv(65536):
                    self.heard.append(piece)
                    connection.sendall(piece)
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(LONGEST_S)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as proxy:
        yield proxy


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=LONGEST_S)


def said(connection: socket.socket, message: bytes) -> bytes:
    """What comes back; empty when the connection ends instead."""
    try:
        connection.sendall(message)
        return connection.recv(65536)
    except ConnectionError:
        return b""


def asked(proxy: Proxy, message: bytes) -> bytes:
    """The same, over a new connection, which may be refused."""
    try:
        with connect(proxy) as connection:
            return said(connection, message)
    except ConnectionError:
        return b""


def test_bytes_pass(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        assert said(connection, b"hello") == b"hello"
    assert not proxy.faults


def test_a_lost_request_was_never_asked(proxy: Proxy, echo: Echo) -> None:
    proxy.lose_requests(1)
    assert asked(proxy, b"one") == b""
    assert asked(proxy, b"two") == b"two"
    assert echo.heard == [b"two"]
    assert proxy.faults == {"lost request": 1}


def test_a_lost_response_was_asked(proxy: Proxy, echo: Echo) -> None:
    proxy.lose_responses(1)
    assert asked(proxy, b"one") == b""
    assert echo.heard == [b"one"]
    assert proxy.faults == {"lost response": 1}


def test_a_cut_link_is_down_until_it_is_healed(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        assert said(connection, b"one") == b"one"
        proxy.cut()
        assert said(connection, b"two") == b""
    assert asked(proxy, b"three") == b""
    assert proxy.wait_for("refused", 1, LONGEST_S)
    proxy.heal()
    assert asked(proxy, b"four") == b"four"


def test_a_partition_holds_bytes_until_it_is_healed(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as connection:
        proxy.partition()
        connection.sendall(b"held")
        assert proxy.wait_for("held", 1, LONGEST_S)
        assert not echo.heard
        proxy.heal()
        assert connection.recv(100) == b"held"


def test_a_slow_link_delays(proxy: Proxy) -> None:
    proxy.slow(0.01)
    with connect(proxy) as connection:
        assert said(connection, b"slowly") == b"slowly"
    assert proxy.faults == {"delayed": 2}


@pytest.mark.parametrize("cut_at", [1, 5, 12, 17])
def test_a_rewriting_proxy_tells_its_own_port(echo: Echo, cut_at: int) -> None:
    """Answers may come in any pieces, and may end with what looks like the beginning of an address."""

    def answer(port: int) -> bytes:
        body = b"at 127.0.0.1" + struct.pack(">i", port) + b" or 1"
        return struct.pack(">i", len(body)) + body

    with Proxy(echo.port, rewrite=True) as proxy, connect(proxy) as connection:
        message, expected = answer(echo.port), answer(proxy.port)
        connection.sendall(message[:cut_at])
        connection.sendall(message[cut_at:])
        received: Any = b""
        while len(received) < len(expected):
            received += connection.recv(100)
        assert received == expected
