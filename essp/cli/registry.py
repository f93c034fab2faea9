"""`essp registry`: registers extractors and trainers from other images with a running master.

A row is a YAML or JSON file; `essp registry put --help` shows one. Exit code 4: another client changed the row.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.table import Table

from essp.cli.confirmation import Yes, confirm
from essp.cli.console import open_console
from essp.cli.rest import SERVER, AsJson, Server, Token, answer_of, ask, connect, path_of
from essp_common.errors import ConfigError, NotFound
from essp_common.job.documents import read_yaml, text_of

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Register extractors and trainers with a running master."
)


class Kind(StrEnum):
    """The tables of registrations."""

    EXTRACTORS = "extractors"
    TRAINERS = "trainers"


Which = Annotated[Kind, typer.Argument(help="The table: extractors or trainers.")]
Name = Annotated[str, typer.Argument(help="The row, as `ls` names it.")]


@app.command("ls")
def list_rows(
    kind: Annotated[Kind, typer.Option(help="The table: extractors or trainers.")] = Kind.EXTRACTORS,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """List the registered rows."""
    with connect(server, token) as client:
        rows = ask(client, "GET", f"/v1/{kind}")
    if as_json:
        typer.echo(json.dumps(rows))
        return
    if not rows:
        typer.echo("nothing is registered; use `essp registry put`", err=True)
        return
    table = Table(box=None)
    for column in ("NAME", "IMAGE", "RESOURCES"):
        table.add_column(column, overflow="fold")
    for row in rows:
        needs = row["resources"]
        table.add_row(row["name"], row["image"], f"{needs['cpu']} CPU, {needs['memory']}, {needs['gpus']} GPU")
    open_console().print(table)


@app.command()
def get(kind: Which, name: Name, server: Server = SERVER, token: Token = "", as_json: AsJson = False) -> None:
    """Print one row as JSON, as `put` takes it. --json: in one line."""
    with connect(server, token) as client:
        typer.echo(json.dumps(ask(client, "GET", path_of(kind, name)), indent=None if as_json else 2))


@app.command()
def put(
    kind: Which,
    file: Annotated[Path, typer.Argument(help="File with the row (YAML or JSON).", exists=True, dir_okay=False)],
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Register a row, or change the row with its name.

    \b
    name: depth
    image: registry.example/depth@sha256:9f86d08...
    output: {shape: [1, H, W, T], dtype: float32}
    resources: {cpu: "2", memory: 2Gi}
    """
    row = _row(file)
    name = str(row["name"])
    with connect(server, token) as client:
        seen = _seen(client, kind, name)
        headers = {"If-Match": seen} if seen else {"If-None-Match": "*"}
        answer = ask(client, "PUT", path_of(kind, name), json=row, headers=headers)
    typer.echo(json.dumps(answer) if as_json else f"{kind}/{answer['name']} {'changed' if seen else 'registered'}")


@app.command()
def rm(
    kind: Which,
    name: Name,
    yes: Yes = False,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Remove a row; its workers finish their current work and exit."""
    if not yes:
        confirm(f"Remove {kind}/{name}?")
    with connect(server, token) as client:
        _, seen = answer_of(client, "GET", path_of(kind, name))
        ask(client, "DELETE", path_of(kind, name), headers={"If-Match": seen})
    if as_json:
        typer.echo(json.dumps({"kind": kind.value, "name": name, "removed": True}))


@app.command()
def log(server: Server = SERVER, token: Token = "", as_json: AsJson = False) -> None:
    """List who registered what, and when."""
    with connect(server, token) as client:
        changes = ask(client, "GET", "/v1/registrations/changes")
    for change in changes:
        line = f"{change['time'][:19]}  {change['by']:<16} {change['action']:<7} {change['kind']}/{change['name']}"
        typer.echo(json.dumps(change) if as_json else line)


def _row(file: Path) -> dict[str, Any]:
    try:
        row = read_yaml(text_of(file), str(file))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not text: {error}", code="unreadable") from error
    if not isinstance(row, dict) or row.get("name") is None:
        raise ConfigError(f"{file} is not a row: write name, image, output, ... as keys", code="type")
    return row


def _seen(client: httpx.Client, kind: Kind, name: str) -> str:
    """The ETag of a row; empty if there is no such row."""
    try:
        return answer_of(client, "GET", path_of(kind, name))[1]
    except NotFound:
        return ""
