"""Kafka and Redis behind TLS, with an authority of our own: what a URL has to say, and what is refused."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from essp.servers.servers import KafkaServer, RedisServer
from essp_common.bus.kafka_options import KafkaOptions
from essp_common.bus.port import Bus
from essp_common.errors import ConfigError, Unavailable
from essp_common.runtime.config import Settings
from essp_common.runtime.login import Login
from essp_common.wiring import open_bus, open_cache
from tests.harness.tls_front import Identity, TlsFront, make_identity
from tests.harness.waiting import LONGEST_S

LOGIN = Login(user="essp", password="s3cret")
QUICKLY = "connect_timeout_ms=1500"


class KafkaBehind(KafkaServer):
    """A broker that sends its clients to another port: that of the front."""

    front_port = 0

    def _command(self) -> list[str]:
        advertised = "--advertised-listener-url="
        command = [part for part in super()._command() if not part.startswith(advertised)]
        return [*command, f"{advertised}tcp://127.0.0.1:{self.front_port}"]


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return make_identity(tmp_path_factory.mktemp("identity"))


@pytest.fixture(scope="module")
def kafka(identity: Identity, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a broker that wants TLS, a user and a password."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = KafkaBehind(tmp_path_factory.mktemp("kafka"), session_timeout_ms=2000)
    server.front_port = port
    with server, TlsFront(identity, server.port, port, ("essp", "s3cret")):
        yield f"127.0.0.1:{port}"


def there_and_back(bus: Bus) -> bytes:
    """One message."""
    topic = "t" + uuid.uuid4().hex[:8]
    bus.ensure_topics({topic: 1})
    with closing(bus.subscribe([topic], None)) as subscription:
        bus.publish(topic, b"key", b"value")
        bus.flush(10)
        for _ in range(40):
            for record in subscription.poll(1, 0.5):
                return record.value
    return b""


@pytest.mark.processes
@pytest.mark.integration
def test_kafka_with_tls_and_a_password(kafka: str, identity: Identity, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with closing(open_bus(f"kafka+ssl://{kafka}?ca={identity.ca}&sasl=PLAIN", LOGIN)) as bus:
        assert there_and_back(bus) == b"value"
    assert "s3cret" not in caplog.text


@pytest.mark.processes
@pytest.mark.integration
def test_kafka_refuses_a_wrong_password(kafka: str, identity: Identity, caplog: pytest.LogCaptureFixture) -> None:
    wrong = Login(user="essp", password="guessed")
    url = f"kafka+ssl://{kafka}?ca={identity.ca}&sasl=PLAIN&{QUICKLY}"
    with closing(open_bus(url, wrong)) as bus, pytest.raises((ConfigError, Unavailable)) as raised:
        bus.ensure_topics({"t": 1})
    assert "guessed" not in str(raised.value) + caplog.text


@pytest.mark.processes
@pytest.mark.integration
def test_kafka_of_an_unknown_authority_is_not_trusted(kafka: str, tmp_path: Path) -> None:
    """In a process of its own: kafka-python leaves sockets whose handshake failed to the garbage collector."""
    other = make_identity(tmp_path)
    code = (
        "import sys; from essp_common.wiring import open_bus; from essp_common.errors import Unavailable\n"
        "for url in sys.argv[1:]:\n"
        "    try: open_bus(url).ensure_topics({'t': 1})\n"
        "    except Unavailable as error: print(error)\n"
    )
    urls = [f"kafka+ssl://{kafka}?{QUICKLY}", f"kafka+ssl://{kafka}?{QUICKLY}&ca={other.ca}"]
    done = subprocess.run([sys.executable, "-c", code, *urls], capture_output=True, text=True, timeout=LONGEST_S)
    assert done.stdout.count("name the authority that signed it") == 2, done.stderr


@pytest.mark.integration
def test_redis_with_tls(empty_redis_url: str, identity: Identity, tmp_path: Path) -> None:
    port = int(empty_redis_url.rpartition(":")[2].partition("/")[0])
    with TlsFront(identity, port) as front:
        url = f"rediss://127.0.0.1:{front.port}/0"
        with closing(open_cache(f"{url}?ssl_ca_certs={identity.ca}")) as cache:
            cache.put("{clip}", b"frames", ["reader"], ttl_s=60)
            assert bytes(cache.get("{clip}")) == b"frames"
            assert cache.ack("{clip}", "reader")
        for untrusted in (url, f"{url}?ssl_ca_certs={make_identity(tmp_path).ca}"):
            with pytest.raises(Unavailable, match="certificate verify failed"):
                open_cache(untrusted)


@pytest.mark.processes
@pytest.mark.integration
def test_redis_cluster_with_tls(identity: Identity, tmp_path: Path) -> None:
    with RedisServer(tmp_path, cluster=True) as server, TlsFront(identity, server.port) as front:
        server.execute("CONFIG", "SET", "cluster-announce-port", str(front.port))
        url = f"rediss+cluster://127.0.0.1:{front.port}?ssl_ca_certs={identity.ca}"
        with closing(open_cache(url)) as cache:
            cache.put("{clip}", b"frames", ["reader"], ttl_s=60)
            assert bytes(cache.get("{clip}")) == b"frames"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("kafka://h:1?ca=/etc/passwd", "are for TLS"),
        ("kafka+ssl://h:1?ca=/no/such/file", "cannot be read"),
        ("kafka+ssl://h:1?cert=/etc/passwd", "belong together"),
        ("kafka+ssl://h:1?sasl=GSSAPI", "is not known; there are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ("kafka+ssl://h:1?tls=1", "is not an option"),
        ("kafka+ssl://h:1?ca=", "ca has no value"),
        ("kafka://h:1?linger_ms=-1", "is not a number of milliseconds"),
        ("kafka://h:1?linger_ms=\u00b2", "is not a number of milliseconds"),
        (f"kafka://h:1?linger_ms={'9' * 5000}", "is not a number of milliseconds"),
        ("kafka+ssl://h:1", "ESSP_BUS_USER is set"),
    ],
)
def test_a_url_that_makes_no_sense(query: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        KafkaOptions.from_url(query, LOGIN)


def test_a_password_is_wanted() -> None:
    with pytest.raises(ConfigError, match="ESSP_BUS_USER and ESSP_BUS_PASSWORD"):
        KafkaOptions.from_url("kafka+ssl://h:1?sasl=PLAIN")


def test_no_password_in_the_url() -> None:
    with pytest.raises(ConfigError, match="ESSP_BUS_PASSWORD") as raised:
        KafkaOptions.from_url("kafka://essp:s3cret@h:1")
    assert "s3cret" not in str(raised.value)


def test_settings_hold_the_password_and_do_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESSP_BUS_USER", "essp")
    monkeypatch.setenv("ESSP_BUS_PASSWORD", "s3cret")
    settings = Settings()
    assert settings.bus_login == LOGIN
    options = KafkaOptions.from_url("kafka+ssl://h:1?sasl=SCRAM-SHA-512", settings.bus_login)
    assert options.client()["sasl_plain_password"] == "s3cret"
    assert options.client()["security_protocol"] == "SASL_SSL"
    assert "s3cret" not in repr(settings) + repr(options)
