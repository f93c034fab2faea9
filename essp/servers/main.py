"""`essp servers up`: Redis, a Kafka-protocol broker and S3 on this machine, without Docker or root.

The chart runs the same command in a pod (`servers.bundled`), with an address that other pods reach, logins, and a
folder for the objects.
"""

from __future__ import annotations

import json
import secrets
import shlex
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from essp.folders import folder_for
from essp.servers.servers import Address, KafkaServer, RedisServer, S3Server, Server
from essp_common.errors import ConfigError, Unavailable
from essp_common.quantities import parse_bytes, size
from essp_common.runtime.config import Settings
from essp_common.runtime.login import password_in
from essp_common.runtime.metrics import MetricsServer
from essp_common.runtime.process import drained_by_signals
from essp_common.runtime.temporary import TemporaryFolder

BUCKET = "essp"
_HERE = "127.0.0.1"
_LOOPBACK = (_HERE, "localhost", "::1")
_LEAST_MEMORY_BYTES = 4 * 2**20
"""Redis itself takes about one of them."""
_CHECK_S = 1.0
_STOP_S = 30.0

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start, and where."""

    directory: Path
    """For logs."""
    redis_memory_bytes: int
    address: Address
    ports: tuple[int | None, int | None, int | None]
    """Of Redis, broker and S3; None takes a free one."""
    objects: Path
    """The folder for the objects of S3."""
    keep: bool
    """Whether the objects stay."""
    login: Path | None
    """The folder with the files `password` and `credentials`; None requires no login."""


class LocalServers:
    """The three servers as one service: `run` starts them and prints their settings, `drain` stops them."""

    name = "servers"

    def __init__(self, plan: Plan, as_json: bool) -> None:
        self._plan = plan
        self._as_json = as_json
        self._stopping = threading.Event()
        self._up = threading.Event()

    def ready(self) -> bool:
        """Whether all three answer."""
        return self._up.is_set() and not self._stopping.is_set()

    def run(self) -> None:
        """Serve until drained. Raises `Unavailable` if a server exits unexpectedly."""
        with ExitStack() as running:
            redis, kafka, s3 = self._servers()
            for server in (redis, kafka, s3):
                running.enter_context(server)
            s3.create_bucket(BUCKET)
            self._announce(_environment(redis, kafka, s3, self._plan.login is None))
            self._up.set()
            while not self._stopping.wait(_CHECK_S):
                _check((redis, kafka, s3))

    def drain(self) -> None:
        """Stop the servers."""
        self._stopping.set()

    def _servers(self) -> tuple[RedisServer, KafkaServer, S3Server]:
        plan = self._plan
        where, address = plan.directory, plan.address
        redis_port, kafka_port, s3_port = plan.ports
        password = "" if plan.login is None else password_in(str(plan.login / "password"))
        redis = RedisServer(
            where, redis_port, maxmemory_bytes=plan.redis_memory_bytes, address=address, password=password
        )
        kafka = KafkaServer(where, kafka_port, address=address)
        keys = None if plan.login is None else plan.login / "credentials"
        return redis, kafka, S3Server(where, s3_port, folder=plan.objects, credentials=keys, address=address)

    def _announce(self, environment: dict[str, str]) -> None:
        if self._as_json:
            typer.echo(json.dumps(environment))
        else:
            typer.echo("\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items()))
        kept = f"everything but {self._plan.objects}" if self._plan.keep else "their data"
        typer.echo(f"Logs are in {self._plan.directory}. Ctrl-C stops the servers and discards {kept}.", err=True)


@app.callback()
def _group() -> None:
    """Redis, a Kafka-protocol broker and S3 on this machine."""


@app.command()
def up(
    redis_memory: Annotated[str, typer.Option(help="Memory limit of Redis, 4MiB or more.")] = "1GiB",
    directory: Annotated[Path | None, typer.Option("--dir", help="Folder for logs (default: a temporary one).")] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Folder of the objects of S3 (default: a temporary one, which is removed at the end)."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; `::` is every address, and needs --login.")] = _HERE,
    name: Annotated[str, typer.Option(help="Name under which clients reach the servers.")] = _HERE,
    redis_port: Annotated[int | None, typer.Option(help="Port of Redis (default: a free one).", min=1)] = None,
    kafka_port: Annotated[int | None, typer.Option(help="Port of the broker (default: a free one).", min=1)] = None,
    s3_port: Annotated[int | None, typer.Option(help="Port of S3 (default: a free one).", min=1)] = None,
    login: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the files `password`, of Redis, and `credentials`, an AWS credentials file with the keys "
            "of S3. The broker has no login."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the settings as one JSON object.")] = False,
) -> None:
    """Start the three servers, print the settings that point ESSP at them, and stop them at Ctrl-C."""
    try:
        memory = parse_bytes(redis_memory)
    except ValueError as error:
        raise ConfigError(
            f"{redis_memory!r} is not a size; write for example 1GiB", field="--redis-memory", code="type"
        ) from error
    if not isinstance(memory, int) or memory < _LEAST_MEMORY_BYTES:  # 0 would mean that Redis has no limit
        raise ConfigError(
            f"must be {size(_LEAST_MEMORY_BYTES)} or more, got {redis_memory}", field="--redis-memory", code="range"
        )
    if host not in _LOOPBACK and login is None:
        raise ConfigError(
            "others in the network could read and change everything; add --login", field="--host", code="conflict"
        )
    metrics_port = Settings().metrics_port
    with ExitStack() as cleanup:
        if directory is None:
            folder = Path(cleanup.enter_context(TemporaryFolder("servers")))
        else:
            folder = folder_for("--dir", directory)
        objects = cleanup.enter_context(TemporaryFolder("objects")) if keep is None else folder_for("--keep", keep)
        ports = redis_port, kafka_port, s3_port
        where = folder.resolve(), memory, Address(host, name), ports
        plan = Plan(*where, Path(objects).resolve(), keep is not None, login)
        servers = LocalServers(plan, as_json)
        if metrics_port:
            cleanup.callback(MetricsServer(metrics_port, servers.ready).close)
        with drained_by_signals([servers], _STOP_S):
            servers.run()


def _environment(redis: RedisServer, kafka: KafkaServer, s3: S3Server, open_to_all: bool) -> dict[str, str]:
    addresses = {
        "ESSP_BUS": kafka.url,
        "ESSP_CACHE": redis.url,
        "ESSP_STORES": json.dumps([s3.store(BUCKET), "file:///"]),
    }
    if not open_to_all:  # users of a login know it
        return addresses
    return addresses | {
        # The server accepts any credentials, but clients require some.
        "AWS_ACCESS_KEY_ID": "essp",
        "AWS_SECRET_ACCESS_KEY": "essp",
        "AWS_DEFAULT_REGION": "us-east-1",
        # For `essp master` and its clients: the API requires a token, because other users may share this machine.
        "ESSP_API_TOKEN": secrets.token_hex(16),
    }


def _check(servers: tuple[Server, ...]) -> None:
    for server in servers:
        if not server.alive():
            raise Unavailable(f"{server.name} has ended: {server.log_end()}")
