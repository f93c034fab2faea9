"""Sockets that listen: at one address, or at whatever addresses the machine has."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from essp_common.runtime.listening import EVERYWHERE, listening
from tests.harness.waiting import LONGEST_S


def reached(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=LONGEST_S):
            return True
    except OSError:
        return False


def test_everywhere_is_every_address_of_both_kinds() -> None:
    with closing(listening(EVERYWHERE, 0)) as server:
        port = server.getsockname()[1]
        assert reached("127.0.0.1", port)
        assert reached("::1", port) is _has_ipv6()


def test_a_machine_without_ipv6_listens_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with closing(listening(EVERYWHERE, 0)) as server:
        assert server.family == socket.AF_INET
        assert reached("127.0.0.1", server.getsockname()[1])


def test_one_address_is_no_other() -> None:
    with closing(listening("127.0.0.1", 0)) as server:
        assert reached("127.0.0.1", server.getsockname()[1])
        assert not reached("127.0.0.2", server.getsockname()[1])


def _has_ipv6() -> bool:
    try:
        with closing(socket.create_server(("::1", 0), family=socket.AF_INET6)):
            return True
    except OSError:
        return False
