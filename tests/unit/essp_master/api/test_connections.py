"""Connections are bounded in number and in time, and probes are answered meanwhile."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.serving import Served
from tests.harness.waiting import LONGEST_S

MOST = 8
HALF = b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


class Caller:
    """Opens connections, and closes them at the end."""

    def __init__(self, served: Served, stack: ExitStack) -> None:
        self._port = int(served.url.rpartition(":")[2])
        self._stack = stack

    def connect(self, data: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), LONGEST_S)
        self._stack.callback(connection.close)
        connection.sendall(data)
        return connection

    def ask(self, data: bytes) -> bytes:
        """All that comes back until the server closes."""
        return everything(self.connect(data))


def everything(connection: socket.socket) -> bytes:
    """What arrives until the connection ends. Fails after `LONGEST_S`."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


def flood(connection: socket.socket) -> None:
    """Ask for ever. Raises `TimeoutError` if the other side neither takes it nor ends it for `LONGEST_S`."""
    while True:
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)


POST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
PROBE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    with Served(tmp_path, api_connections=MOST) as served, ExitStack() as stack:
        yield Caller(served, stack)


@pytest.mark.parametrize("data", [b"", HALF, PROBE[:-4] + b"\r\nContent-Length: 9\r\n"])
def test_half_open_connections_never_silence_a_probe(caller: Caller, data: bytes) -> None:
    held = [caller.connect(data) for _ in range(5 * MOST)]
    assert caller.ask(PROBE).endswith(b"ok\n")
    assert everything(held[0]) == b"", "the oldest was closed"


def test_requests_under_way_are_bounded_and_leave_room_for_probes(caller: Caller) -> None:
    """Bodies that do not arrive: each holds a request."""
    head = POST + b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n"
    for _ in range(MOST // 2):  # as many are for event streams as for probes
        assert caller.connect(head).recv(100).startswith(b"HTTP/1.1 100"), "the master waits for the body"
    refused = caller.ask(b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1" in refused
    assert json.loads(refused.partition(b"\r\n\r\n")[2])["status"] == 503
    assert caller.ask(PROBE).endswith(b"ok\n")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        HALF,
        POST + b"Content-Length: 100\r\n\r\nname",
        POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nname",
        PROBE.replace(b"close", b"keep-alive") + HALF,
    ],
)
def test_a_request_that_does_not_arrive_is_cut_off(tmp_path: Path, data: bytes) -> None:
    with Served(tmp_path, api_patience_s=0.2) as served, ExitStack() as stack:
        answer = Caller(served, stack).ask(data)
    assert answer == b"" or answer.endswith(b"ok\n")


def test_an_answer_that_nobody_takes_is_cut_off(tmp_path: Path) -> None:
    """A caller that asks and never reads: once the buffers are full, the connection goes."""
    with Served(tmp_path, api_patience_s=0.2, api_requests_per_s=0) as served, ExitStack() as stack:
        connection = Caller(served, stack).connect()
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            flood(connection)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01 hello\r\n\r\n",
        b"GET /v1/jobs\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http_gets_a_problem_document(caller: Caller, data: bytes) -> None:
    answer = caller.ask(data)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400"), "reset where there was more to read"
    if answer:
        assert b"application/problem+json" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == 400


def test_a_caller_that_leaves_is_no_defect(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    connection = caller.connect(POST + b"Content-Length: 100\r\n\r\nname")
    connection.close()
    assert caller.ask(PROBE).endswith(b"ok\n")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
