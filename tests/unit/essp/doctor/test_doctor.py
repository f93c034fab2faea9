"""`essp doctor` over real servers that are well, that are set up wrong, and that are not there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource
from kafka.errors import ClusterAuthorizationFailedError
from typer.testing import CliRunner

from essp.cli import main as cli
from essp.cli import rest
from essp.cli.doctor import examine
from essp.doctor import finding, kafka, machine, master, stores
from essp.doctor.finding import Finding, Level
from essp.servers.servers import RedisServer
from essp_common import distribution, topics
from essp_common.bus.kafka_clients import HIDDEN
from essp_common.distribution import VERSION_HEADER
from essp_common.errors import ConfigError, PermanentError, Unavailable
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo
from essp_common.objects.s3 import S3Store
from essp_common.runtime.config import Settings
from essp_common.runtime.login import NOBODY, Login
from essp_common.wiring import open_bus, open_cache, open_store
from essp_master.api.app import create_app
from essp_master.config import MasterSettings
from tests.harness.fleet import adapters_in, master_over
from tests.harness.http_server import ClosingHTTPServer
from tests.harness.refused import refused
from tests.harness.serving import served
from tests.harness.tls_front import TlsFront, make_identity
from tests.harness.waiting import LONGEST_S


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """In place of torch and torchvision, which take seconds to load: no GPU."""
    fake = SimpleNamespace(__version__="2", version=SimpleNamespace(cuda="13.0"))
    fake.cuda = SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", fake)
    vision = SimpleNamespace(torchvision=SimpleNamespace(__version__="0.2"))
    monkeypatch.setitem(sys.modules, "essp_engine.learning.torchvision_compat", vision)
    monkeypatch.setattr(machine, "find_spec", lambda name: object())
    return fake


def said(findings: list[Finding], check: str, level: Level) -> str:
    """What was found of one kind, in one text."""
    return "\n".join(f"{f.what} -> {f.remedy}" for f in findings if (f.check, f.level) == (check, level))


@contextmanager
def api_of(folder: Path, token: str) -> Iterator[str]:
    """The URL of a master's API."""
    with closing(adapters_in(folder)) as adapters:
        app = create_app(master_over(adapters), MasterSettings.model_validate({"api_token": token}))
        with served(app) as url:
            yield url


@contextmanager
def http_server(answers: dict[str, tuple[int, bytes]], date: str | None = None) -> Iterator[str]:
    """Something that speaks HTTP and is no master. `date`: what it says in the place of the time."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, b""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(timestamp) if date is None else date

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with ClosingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="http")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.integration
def test_servers_that_are_well(own_kafka_url: str, empty_redis_url: str, empty_s3_url: str, tmp_path: Path) -> None:
    """After `essp setup`, nothing is wrong; nothing is left in cache and store."""
    with closing(open_bus(own_kafka_url)) as bus:
        bus.ensure_topics({t: topics.partitions(t) for t in topics.FIXED})
    settings = Settings(bus=own_kafka_url, cache=empty_redis_url, stores=(empty_s3_url, f"file://{tmp_path}"))
    with api_of(tmp_path / "master", "s3cret") as server:
        found = examine(settings, server, "s3cret")
    assert said(found, "kafka", Level.OK).count("\n") == 2
    assert "came back and was freed" in said(found, "redis", Level.OK)
    assert "written once, read in part, deleted" in said(found, "s3", Level.OK)
    assert "accepts the token" in said(found, "master", Level.OK)
    assert said(found, "clock", Level.OK).count("ahead") + said(found, "clock", Level.OK).count("behind") == 2
    assert not [f for f in found if f.level is Level.FAIL]
    assert list(open_store(empty_s3_url).list()) == []


def test_servers_that_are_not_there(unused_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is told at once, none keeps another from being looked at."""
    address = f"127.0.0.1:{unused_port}"
    monkeypatch.setenv("ESSP_BUS", f"kafka://{address}")
    monkeypatch.setenv("ESSP_CACHE", f"redis://:s3cret@{address}/0")
    monkeypatch.setenv("ESSP_STORES", json.dumps([f"s3://essp?endpoint=http://{address}", f"file://{tmp_path}/none"]))
    done = CliRunner().invoke(cli.app, ["doctor", "--server", f"http://{address}", "--json"])
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert report["level"] == "fail"
    failed = {line["check"] for line in report["findings"] if line["level"] == "fail"}
    assert failed == {"kafka", "redis", "s3", "files", "master"}
    assert all(line["remedy"] for line in report["findings"] if line["level"] != "ok")
    assert "s3cret" not in done.stdout


