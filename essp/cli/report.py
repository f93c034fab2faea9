"""`essp report`: make the report of a finished training job, wherever it ran."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from essp.uris import as_uri
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores


def main(
    output: Annotated[str, typer.Argument(help="The job's output: path or URI.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write curves, a confusion matrix, samples and report.html into the job's output, and print the path."""
    # Imported here: plotting needs matplotlib, which the other commands do not.
    from essp.report.folder import write_report

    stores = Stores(Settings().stores)
    page = write_report(stores.under(as_uri(output)), stores).page
    typer.echo(json.dumps({"report": page}) if as_json else page)
