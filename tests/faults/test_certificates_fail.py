"""A server's certificate has expired: the client's error says so, and what to do."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from essp.cli.rest import ask, connect
from essp_common.errors import Unavailable
from essp_common.wiring import open_cache, open_store
from tests.harness.tls_front import Identity, TlsFront, make_identity
from tests.harness.waiting import LONGEST_S

pytestmark = pytest.mark.integration

SAID = "certificate has expired.*; renew the certificate"


@pytest.fixture
def expired(tmp_path: Path) -> Identity:
    return make_identity(tmp_path / "expired", expired=True)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0].partition("?")[0])


def test_the_cache_says_so(empty_redis_url: str, expired: Identity) -> None:
    with TlsFront(expired, port_of(empty_redis_url)) as front, pytest.raises(Unavailable, match=SAID):
        open_cache(f"rediss://127.0.0.1:{front.port}/0?ssl_ca_certs={expired.ca}")


def test_the_store_says_so(empty_s3_url: str, expired: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(expired.ca))
    where, _, endpoint = empty_s3_url.partition("?endpoint=")
    with TlsFront(expired, port_of(endpoint)) as front, pytest.raises(Unavailable, match=SAID):
        open_store(f"{where}?endpoint=https://127.0.0.1:{front.port}").put("a", b"x")


def test_the_bus_says_so(kafka_url: str, expired: Identity) -> None:
    """In a process of its own: kafka-python leaves sockets whose handshake failed to the garbage collector."""
    code = (
        "import sys; from essp_common.wiring import open_bus; from essp_common.errors import Unavailable\n"
        "try: open_bus(sys.argv[1]).ensure_topics({'t': 1})\n"
        "except Unavailable as error: print(error)\n"
    )
    with TlsFront(expired, port_of(kafka_url)) as front:
        url = f"kafka+ssl://127.0.0.1:{front.port}?connect_timeout_ms=1500&ca={expired.ca}"
        done = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, timeout=LONGEST_S)
    assert re.search(SAID, done.stdout), done.stderr


def test_the_command_line_says_so(kafka_url: str, expired: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(expired.ca))
    with (
        TlsFront(expired, port_of(kafka_url)) as front,
        closing(connect(f"https://127.0.0.1:{front.port}", "")) as client,
        pytest.raises(Unavailable, match=SAID),
    ):
        ask(client, "GET", "/v1/jobs")
