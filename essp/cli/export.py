"""`essp export`: what a job has measured, for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from essp.comparison.curves import as_csv, rows_of
from essp.comparison.runs import job_of, read_histories
from essp.folders import written
from essp.uris import as_uri, shown
from essp_common.errors import NotFound
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Write what jobs have measured as CSV or JSON.")


@app.callback()
def _group() -> None:
    """Keep `curves` a sub-command, although it is the only one."""


@app.command()
def curves(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Outputs of training jobs: paths or URIs.")],
    out: Annotated[Path | None, typer.Option(help="Where to write them (default: print them).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of CSV.")] = False,
) -> None:
    """Write the curves of training jobs: a row for each epoch and phase of each trainer, with all metrics."""
    stores = Stores(Settings().stores)
    found = {}
    for run in runs:
        uri = as_uri(run).rstrip("/")
        output = stores.under(uri)
        spec = job_of(output, uri)
        histories = read_histories(output, spec)
        if not histories:
            raise NotFound(f"{shown(uri)}: no trainer of job {spec.name} has completed an epoch yet")
        found[shown(uri) if spec.name in found else spec.name] = histories
    rows = rows_of(found)
    text = json.dumps(rows, indent=2) + "\n" if as_json else as_csv(rows)
    if out is None:
        typer.echo(text, nl=False)
        return
    with written(out):
        out.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {out}: {len(rows):,} rows", err=True)
