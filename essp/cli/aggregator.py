"""`essp aggregator`: list and describe the aggregation strategies, and run the worker that fuses streams."""

from __future__ import annotations

import inspect
import json
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from essp.cli import completions
from essp.cli.console import open_console
from essp_aggregator.main import main as run_worker
from essp_common.errors import ConfigError
from essp_engine.aggregation import registry

app = typer.Typer(add_completion=False, help="Fuse the streams of finished training jobs; list and describe how.")

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback(invoke_without_command=True)
def run(context: typer.Context) -> None:
    """Fuse the streams of finished trainers. Settings come from the environment (ESSP_BUS, ESSP_STORES, ...)."""
    if context.invoked_subcommand is None:
        run_worker()


@app.command("ls")
def list_strategies(as_json: JsonFlag = False) -> None:
    """List every installed strategy. One that does not load is listed with the reason."""
    rows = [_row(name) for name in registry.names()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("strategy", "what it is", "parameters", box=None, header_style="bold")
    for row in rows:
        what = row.get("summary") or Text.assemble(("not usable:", "red"), f" {row['error']}")
        table.add_row(row["name"], what, row.get("params", ""))
    open_console().print(table)


@app.command("describe")
def describe_strategy(
    name: Annotated[
        str, typer.Argument(help="The strategy (`essp aggregator ls`).", autocompletion=completions.strategies)
    ],
    as_json: JsonFlag = False,
) -> None:
    """Say when to use a strategy, what it needs, and its parameters with their defaults."""
    kind = registry.aggregator_class(name)
    params = {key: None if f.is_required() else f.default for key, f in kind.Params.model_fields.items()}
    declared: dict[str, Any] = {"summary": kind.summary, "needs": kind.needs, "io": kind.io, "params": params}
    if as_json:
        typer.echo(json.dumps({"name": name, **declared}, indent=2))
        return
    typer.echo(f"{name}: {kind.summary}\n")
    typer.echo(f"{inspect.getdoc(kind) or ''}\n")
    order = "their order in time counts" if kind.io == "sequential" else "their order makes no difference"
    typer.echo(f"Needs {kind.needs} of clips; {order}.\n")
    typer.echo("Parameters; a job may list several values to try:\n" if params else "No parameters.")
    for key, field in kind.Params.model_fields.items():
        typer.echo(f"  {key}: {params[key]}")
        typer.echo(f"      {' '.join((field.description or '').split())}")


def _row(name: str) -> dict[str, str]:
    try:
        kind = registry.aggregator_class(name)
    except ConfigError as error:
        return {"name": name, "error": str(error)}
    return {"name": name, "summary": kind.summary, "params": ", ".join(kind.Params.model_fields)}
