"""`--splits` and `--folds` of `essp run` and `essp validate`: a job for each division of its data set."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from essp.cli.console import open_console
from essp.cli.fresh import preflight_asking
from essp.divisions.figures import Outcomes, has_ended, outcomes
from essp.divisions.jobs import Division, of_folds, of_splits
from essp.divisions.page import write_page
from essp_common.artifacts.figures import NAMES
from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, JobStatus
from essp_common.quantities import percent
from essp_common.runtime.process import EXIT_INTERRUPTED
from essp_common.wiring import Stores
from essp_engine.preflight.preflight import Preflight
from essp_engine.registrations import Declared

Splits = Annotated[
    str | None,
    typer.Option(
        help="One training for each of these divisions, as in 1,2,3: columns `split_1`, ... of the catalog, such as "
        "those of UCF-101 and HMDB51."
    ),
]
Folds = Annotated[
    str | None,
    typer.Option(help="One training for each value of this column, tested on its videos, as in `group`."),
]


def divisions_of(spec: JobSpec, splits: str | None, folds: str | None, stores: Stores) -> tuple[Division, ...]:
    """The jobs that the options ask for; empty if neither is given. Raises `ConfigError`."""
    if splits is not None and folds is not None:
        raise ConfigError("give one of --splits and --folds, not both", code="conflict")
    if splits is not None:
        return of_splits(spec, splits, stores)
    return () if folds is None else of_folds(spec, folds, stores)


def option_of(splits: str | None, folds: str | None) -> str:
    """The option as given on the command line, for messages."""
    return f" --folds {folds}" if splits is None else f" --splits {splits}"


def checked(
    divisions: Sequence[Division], stores: Stores, fresh: bool, yes: bool, declared: Declared
) -> list[Preflight]:
    """Preflight every job before the first one begins. Raises as `preflight_asking` does, naming the division."""
    found = []
    for division in divisions:
        try:
            found.append(preflight_asking(division.spec, stores, fresh, yes, declared))
        except ConfigError as error:
            raise ConfigError(
                f"in {division.name}: {error.problem}", field=error.field, code=error.code, parts=error.parts
            ) from error
    return found


def run_all(
    job: JobSpec,
    divisions: Sequence[Division],
    ready: Sequence[Preflight],
    stores: Stores,
    fresh: bool,
    as_json: bool,
    again: str,
    run: Callable[[JobSpec], JobStatus],
) -> None:
    """Run the jobs that have not ended, one after the other, then show the figures of all.

    `ready`: the preflight of each (see `checked`). `again`: the command that continues. Exits as `essp run` does if a
    job was interrupted or failed.
    """
    for number, (division, found) in enumerate(zip(divisions, ready, strict=True), 1):
        ended = not fresh and has_ended(division, found.resume.manifests, stores)
        typer.echo(f"{number} of {len(divisions)}: {division.name}{', which has ended' if ended else ''}", err=True)
        if ended:
            continue
        status = run(division.spec)
        if not status.state.ended:
            typer.echo(f"to continue: {again}", err=True)
            raise typer.Exit(EXIT_INTERRUPTED)
        if status.state != JobState.COMPLETED:
            typer.echo(f"{division.name} has failed; when that is repaired, continue with: {again}", err=True)
            raise typer.Exit(1)
    once = all(division.spec.data.left_out for division in divisions)
    told = outcomes(job.name, divisions, stores, once)
    page = write_page(stores.under(job.output), told)
    if as_json:
        typer.echo(json.dumps(told.document()))
    else:
        show(told, open_console())
    typer.echo(f"divisions  {page}", err=True)


def show(found: Outcomes, console: Console) -> None:
    """The metric by which each division is judged, its mean and standard deviation."""
    metric = found.judged_by
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(f"{NAMES[metric]}, {found.split}", overflow="fold")
    for name in ("videos", *found.columns):
        table.add_column(name, justify="right")
    for one in found.each:
        table.add_row(one.label, str(one.videos), *(percent(one.figures[name][metric]) for name in found.columns))
    below = {"mean": found.mean(), "standard deviation": found.deviation(), "of all videos": found.of_all_videos()}
    for label, by_column in below.items():
        if by_column:
            table.add_row(label, "", *(percent(by_column[name][metric]) for name in found.columns), style="bold")
    console.print(table)


def command_again(job: str, option: str, options: str) -> str:
    """The command that continues with these divisions. `options`: from `options_again`."""
    return f"essp run {shlex.quote(job)}{option}{options}"
