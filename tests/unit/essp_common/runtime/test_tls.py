"""Kafka and Redis behind TLS, with an authority of our own: what a URL has to say, and what is refused."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from essp.servers.servers import RedisServer
from essp_common.bus import kafka_clients
from essp_common.bus.kafka_options import KafkaOptions
from essp_common.bus.port import Bus
from essp_common.errors import ConfigError, FlowUnavailable, Unavailable
from essp_common.runtime.config import Settings
from essp_common.runtime.login import Login
from essp_common.runtime.troubles import Kind
from essp_common.wiring import open_bus, open_cache
from tests.harness.brokers import kafka_broker
from tests.harness.refused import refused
from tests.harness.tls_front import Identity, TlsFront, make_identity
from tests.harness.waiting import LONGEST_S, until

LOGIN = Login(user="essp", password="s3cret")
QUICKLY = "connect_timeout_ms=1500"


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return make_identity(tmp_path_factory.mktemp("identity"))


@pytest.fixture(scope="module")
def front(identity: Identity, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsFront]:
    """Of a broker that wants TLS, a user and a password."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (
        kafka_broker(tmp_path_factory.mktemp("kafka"), advertised_port=port) as server,
        TlsFront(identity, server.port, port, ("essp", "s3cret")) as front,
    ):
        yield front


@pytest.fixture(scope="module")
def plain_front(front: TlsFront) -> Iterator[TlsFront]:
    """Of the same broker, without TLS. Nobody comes further than the login."""
    with TlsFront(None, front.target, login=("essp", "s3cret")) as plain:
        yield plain


@pytest.fixture
def kafka(front: TlsFront) -> str:
    """`host:port` of the broker."""
    return f"127.0.0.1:{front.port}"


def there_and_back(bus: Bus) -> bytes:
    """One message."""
    topic = "t" + uuid.uuid4().hex[:8]
    bus.ensure_topics({topic: 1})
    with closing(bus.subscribe([topic], None)) as subscription:
        bus.publish(topic, b"key", b"value")
        bus.flush(LONGEST_S)
        [record] = subscription.poll(1, LONGEST_S)
        return record.value