def test_one_process_needs_no_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ESSP_BUS", "ESSP_CACHE", "ESSP_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ESSP_STORES", json.dumps([f"file://{tmp_path}"]))
    done = CliRunner().invoke(cli.app, ["doctor"])
    assert done.exit_code == 0, done.stdout
    assert "not used: one process" in done.stdout
    assert "master" not in done.stdout


def test_whoever_interrupts_waits_for_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered, waited = threading.Event(), threading.Event(), []

    def silent(roots: object) -> list[Finding]:
        asked.set()
        waited.append(answered.wait(LONGEST_S))
        return []

    def pressed() -> list[Finding]:
        asked.wait()
        signal.raise_signal(signal.SIGINT)
        return []

    monkeypatch.setattr(stores, "examine", silent)
    monkeypatch.setattr(machine, "examine", pressed)
    with pytest.raises(KeyboardInterrupt):
        examine(Settings(), "", "")
    assert waited == []
    answered.set()
    for thread in threading.enumerate():
        if thread.name == "essp-doctor":
            thread.join()


def test_frames_in_memory_behind_a_broker(unused_port: int) -> None:
    found = examine(Settings(bus=f"kafka://127.0.0.1:{unused_port}", cache="memory://", stores=()), "", "")
    assert "on one machine to shm://" in said(found, "redis", Level.FAIL)
    assert "only one process can read frames in memory:// -> set ESSP_CACHE" in said(found, "redis", Level.FAIL)
    assert "set ESSP_SERVER" in said(found, "master", Level.WARN)


