"""`essp logs`: what the workers and the master of an installation have logged recently, over REST."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import httpx
import typer

from essp.cli import completions
from essp.cli.rest import SERVER, AsJson, Server, Token, ask, connect
from essp_common.errors import Unavailable

_LOOK_S = 1.0
_MOST = 10_000
Level = Literal["info", "warning", "error"]


def main(
    job: Annotated[str, typer.Option(help="Only lines about this job.", autocompletion=completions.jobs)] = "",
    pool: Annotated[
        str,
        typer.Option(
            help="Only lines of this pool; `trainer` stands for all trainers.", autocompletion=completions.pools
        ),
    ] = "",
    worker: Annotated[str, typer.Option(help="Only lines of this worker.")] = "",
    level: Annotated[Level, typer.Option(help="Only lines of this level or a more severe one.")] = "info",
    lines: Annotated[
        int, typer.Option("--lines", "-n", help="Number of lines to show, the newest ones.", min=1, max=_MOST)
    ] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new lines, until Ctrl-C.")] = False,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show the logs of the workers of all pools: the newest lines since the master started."""
    only = {"job": job, "pool": pool, "worker": worker, "level": level.upper()}
    with connect(server, token) as client:
        found = ask(client, "GET", "/v1/logs", params={**only, "most": lines})
        if not found and not follow:
            typer.echo("no messages: nothing of this kind was logged since the master started", err=True)
        for line in found:
            _print(line, as_json)
        if follow:
            for line in _followed(client, only, found[-1]["id"] if found else 0):
                _print(line, as_json)


def _followed(client: httpx.Client, only: dict[str, str], last: int) -> Iterator[dict[str, Any]]:
    """New lines as they come. A master that does not answer is asked again until it does."""
    while True:
        time.sleep(_LOOK_S)
        try:
            found = ask(client, "GET", "/v1/logs", params={**only, "after": last, "most": _MOST})
        except Unavailable:
            continue
        yield from found
        last = found[-1]["id"] if found else last


def _print(line: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(line))
        return
    about = f" ({line['job']})" if line["job"] else ""
    typer.echo(f"{line['time'][:19]}  {line['level']:<7}  {line['worker']}, {line['pool']}: {line['event']}{about}")
    if line["error"]:
        typer.echo("\n".join(f"    {part}" for part in line["error"].rstrip().splitlines()))