@pytest.mark.processes
@pytest.mark.integration
def test_kafka_with_tls_and_a_password(kafka: str, identity: Identity, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with closing(open_bus(f"kafka+ssl://{kafka}?ca={identity.ca}&sasl=PLAIN", LOGIN)) as bus:
        assert there_and_back(bus) == b"value"
    assert "s3cret" not in caplog.text


@pytest.mark.processes
@pytest.mark.integration
@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize(
    ("sasl", "user", "password", "said"),
    [
        ("PLAIN", "essp", "guessed", "SaslAuthenticationFailedError.*ESSP_BUS_USER, its password"),
        ("PLAIN", "nobody", "s3cret", "SaslAuthenticationFailedError.*ESSP_BUS_USER, its password"),
        ("SCRAM-SHA-512", "essp", "guessed", "SaslAuthenticationFailedError.*ESSP_BUS_USER, its password"),
        ("SCRAM-SHA-256", "essp", "guessed", "the broker does not take sasl=SCRAM-SHA-256"),
    ],
)
def test_kafka_refuses_a_login(
    front: TlsFront,
    plain_front: TlsFront,
    identity: Identity,
    caplog: pytest.LogCaptureFixture,
    tls: bool,
    sasl: str,
    user: str,
    password: str,
    said: str,
) -> None:
    """Its answer comes together with the end of the connection."""
    url = f"kafka+ssl://127.0.0.1:{front.port}?ca={identity.ca}&" if tls else f"kafka://127.0.0.1:{plain_front.port}?"
    with closing(open_bus(f"{url}sasl={sasl}&connect_timeout_ms=300", Login(user=user, password=password))) as bus:
        with pytest.raises(ConfigError, match=said) as raised:
            ask(bus)
        assert password not in str(raised.value) + caplog.text


def ask(bus: Bus) -> None:
    """Ask again while no broker answers: on a busy machine, none does within the short time that tests give it."""
    while True:
        with suppress(FlowUnavailable):
            return bus.ensure_topics({"t": 1})


@pytest.fixture
def changed_password(front: TlsFront) -> Iterator[Callable[[], None]]:
    """The broker wants another password until the test is over."""
    yield lambda: front.change_password("n3w")
    front.change_password("s3cret")


@pytest.mark.processes
@pytest.mark.integration
def test_kafka_takes_a_new_password_from_its_file(
    kafka: str,
    identity: Identity,
    tmp_path: Path,
    changed_password: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No process starts again for it: publishers, readers and what asks the broker log in anew. Until the file has the
    new one, work waits."""
    monkeypatch.setattr(kafka_clients, "_DENIED_RETRY_S", 0.05)
    file, topic = tmp_path / "password", "t" + uuid.uuid4().hex[:8]
    url = f"kafka+ssl://{kafka}?ca={identity.ca}&sasl=PLAIN&{QUICKLY}&password_file={file}"
    file.write_text("s3cret\n")
    with closing(open_bus(url, Login(user="essp"))) as bus:
        bus.ensure_topics({topic: 1})
        with closing(bus.subscribe([topic], None)) as subscription:

            def goes_through() -> bool:
                try:
                    bus.publish(topic, b"", b"value")
                    bus.flush(2.0)
                    return bool(subscription.poll(10, 1.0)) and bus.held(topic) != []
                except FlowUnavailable:
                    return False

            def refused(said: str) -> bool:
                return not goes_through() and said in bus.troubles().get(Kind.BUS_REFUSES, "")

            until(goes_through)
            changed_password()
            until(lambda: refused("taken at once from the bus URL's password_file"))
            file.unlink()
            until(lambda: refused("password cannot be read: No such file"))
            file.write_text("n3w\n")
            until(lambda: goes_through() and not bus.troubles())
    assert "s3cret" not in caplog.text
    assert "n3w" not in caplog.text


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
        ("kafka+ssl://h:1?password_file=/etc/passwd", "password_file is set; say how to log in"),
        ("kafka+ssl://h:1?sasl=PLAIN&password_file=/etc/passwd", "leave out password_file, or ESSP_BUS_PASSWORD"),
    ],
)
def test_a_url_that_makes_no_sense(query: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        KafkaOptions.from_url(query, LOGIN)


def test_a_password_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ESSP_BUS_USER, and ESSP_BUS_PASSWORD or password_file"):
        KafkaOptions.from_url("kafka+ssl://h:1?sasl=PLAIN")
    url = f"kafka+ssl://h:1?sasl=PLAIN&password_file={tmp_path / 'password'}"
    with refused("password_file", "unreadable"):
        KafkaOptions.from_url(url, Login(user="essp"))
    for wrong, said in ((b"\n", "is empty"), (b"\xff", "it is not UTF-8")):
        (tmp_path / "password").write_bytes(wrong)
        with pytest.raises(ConfigError, match=said):
            KafkaOptions.from_url(url, Login(user="essp"))


def test_no_password_in_the_url() -> None:
    with refused("ESSP_BUS", "conflict") as raised:
        KafkaOptions.from_url("kafka://essp:s3cret@h:1")
    assert "s3cret" not in str(raised.value)


def test_settings_hold_the_password_and_do_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESSP_BUS_USER", "essp")
    monkeypatch.setenv("ESSP_BUS_PASSWORD", "s3cret")
    settings = Settings()
    assert settings.bus_login == LOGIN
    options = KafkaOptions.from_url("kafka+ssl://h:1?sasl=SCRAM-SHA-512", settings.bus_login)
    assert options.client()["sasl_plain_password"]() == "s3cret"
    assert options.client()["security_protocol"] == "SASL_SSL"
    assert "s3cret" not in repr(settings) + repr(options)
