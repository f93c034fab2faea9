"""Host names that do not resolve, for each server: at the start, and during a job."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from essp_common.errors import Unavailable
from essp_common.wiring import open_bus, open_cache, open_store

pytestmark = pytest.mark.integration

NAME = "essp-server"


@contextmanager
def resolving(monkeypatch: pytest.MonkeyPatch, works: bool) -> Iterator[list[str]]:
    """The name is this machine, or there is no such name; what was asked for."""
    true, asked = socket.getaddrinfo, []

    def resolve(host: Any, *rest: Any, **more: Any) -> Any:
        if host not in (NAME, NAME.encode()):
            return true(host, *rest, **more)
        asked.append(NAME)
        if not works:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return true("127.0.0.1", *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", resolve)
        yield asked


def use_bus(url: str) -> None:
    bus = open_bus(url.replace("127.0.0.1", NAME) + "&connect_timeout_ms=1000")
    try:
        bus.ensure_topics({"essp.names": 1})
    finally:
        bus.close()


def use_cache(url: str) -> None:
    cache = open_cache(url.replace("127.0.0.1", NAME))
    cache.put("essp:names:{1}", b"x", ["me"], 10)
    cache.ack("essp:names:{1}", "me")
    cache.close()


def use_store(url: str) -> None:
    open_store(url.replace("127.0.0.1", NAME)).put("names", b"x")


@pytest.mark.parametrize(
    ("server", "use"),
    [("kafka_url", use_bus), ("redis_url", use_cache), ("s3_url", use_store)],
    ids=["bus", "cache", "store"],
)
def test_a_name_that_does_not_resolve_is_asked_for_again(
    server: str, use: Callable[[str], None], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue(server)
    with resolving(monkeypatch, works=False) as asked, pytest.raises(Unavailable):
        use(url)
    assert asked
    with resolving(monkeypatch, works=True) as asked:
        use(url)
    assert asked


def test_a_connection_that_was_open_is_opened_again_once_the_name_resolves(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with resolving(monkeypatch, works=True):
        cache = open_cache(redis_url.replace("127.0.0.1", NAME))
        cache.put("essp:names:{2}", b"x", ["me"], 10)
    cache.close()
    with resolving(monkeypatch, works=False), pytest.raises(Unavailable):
        cache.get("essp:names:{2}")
    with resolving(monkeypatch, works=True):
        assert cache.get("essp:names:{2}") == b"x"
        cache.ack("essp:names:{2}", "me")
    cache.close()
