"""Apache Kafka itself, as tests start it: brokers of one process each, from the jars of a release.

ESSP_TEST_KAFKA names a folder with Kafka's `libs/`, such as an unpacked release; Java 17 or later has to be there.
Where it is set, `harness/brokers.py` starts these brokers in place of the one of `essp servers`.

A start of a JVM that loads Kafka's classes from jars takes 5 s of CPU, and formatting a folder 1.5 s. So both are
prepared once a machine and kept in the user's folder for caches: an archive of the loaded classes, and a formatted
folder that each broker copies. With them a broker costs 2 s of CPU and 300 MB.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TextIO

from kafka import KafkaAdminClient

from essp.servers.servers import KafkaServer, free_port
from essp_common.bus.kafka_clients import connected
from essp_common.bus.kafka_options import KafkaOptions
from tests.harness.caches import cached
from tests.harness.waiting import until

VARIABLE = "ESSP_TEST_KAFKA"
_HOST = "127.0.0.1"
_CLUSTER_ID = "CAE7FJJtQ_qbrVZtEEm3sw"
_LOGGING = """\
rootLogger.level=INFO
rootLogger.appenderRef.c.ref=C
appender.c.type=Console
appender.c.name=C
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=[%d] %p %m (%c)%n
"""
_SMALL = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_START_S = 180.0

_SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAIN",
    "listener.security.protocol.map": "PLAIN:PLAINTEXT,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.num.partitions": "4",
    # ESSP makes its topics itself; that the broker would do so, too, is no help that it may need.
    "auto.create.topics.enable": "false",
    # Three seconds for each test that joins a group, for nothing: nobody else comes.
    "group.initial.rebalance.delay.ms": "0",
    # A test that kills a member waits for the end of its session.
    "group.min.session.timeout.ms": "500",
    # Deleted records and segments go in the time that a test has.
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "500",
}
SECURED = {
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "listener.name.login.scram-sha-512.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Settings of brokers that let nobody in at their listener LOGIN without a password, nor do anything without a right.
Whoever comes by the other listener is a superuser."""


@dataclass(frozen=True)
class _Prepared:
    """What brokers of this machine start from."""

    home: Path
    folder: Path

    @property
    def formatted(self) -> Path:
        return self.folder / "formatted"

    @property
    def archive(self) -> Path:
        return self.folder / "classes.jsa"

    def java(self, *words: str) -> list[str]:
        """A command of Kafka's."""
        java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if "JAVA_HOME" in os.environ else "java"
        jars = ":".join(sorted(str(jar) for jar in (self.home / "libs").glob("*.jar")))
        return [java, *_SMALL, f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}", "-cp", jars, *words]

    def broker(self, properties: Path) -> list[str]:
        """The command of a broker."""
        java, *rest = self.java("kafka.Kafka", str(properties))
        return [java, f"-XX:SharedArchiveFile={self.archive}", "-Xshare:auto", *rest]


