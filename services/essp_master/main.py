"""`essp master`: run jobs, and serve the REST API."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated

import typer

from essp_common.errors import ConfigError
from essp_common.runtime import ids
from essp_common.runtime.garbage import collect_rarely
from essp_common.runtime.process import serve, worker_name
from essp_common.wiring import Adapters
from essp_engine.worker.log_shipping import LogShipper
from essp_master.assembly import MasterProcess
from essp_master.config import MasterSettings

GARBAGE = (50_000, 20, 100)
"""Thresholds of the garbage collector. A master keeps many long-lived objects (a catalog, outstanding clips) and
creates many short-lived ones, with hardly any cycles among them: full collections took a third of its time."""


def own_command() -> tuple[str, ...]:
    """Return the command that started this process, without its arguments; the same command starts workers."""
    arguments = len(sys.argv) - 1
    return (sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - arguments])


def main(
    host: Annotated[str, typer.Option(help="Address to listen on; `::`: all, including IPv4.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the REST API.", min=0, max=65535)] = 8080,
) -> None:
    """Issue seeds, account for them, serve the REST API. Settings come from the environment (ESSP_BUS, ...)."""
    settings = MasterSettings()
    if not settings.tokens() and not settings.api_open:
        raise ConfigError(
            "the API needs a token: set ESSP_API_TOKEN to a secret that callers show (`essp token` makes one), "
            "ESSP_API_TOKEN_FILE to a file with one, or ESSP_API_OPEN=true where only trusted people reach it",
            code="missing",
        )
    collect_rarely(GARBAGE)
    worker = worker_name(settings)
    with closing(Adapters.from_settings(settings)) as adapters, LogShipper(adapters.bus, worker, ids.MASTER):
        serve(MasterProcess(adapters, settings, worker, host, port, own_command()), settings, adapters.troubles)