def test_shared_memory(unused_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(url: str) -> list[Finding]:
        return examine(Settings(bus=f"kafka://127.0.0.1:{unused_port}", cache=url, stores=()), "", "")

    name = f"shm://doctor-{os.getpid()}"
    well = said(found(f"{name}?bytes=1MiB"), "shm", Level.OK)
    assert "may take 1.0 MiB more" in well
    assert "a value came back and was freed" in well
    assert "not 2097152" in said(
        _while_open(f"{name}?bytes=1MiB", lambda: found(f"{name}?bytes=2MiB")), "redis", Level.FAIL
    )
    assert "--shm-size" in said(found(f"{name}?bytes=900000GiB"), "redis", Level.FAIL)
    full = SimpleNamespace(f_bavail=1, f_bfree=1, f_blocks=2**30, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    assert "has 4.0 KiB free" in said(found(f"{name}?bytes=1MiB"), "shm", Level.WARN)


def _while_open(url: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    with closing(open_cache(url)):
        return look()


@pytest.mark.integration
def test_topics_that_are_wrong(own_kafka_url: str) -> None:
    with closing(open_bus(own_kafka_url)) as bus:
        bus.ensure_topics({topics.CLIPS: 3})
    found = examine(Settings(bus=own_kafka_url, stores=()), "", "")
    assert "topic essp.clips has 3 partitions, ESSP needs 64 -> run `essp setup`" in said(found, "kafka", Level.FAIL)
    assert "topics are missing: essp.seeds, essp.progress" in said(found, "kafka", Level.WARN)


@pytest.mark.integration
def test_topics_that_a_user_may_not_see(kafka_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be there."""

    def hidden(admin: KafkaAdminClient, names: list[str]) -> list[dict[str, Any]]:
        return [{"name": name, "error_code": HIDDEN.errno, "partitions": []} for name in names]

    monkeypatch.setattr(KafkaAdminClient, "describe_topics", hidden)
    found = examine(Settings(bus=kafka_url, stores=()), "", "")
    assert "may not see the topics essp.seeds" in said(found, "kafka", Level.FAIL)
    assert "`essp setup --acls` shows" in said(found, "kafka", Level.FAIL)
    assert "topics are missing" not in said(found, "kafka", Level.WARN)


@pytest.mark.integration
@pytest.mark.parametrize(("given_ms", "fails"), [(5999, True), (6000, False), (1_800_001, True), (None, False)])
def test_session_timeouts_that_the_broker_refuses(
    kafka_url: str, monkeypatch: pytest.MonkeyPatch, given_ms: int | None, fails: bool
) -> None:
    def bounds(admin: KafkaAdminClient, asked: list[ConfigResource], config_filter: str) -> dict[str, Any]:
        if given_ms is None:
            raise ClusterAuthorizationFailedError
        bounds_ms = {"group.min.session.timeout.ms": "6000", "group.max.session.timeout.ms": "1800000"}
        return {"broker": {asked[0].name: {name: {"value": value} for name, value in bounds_ms.items()}}}

    monkeypatch.setattr(KafkaAdminClient, "describe_configs", bounds)
    monkeypatch.setattr(kafka, "_round_trip", lambda options, tenant: iter(()))
    url = f"{kafka_url.partition('?')[0]}?session_timeout_ms={given_ms or 6000}"
    told = said(list(kafka.examine(url, NOBODY)), "kafka", Level.FAIL)
    assert (
        f"takes session timeouts of 6000 to 1800000 ms, and session_timeout_ms of ESSP_BUS is {given_ms}" in told
    ) == fails


@pytest.mark.parametrize(
    ("topic", "limits", "level", "remedy"),
    [
        ("essp.seeds", {"retention.ms": 604_800_000}, None, ""),
        ("essp.seeds", {"retention.ms": 3_600_000}, Level.WARN, "retention.ms of the topic to 86400000 or more"),
        ("essp.seeds", {"retention.bytes": 2**20}, Level.WARN, "retention.bytes of the topic to 67108864 or more"),
        ("essp.seeds", {"cleanup.policy": "compact,delete"}, Level.FAIL, "cleanup.policy of the topic to delete"),
        ("essp.seeds", {"max.message.bytes": 65536}, Level.WARN, "max.message.bytes of the topic to 1001000 or more"),
        ("essp.control", {}, None, ""),
        (
            "essp.control",
            {"retention.ms": 604_800_000},
            Level.FAIL,
            "retention.ms and retention.bytes of the topic to -1",
        ),
    ],
)
def test_topics_that_lose_messages(topic: str, limits: dict[str, Any], level: Level | None, remedy: str) -> None:
    usual = {"retention.ms": -1, "retention.bytes": -1, "cleanup.policy": "delete", "max.message.bytes": 1_048_588}
    described = {topic: {name: {"value": str(value)} for name, value in (usual | limits).items()}}
    admin: Any = SimpleNamespace(describe_configs=lambda *_, **__: {"topic": described})
    found = list(kafka.lossy(kafka.limits_of(admin, [topic]), "essp.control"))
    assert [(finding.level, finding.remedy) for finding in found] == (
        [] if level is None else [(level, f"set {remedy}")]
    )


def test_broker_that_tells_no_limits_of_a_topic_is_not_judged_by_them() -> None:
    described = {"essp.seeds": {name: {"value": None} for name in kafka.LIMITS}}
    admin: Any = SimpleNamespace(describe_configs=lambda *_, **__: {"topic": described})
    assert kafka.limits_of(admin, ["essp.seeds"]) == {}


@pytest.mark.integration
def test_a_broker_whose_certificate_is_not_trusted(kafka_url: str, tmp_path: Path) -> None:
    identity = make_identity(tmp_path / "one")
    port = urlsplit(kafka_url).port or 0
    with TlsFront(identity, port) as front:
        url = f"kafka+ssl://127.0.0.1:{front.port}?ca={make_identity(tmp_path / 'other').ca}"
        assert "is not trusted" in said(list(kafka.examine(url, NOBODY)), "kafka", Level.FAIL)
    assert "no TLS" in said(list(kafka.examine(f"kafka+ssl://127.0.0.1:{port}", NOBODY)), "kafka", Level.FAIL)


@pytest.mark.processes
@pytest.mark.integration
def test_redis_that_drops_frames(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        server.execute("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        server.execute("CONFIG", "SET", "maxmemory", "0")
        found = examine(Settings(bus="kafka://127.0.0.1:1", cache=server.url, stores=()), "", "")
        failures = said(found, "redis", Level.FAIL)
        assert f"-> redis-cli -h 127.0.0.1 -p {server.port} CONFIG SET maxmemory-policy noeviction" in failures
        assert "no maxmemory" in failures
        server.execute("CONFIG", "SET", "maxmemory-policy", "noeviction")
        used = re.search(rb"used_memory:(\d+)", server.execute("INFO", "memory"))
        assert used
        server.execute("CONFIG", "SET", "maxmemory", str(int(int(used[1]) * 1.05)))
        found = examine(Settings(bus="kafka://127.0.0.1:1", cache=server.url, stores=()), "", "")
        assert "raise maxmemory" in said(found, "redis", Level.WARN)


@pytest.mark.integration
def test_redis_cluster(redis_cluster_url: str) -> None:
    found = examine(Settings(bus="kafka://127.0.0.1:1", cache=redis_cluster_url, stores=()), "", "")
    assert "came back and was freed" in said(found, "redis", Level.OK)


class Careless(DirectoryStore):
    """A store that knows nothing of conditions, gives whole objects for ranges, and deletes later."""

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        return super().put(key, data)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return super().get(key)

    def delete(self, key: str) -> None:
        """Some day."""


def test_a_store_without_conditional_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "open_store", lambda url: Careless.from_url(f"file://{tmp_path}"))
    failures = said(list(stores.examine(("s3://bucket",))), "s3", Level.FAIL)
    assert "(If-None-Match: *) -> use a server with conditional writes" in failures
    assert "a range read returned other bytes" in failures
    assert "a deleted object still exists" in failures


@pytest.mark.integration
def test_a_store_that_keeps_no_metadata(empty_s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_metadata(url: str) -> S3Store:
        store = S3Store.from_url(url)
        answers = store._client.meta.events
        answers.register("after-call.s3.HeadObject", lambda parsed, **_: parsed.update(Metadata={}))
        return store

    assert not said(list(stores.examine((empty_s3_url,))), "s3", Level.WARN)
    monkeypatch.setattr(stores, "open_store", without_metadata)
    assert "it keeps no metadata of objects" in said(list(stores.examine((empty_s3_url,))), "s3", Level.WARN)


def test_stores_that_can_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class ReadOnly(DirectoryStore):
        def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
            raise ConfigError("AccessDenied")

    monkeypatch.setattr(stores, "open_store", lambda url: ReadOnly.from_url(f"file://{tmp_path}"))
    videos = list(stores.examine(("s3://videos", f"file://{tmp_path}")))
    assert "is read-only (AccessDenied)" in said(videos, "s3", Level.WARN)
    assert not said(videos, "s3", Level.FAIL)
    assert "no store is writable" in said(list(stores.examine(("s3://videos",))), "s3", Level.FAIL)


@pytest.mark.integration
def test_a_bucket_that_is_not_there(empty_s3_url: str) -> None:
    url = f"s3://no-such-bucket?{empty_s3_url.partition('?')[2]}"
    assert "there is no bucket no-such-bucket" in said(list(stores.examine((url,))), "s3", Level.FAIL)


def test_a_master_that_refuses_the_token(tmp_path: Path) -> None:
    with api_of(tmp_path, "s3cret") as server:
        for token, complaint in (("", "needs a token"), ("wrong", "refuses the token")):
            assert complaint in said(list(master.examine(server, token)), "master", Level.FAIL)


def test_a_master_of_another_version() -> None:
    document = json.dumps({"info": {"version": "9.9.9"}}).encode()
    with http_server({"/readyz": (503, b""), "/openapi.json": (200, document)}) as server:
        found = list(master.examine(server, ""))
    assert "version 9.9.9" in said(found, "master", Level.FAIL)
    assert "does not take jobs" in said(found, "master", Level.WARN)


def test_something_else_in_place_of_the_master() -> None:
    with http_server({}) as server:
        assert "is the URL of a master" in said(list(master.examine(server, "")), "master", Level.FAIL)
    with http_server({"/readyz": (200, b""), "/openapi.json": (500, b"")}) as server:
        assert "look at the master's log" in said(list(master.examine(server, "")), "master", Level.FAIL)
    for body in (b"", b"[]", b"{}", b'{"info": 5}', b"\xff", b"[" * 100_000):
        with http_server({"/readyz": (200, b""), "/openapi.json": (200, body)}) as server:
            assert "no API of ESSP" in said(list(master.examine(server, "")), "master", Level.FAIL)


MASTER_ANSWERS = {
    "/readyz": (200, b""),
    "/openapi.json": (200, json.dumps({"info": {"version": distribution.version()}}).encode()),
    "/v1/jobs": (200, b"{}"),
}


def test_no_finding_shows_the_password_of_a_master() -> None:
    with http_server({"/readyz": (503, b"not ready"), "/openapi.json": (200, b"")}) as server:
        found = list(master.examine(server.replace("http://", "http://ann:s3cret@"), ""))
    assert [each.level for each in found] == [Level.WARN, Level.FAIL]
    assert not any("s3cret" in each.what + each.remedy for each in found)


def test_what_the_master_knows_to_be_wrong_is_a_finding() -> None:
    condition = {
        "kind": "bus-silent",
        "subject": "decoder",
        "words": "Kafka is away; start it",
        "since": "2026-01-01T00:00:00Z",
    }
    with http_server({**MASTER_ANSWERS, "/v1/conditions": (200, json.dumps([condition]).encode())}) as server:
        found = said(list(master.examine(server, "")), "master", Level.FAIL)
    assert re.search(r"bus-silent: decoder: Kafka is away \(since .*\) -> start it", found)


def test_what_only_has_to_be_known_is_no_failure() -> None:
    """`helm test` passes with the servers that the chart brings."""
    condition = {"kind": "trial-servers", "subject": "master", "words": "W; R", "since": "2026-01-01T00:00:00Z"}
    with http_server({**MASTER_ANSWERS, "/v1/conditions": (200, json.dumps([condition]).encode())}) as server:
        found = list(master.examine(server, ""))
    assert "trial-servers: master: W" in said(found, "master", Level.WARN)
    assert Level.FAIL not in {finding.level for finding in found}


@pytest.mark.parametrize("body", [b"", b"{}", b"[5]", b"[{}]", b'[{"words": 5}]', b"\xff", b"[" * 100_000])
def test_conditions_of_another_shape_are_a_finding(body: bytes) -> None:
    with http_server({**MASTER_ANSWERS, "/v1/conditions": (200, body)}) as server:
        found = list(master.examine(server, ""))
    assert "/v1/conditions lists no conditions -> see that no proxy" in said(found, "master", Level.FAIL)


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_that_is_nested_too_deeply_is_not_of_a_master(status: int) -> None:
    answer = httpx.Response(status, content=b"[" * 100_000, headers={VERSION_HEADER: "1"})
    with (
        httpx.Client(base_url="http://h", transport=httpx.MockTransport(lambda _: answer)) as client,
        pytest.raises(PermanentError, match="is that a master of ESSP"),
    ):
        rest.ask(client, "GET", "/v1/jobs")


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("", " names no host -> write host:port in ESSP_BUS"),
        (":9092", ":9092 names no host -> write host:port in ESSP_BUS"),
        ("h:99999", "h:99999 is not an address: its port is not a number from 1 to 65535 -> correct ESSP_BUS"),
        ("h:x", "h:*** is not an address: "),
        ("[h", "[h is not an address: "),
    ],
)
def test_an_address_without_host_or_port_is_told_as_it_is(address: str, complaint: str) -> None:
    found = finding.unreachable("kafka", address, 9092, "ESSP_BUS")
    assert found is not None
    assert complaint in said([found], "kafka", Level.FAIL)


def test_no_store_at_all_is_a_finding() -> None:
    assert "ESSP_STORES is empty" in said(list(stores.examine(())), "files", Level.FAIL)


@pytest.mark.parametrize("server", ["master:8080", "http://", "http://[", "http://h:x", "http://h:99999", "x://\udcff"])
def test_what_is_no_url_of_a_master_is_refused(server: str) -> None:
    with pytest.raises(ConfigError, match="is not a URL"):
        list(master.examine(server, ""))
    with pytest.raises(ConfigError, match="is not a URL"):
        rest.connect(server, "")


@pytest.mark.parametrize("token", ["\udcff", "\u00e9", "a\nb", "\x00"])
def test_what_cannot_be_sent_as_a_token_is_refused(token: str) -> None:
    with refused("ESSP_API_TOKEN"):
        list(master.examine("http://127.0.0.1:1", token))
    with refused("ESSP_API_TOKEN"):
        rest.connect("http://127.0.0.1:1", token)


@pytest.mark.parametrize(("skew_s", "level"), [(0.0, Level.OK), (-1.5, Level.OK), (-30, Level.WARN), (900, Level.FAIL)])
def test_clocks_that_differ(skew_s: float, level: Level) -> None:
    now = time.time()
    found = finding.clock("S3", now + skew_s, now)
    assert found.level is level
    assert bool(found.remedy) is (level is not Level.OK)
    if abs(skew_s) > 1:
        assert re.search("ahead" if skew_s > 0 else "behind", found.what)


def test_a_machine_without_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_TMP_BYTES", 2**62)
    monkeypatch.setattr(machine, "_SHM_BYTES", 2**62)
    assert said(list(machine.examine()), "machine", Level.WARN).count("\n") == 1
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "none"))
    assert "needs a writable /tmp" in said(list(machine.examine()), "machine", Level.FAIL)


def test_a_machine_with_gpus(torch: SimpleNamespace) -> None:
    assert "no GPU: trainers run on CPUs" in said(list(machine.examine()), "machine", Level.OK)
    torch.cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 2,
        mem_get_info=lambda number: (70 << 30, 80 << 30),
        get_device_name=lambda number: "H100",
    )
    assert "GPU 1: H100, 71,680 of 81,920 MiB free, CUDA 13.0" in said(list(machine.examine()), "machine", Level.OK)


def test_a_gpu_that_cannot_be_used_is_named_and_the_others_are_told(torch: SimpleNamespace) -> None:
    def room(number: int) -> tuple[int, int]:
        if number == 0:
            raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nCUDA kernel errors might")
        return 70 << 30, 80 << 30

    torch.cuda = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 2, mem_get_info=room, get_device_name=lambda number: "H100"
    )
    found = list(machine.examine())
    busy = said(found, "machine", Level.FAIL)
    assert busy.startswith(
        "GPU 0: H100 cannot be used: CUDA error: all CUDA-capable devices are busy or unavailable ->"
    )
    assert "GPU 1: H100, 71,680" in said(found, "machine", Level.OK)


def test_a_torchvision_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torchvision 0.2 can be imported with torch 2" in said(list(machine.examine()), "machine", Level.OK)
    monkeypatch.delitem(sys.modules, "essp_engine.learning.torchvision_compat")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    broken = said(list(machine.examine()), "machine", Level.FAIL)
    assert broken.startswith("torchvision cannot be imported with torch 2: ")
    assert "pip install" in broken


def test_an_examination_that_breaks_ends_no_other(torch: SimpleNamespace) -> None:
    def broken() -> bool:
        raise OSError("libcudart.so.13: cannot open shared object file")

    torch.cuda = SimpleNamespace(is_available=broken)
    found = examine(Settings(stores=()), "", "")
    assert "OSError: libcudart.so.13: cannot open shared object file" in said(found, "machine", Level.FAIL)
    assert "Python" in said(found, "machine", Level.OK)
    assert "messages stay in memory" in said(found, "kafka", Level.OK)


def test_a_store_that_makes_no_sense_hides_no_other(tmp_path: Path) -> None:
    found = list(stores.examine(("nope://x", "file:///nowhere", f"file://{tmp_path}")))
    failures = said(found, "s3", Level.FAIL)
    assert "nope://x" in failures
    assert "no store is writable" not in failures
    assert "the folder /nowhere does not exist" in said(found, "files", Level.FAIL)
    assert f"{tmp_path} is writable" in said(found, "files", Level.OK)
    assert "no store is writable" in said(list(stores.examine(("nope://x",))), "s3", Level.FAIL)


def test_a_root_whose_folders_are_writable_is_a_store_to_write_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As `/`, the root if none is set, is to everybody but root."""
    mine, theirs = tmp_path / "home" / "me", tmp_path / "home" / "them"
    for folder in (mine, theirs):
        folder.mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK or Path(path) == mine)
    for here, home in ((mine, theirs), (theirs, mine)):
        monkeypatch.chdir(here)
        monkeypatch.setenv("HOME", str(home))
        found = list(stores.examine((f"file://{tmp_path}",)))
        assert not said(found, "s3", Level.FAIL)
        assert said(found, "files", Level.OK).startswith(f"{mine} in {tmp_path} is writable and has ")
    monkeypatch.setenv("HOME", str(theirs))
    found = list(stores.examine((f"file://{tmp_path}",)))
    assert "is read-only" in said(found, "files", Level.OK)
    assert "no store is writable" in said(found, "s3", Level.FAIL)


def test_a_store_on_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 << 20))
    full = said(list(stores.examine((f"file://{tmp_path}",))), "files", Level.WARN)
    assert full.startswith(f"{tmp_path} is writable and has 5 MiB free -> ")


@pytest.mark.parametrize("date", ["yesterday", ""])
def test_an_endpoint_that_gives_no_date_is_a_finding(date: str) -> None:
    with http_server({}, date) as server:
        found = list(stores._date(server))
    assert "does not report the time" in said(found, "clock", Level.WARN)


def test_what_a_check_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Iterator[Finding]:
        yield finding.ok("s3", "first")
        raise Unavailable("gone")

    monkeypatch.setattr(stores, "examine", away)
    found = examine(Settings(stores=()), "", "")
    assert said(found, "s3", Level.OK) == "first -> "
    assert said(found, "s3", Level.FAIL).startswith("gone -> ")


@pytest.mark.parametrize("endpoint", ["http://host:abc", "http://host:0", "http://[host"])
def test_an_endpoint_that_makes_no_sense_is_a_finding(endpoint: str) -> None:
    found = list(stores.examine((f"s3://b?endpoint={endpoint}",)))
    assert "s3://b: its endpoint is not the URL of a server: " in said(found, "s3", Level.FAIL)


def test_a_bus_that_makes_no_sense_is_a_finding() -> None:
    found = examine(Settings(bus="kafka+ssl://h:1?sasl=NONE", bus_user="me", stores=()), "", "")
    assert "sasl=NONE is not known" in said(found, "kafka", Level.FAIL)
    assert Login(user="me").user == "me"
