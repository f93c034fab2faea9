"""`essp servers up`: Redis, a Kafka-protocol broker and S3 on this machine, without Docker or root."""

from __future__ import annotations

import json
import secrets
import shlex
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from essp.folders import folder_for
from essp.servers.servers import KafkaServer, RedisServer, S3Server, Server
from essp_common.errors import ConfigError, Unavailable
from essp_common.quantities import parse_bytes
from essp_common.runtime.process import drained_by_signals
from essp_common.runtime.temporary import TemporaryFolder

BUCKET = "essp"
_CHECK_S = 1.0
_STOP_S = 30.0

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


class LocalServers:
    """The three servers as one service: `run` starts them and prints their settings, `drain` stops them."""

    name = "servers"

    def __init__(self, directory: Path, redis_memory_bytes: int, as_json: bool) -> None:
        self._directory = directory
        self._redis_memory_bytes = redis_memory_bytes
        self._as_json = as_json
        self._stopping = threading.Event()

    def run(self) -> None:
        """Serve until drained. Raises `Unavailable` if a server exits unexpectedly."""
        with ExitStack() as running:
            redis = running.enter_context(RedisServer(self._directory, maxmemory_bytes=self._redis_memory_bytes))
            kafka = running.enter_context(KafkaServer(self._directory))
            s3 = running.enter_context(S3Server(self._directory))
            s3.create_bucket(BUCKET)
            self._announce(_environment(redis, kafka, s3))
            while not self._stopping.wait(_CHECK_S):
                _check((redis, kafka, s3))

    def drain(self) -> None:
        """Stop the servers."""
        self._stopping.set()

    def _announce(self, environment: dict[str, str]) -> None:
        if self._as_json:
            typer.echo(json.dumps(environment))
        else:
            typer.echo("\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items()))
        typer.echo(f"Logs are in {self._directory}. Ctrl-C stops the servers and discards their data.", err=True)


@app.callback()
def _group() -> None:
    """Redis, a Kafka-protocol broker and S3 on this machine."""


@app.command()
def up(
    redis_memory: Annotated[str, typer.Option(help="Memory limit of Redis.")] = "1GiB",
    directory: Annotated[Path | None, typer.Option("--dir", help="Folder for logs (default: a temporary one).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the settings as one JSON object.")] = False,
) -> None:
    """Start the three servers, print the settings that point ESSP at them, and stop them at Ctrl-C."""
    try:
        memory = parse_bytes(redis_memory)
    except ValueError as error:
        raise ConfigError(
            f"{redis_memory!r} is not a size; write for example 1GiB", field="--redis-memory", code="type"
        ) from error
    with ExitStack() as cleanup:
        if directory is None:
            folder = Path(cleanup.enter_context(TemporaryFolder("servers")))
        else:
            folder = folder_for("--dir", directory)
        servers = LocalServers(folder.resolve(), int(str(memory)), as_json)
        with drained_by_signals([servers], _STOP_S):
            servers.run()


def _environment(redis: RedisServer, kafka: KafkaServer, s3: S3Server) -> dict[str, str]:
    return {
        "ESSP_BUS": kafka.url,
        "ESSP_CACHE": redis.url,
        "ESSP_STORES": json.dumps([s3.store(BUCKET), "file:///"]),
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
            raise Unavailable(f"{server.name} has ended; see {server.log_path}")