def prepared() -> _Prepared:
    """Prepare what ESSP_TEST_KAFKA names, unless that was done before. Other test processes wait meanwhile."""
    home = Path(os.environ[VARIABLE]).resolve()
    jars = sorted((home / "libs").glob("*.jar"))
    if not jars:
        raise FileNotFoundError(f"{VARIABLE}: {home}/libs has no jars; unpack a release of Apache Kafka")
    facts = [f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars]
    facts.append(shutil.which("java") or "")
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
    found = _Prepared(home, cached(f"kafka-{digest}"))
    found.folder.mkdir(parents=True, exist_ok=True)
    with (found.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.archive.exists():
            _prepare(found)
    return found


def _prepare(found: _Prepared) -> None:
    """Format a folder, and let a broker that starts and stops write the archive of its classes."""
    (found.folder / "log4j2.properties").write_text(_LOGGING)
    shutil.rmtree(found.formatted, ignore_errors=True)
    ports = [free_port(), free_port()]
    with tempfile.TemporaryDirectory(dir=found.folder) as name, Path(name, "log").open("w+") as log:
        folder = Path(name)
        properties = _write_properties(folder, 1, ports[0], {1: ports[1]}, folder / "data", {})
        format_it = found.java("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties))
        if subprocess.run(format_it, stdout=log, stderr=log).returncode:
            raise RuntimeError(f"{VARIABLE}: Kafka cannot format a folder: {_end_of(log)}")
        shutil.copytree(folder / "data", folder / "formatted")
        java, *rest = found.java("kafka.Kafka", str(properties))
        written = folder / "classes.jsa"
        broker = subprocess.Popen([java, f"-XX:ArchiveClassesAtExit={written}", *rest], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + _START_S
            while "Kafka Server started" not in _end_of(log):
                if broker.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{VARIABLE}: Kafka does not start: {_end_of(log)}")
                time.sleep(0.1)
        finally:
            broker.terminate()
            broker.wait()
        (folder / "formatted").rename(found.formatted)
        written.rename(found.archive)


def _end_of(log: TextIO) -> str:
    return Path(log.name).read_text(encoding="utf-8")[-20_000:]


def _write_properties(
    folder: Path, node: int, port: int, controllers: Mapping[int, int], data: Path, more: Mapping[str, str],
    advertised_port: int | None = None, login: tuple[str, int] | None = None,
) -> Path:  # fmt: skip
    copies = str(len(controllers))
    in_sync = str(len(controllers) // 2 + 1)
    listeners = {"PLAIN": (_HOST, port)} | ({"LOGIN": login} if login else {})
    settings = _SETTINGS | {
        "node.id": str(node),
        "controller.quorum.voters": ",".join(f"{n}@{_HOST}:{p}" for n, p in controllers.items()),
        "listeners": _list(listeners | {"CONTROLLER": (_HOST, controllers[node])}),
        "advertised.listeners": _list(listeners | {"PLAIN": (_HOST, advertised_port or port)}),
        "log.dirs": str(data),
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
    }  # fmt: skip
    path = folder / f"kafka-{node}-{port}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in (settings | dict(more)).items()))
    return path


def _list(listeners: Mapping[str, tuple[str, int]]) -> str:
    return ",".join(f"{name}://{host}:{port}" for name, (host, port) in listeners.items())


class ApacheKafka(KafkaServer):
    """One broker of Apache Kafka, which is its own controller."""

    def __init__(
        self,
        directory: Path | str,
        port: int | None = None,
        *,
        session_timeout_ms: int = 4000,
        advertised_port: int | None = None,
        settings: Mapping[str, str] | None = None,
        keeps_log: bool = False,
        login_host: str = _HOST,
    ) -> None:
        """`settings`: more of the broker's; with those of `SECURED`, it listens for logins at `login`, too, on
        `login_host`. `keeps_log`: what it holds outlives a restart; otherwise it is lost, as that of the broker of
        `essp servers`."""
        super().__init__(directory, port, session_timeout_ms=session_timeout_ms, advertised_port=advertised_port)
        self._settings = dict(settings or {})
        self._keeps_log = keeps_log
        self.login = (login_host, free_port()) if "sasl.enabled.mechanisms" in self._settings else None
        self._node = 1
        self._controllers: dict[int, int] = {}

    def end(self) -> None:
        """Have it leave in order, as a rolling restart does: it hands its partitions over first."""
        if self._process is not None:
            self._process.terminate()  # the guard passes it on, and waits for as long as it takes
            self._process.wait()
        self.stop()

    def kill(self) -> None:
        """SIGKILL. The guard ends after the broker, whose port is then free."""
        if self._process is not None and self.alive():
            (broker,) = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            os.kill(int(broker), signal.SIGKILL)
        self.stop()

    def _command(self) -> list[str]:
        found = prepared()
        data = self.directory / f"kafka-data-{self._node}-{self.port}"
        if not self._keeps_log:
            shutil.rmtree(data, ignore_errors=True)
        if not data.exists():
            shutil.copytree(found.formatted, data)
            directory_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            facts = {"version": "1", "cluster.id": _CLUSTER_ID, "node.id": self._node, "directory.id": directory_id}
            (data / "meta.properties").write_text("".join(f"{name}={value}\n" for name, value in facts.items()))
        controllers = self._controllers or {1: free_port()}
        properties = _write_properties(
            self.directory, self._node, self.port, controllers, data, self._settings, self._advertised_port,
            self.login,
        )  # fmt: skip
        return found.broker(properties)


class ApacheCluster:
    """Several brokers with a copy of everything on each: three outlive the loss of one."""

    def __init__(
        self, directory: Path, count: int = 3, settings: Mapping[str, str] | None = None, login_host: str = _HOST
    ) -> None:
        """`login_host`: an address of this machine at which clients elsewhere reach the listeners for logins."""
        controllers = {number: free_port() for number in range(1, count + 1)}
        self.brokers = []
        for number in controllers:
            broker = ApacheKafka(
                directory / str(number), free_port(), settings=settings, keeps_log=True, login_host=login_host
            )
            broker._node, broker._controllers = number, controllers
            self.brokers.append(broker)

    @property
    def url(self) -> str:
        """`kafka://...` of all brokers."""
        return f"kafka://{','.join(f'{_HOST}:{broker._wanted_port}' for broker in self.brokers)}"

    @property
    def logins(self) -> list[str]:
        """`host:port` of their listeners that want a password."""
        return [f"{host}:{port}" for host, port in (broker.login for broker in self.brokers if broker.login)]

    @property
    def login_url(self) -> str:
        """`kafka://...` of these."""
        return f"kafka://{','.join(self.logins)}?sasl=SCRAM-SHA-512"

    def start(self, brokers: Sequence[ApacheKafka] | None = None) -> None:
        """Start these brokers, all by default, and wait until each has its copies again."""
        starting = brokers or self.brokers
        with ThreadPoolExecutor(len(starting)) as threads:  # none answers before most are there
            list(threads.map(lambda broker: broker.start(_START_S), starting))
        until(self.whole, "not every broker has a copy of all partitions")

    def whole(self) -> bool:
        """Whether all brokers are there, and have in sync all that they are to have."""
        with admin_of(self.url) as admin:
            if len(admin.describe_cluster()["brokers"]) < len(self.brokers):
                return False
            return all(
                len(partition["isr_nodes"]) == len(partition["replica_nodes"]) and partition["leader_id"] >= 0
                for topic in admin.describe_topics()
                for partition in topic["partitions"]
            )

    def leader(self, topic: str, partition: int = 0) -> ApacheKafka:
        """The broker that leads a partition."""
        with admin_of(self.url) as admin:
            (found,) = admin.describe_topics([topic])
            leaders: dict[int, int] = {slot["partition_index"]: slot["leader_id"] for slot in found["partitions"]}
        return self.brokers[leaders[partition] - 1]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers:
            broker.stop()


@contextmanager
def admin_of(url: str) -> Iterator[KafkaAdminClient]:
    """A client for what administrators do."""
    admin = connected(KafkaAdminClient, **KafkaOptions.from_url(url).client())
    try:
        yield admin
    finally:
        admin.close()
