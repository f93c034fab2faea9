"""`essp pool`: how large the pools of a running master are, why, and their bounds."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from essp.cli import completions
from essp.cli.console import open_console
from essp.cli.rest import SERVER, AsJson, Server, Token, ask, connect, path_of
from essp_common.quantities import percent

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Show the pools of a running master, and set their sizes."
)

Pool = Annotated[str, typer.Argument(help="The pool, as `essp pool ls` names it.", autocompletion=completions.pools)]


@app.command("ls")
def list_pools(server: Server = SERVER, token: Token = "", as_json: AsJson = False) -> None:
    """List pools: sizes, the autoscaler's targets, and their reasons."""
    with connect(server, token) as client:
        pools = ask(client, "GET", "/v1/pools")
    if as_json:
        typer.echo(json.dumps(pools))
        return
    if not pools:
        typer.echo("no pools: no worker has reported yet, and the master sizes no pool", err=True)
        return
    table = Table(box=None)
    for column in ("POOL", "WANTED", "UP", "BUSY", "KEPT", "BECAUSE"):
        table.add_column(column)
    for pool in pools:
        kept = _kept(pool["rule"])
        because = f"{pool['reason']}; not up: {pool['held_up']}" if pool["held_up"] else pool["reason"]
        table.add_row(pool["name"], str(pool["replicas"]), str(pool["ready"]), percent(pool["busy"], 0), kept, because)
    open_console().print(table)


@app.command("set")
def set_pool(
    name: Pool,
    min_workers: Annotated[int, typer.Option("--min", help="Minimum number of workers.", min=0)] = 1,
    max_workers: Annotated[int, typer.Option("--max", help="Maximum number of workers.", min=0)] = 64,
    replicas: Annotated[
        int | None, typer.Option(help="A fixed number of workers, instead of the autoscaler's.", min=0)
    ] = None,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Keep a pool between bounds, or at a fixed size."""
    rule = {"min": min_workers, "max": max_workers, "replicas": replicas}
    with connect(server, token) as client:
        answer = ask(client, "PUT", path_of("pools", name), json=rule)
    if as_json:
        typer.echo(json.dumps(answer))
    typer.echo(f"{name}: {_kept(answer)}", err=True)


@app.command("reset")
def reset_pool(
    name: Pool,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Undo `essp pool set`: the pool gets its original bounds back."""
    with connect(server, token) as client:
        answer = ask(client, "DELETE", path_of("pools", name))
    if as_json:
        typer.echo(json.dumps(answer))
    typer.echo(f"{name}: the bounds that it was made with", err=True)


@app.command()
def pause(
    name: Pool,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Let the workers of a pool finish what they have, and take nothing new. They stay."""
    _act("pause", name, server, token, as_json)


@app.command()
def resume(
    name: Pool,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Let the workers of a paused pool work again."""
    _act("resume", name, server, token, as_json)


def _act(action: str, name: str, server: str, token: str, as_json: bool) -> None:
    with connect(server, token) as client:
        answer = ask(client, "POST", f"{path_of('pools', name)}:{action}")
    if as_json:
        typer.echo(json.dumps(answer))
    typer.echo(f"{name}: {_kept(answer)}", err=True)


@app.command()
def events(server: Server = SERVER, token: Token = "", as_json: AsJson = False) -> None:
    """Show what was done to pools and why, oldest first."""
    with connect(server, token) as client:
        for event in ask(client, "GET", "/v1/pools/events"):
            typer.echo(
                json.dumps(event) if as_json else f"{event['time'][:19]}  {event['pool']:<16} {event['message']}"
            )


def _kept(rule: dict[str, Any]) -> str:
    size = f"{rule['min']} to {rule['max']}" if rule["replicas"] is None else f"at {rule['replicas']}"
    return f"{size}, paused" if rule.get("paused") else size
