"""`essp audit`: whether a job, finished or running, kept ESSP's promises, judged by its history alone.

Exit codes are the same as for `essp`; 1 also means that an invariant was violated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from essp.account import Account, account_of
from essp.audit.invariants import Finding, check
from essp.audit.plan import Planned, planned
from essp.cli import completions, rest
from essp.cli.console import open_console, say
from essp.cli.job_output import no_history, status_of
from essp.uris import as_uri
from essp_common.artifacts.history import History
from essp_common.errors import EsspError
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores

_MARKS = {True: Text("holds", "green"), False: Text("broken", "red"), None: Text("not checked", "yellow")}


def main(
    job: Annotated[
        str,
        typer.Argument(
            help="A job of the master, or the output of one: folder or URI.", autocompletion=completions.jobs
        ),
    ],
    server: rest.Server = rest.SERVER,
    token: rest.Token = "",
    as_json: rest.AsJson = False,
) -> None:
    """Check what happened to a job's clips against what ESSP promises."""
    stores = Stores(Settings().stores)
    status = status_of(job, server, token)
    output = as_uri(job) if status is None else status.output
    account = account_of(History(stores.under(output)).read())
    if not account.runs:
        raise no_history(output)
    if status is not None:  # Read the status again: the first one may be older than the history.
        status = status_of(job, server, token)
    findings = check(account, _plan(account, stores), status, round(time.time() * 1000))
    if as_json:
        typer.echo(json.dumps({"output": output, "findings": [finding.model_dump() for finding in findings]}))
    else:
        _print(output, findings)
    if any(finding.holds is False for finding in findings):
        raise typer.Exit(1)


def _plan(account: Account, stores: Stores) -> Planned | None:
    try:
        return planned(account.runs[-1].spec, stores)
    except EsspError as error:
        say(f"essp: {error}")
        return None


def _print(output: str, findings: Sequence[Finding]) -> None:
    table = Table(box=None)
    for column in ("INVARIANT", "", "CHECKED"):
        table.add_column(column)
    for finding in findings:
        table.add_row(finding.invariant, _MARKS[finding.holds], finding.checked)
        for violation in finding.violations:
            table.add_row("", "", Text(violation, "red"))
    console = open_console()
    console.print(f"audit of {output}", style="bold", highlight=False)
    console.print(table)
