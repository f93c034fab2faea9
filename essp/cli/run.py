"""`essp run`: run a job in this process and watch it live."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import typer

from essp.cli.console import say
from essp.cli.divisions import Folds, Splits, checked, command_again, divisions_of, option_of, run_all
from essp.cli.doctor import failing, not_ready
from essp.cli.fresh import preflight_asking, tell
from essp.cli.interrupt import interruptible
from essp.cli.job_file import Epochs, Fresh, JobFile, Named, Sets, YesFresh, load_job, options_again, options_named
from essp.cli.view import View, open_view
from essp.embedded.claim import Claim
from essp.embedded.composition import Embedded, EmbeddedOptions
from essp.embedded.devices import check_devices
from essp.embedded.finished import statuses_in
from essp.embedded.page import Page, open_page, past_jobs
from essp.embedded.videos import check_videos
from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, JobStatus
from essp_common.objects.port import ObjectStore
from essp_common.runtime.config import Settings
from essp_common.runtime.process import EXIT_INTERRUPTED, set_up_logging
from essp_common.wiring import Stores
from essp_engine.preflight.output import ANYBODY, Asked
from essp_engine.preflight.preflight import Preflight, preflight
from essp_engine.registrations import Declared

LOCALHOST = "127.0.0.1"
_LOOK_S = 0.25
_SERVERS = 2
"""The bus and the cache."""


def main(
    job: JobFile,
    fresh: Fresh = False,
    yes: YesFresh = False,
    sets: Sets = None,
    name: Named = None,
    epochs: Epochs = None,
    splits: Splits = None,
    folds: Folds = None,
    serve: Annotated[
        int,
        typer.Option(
            help="Also serve the page and the REST API on this port, and print their address with its token "
            "(0: do not).",
            min=0,
            max=65535,
        ),
    ] = 0,
    keep: Annotated[
        bool, typer.Option("--keep", help="With --serve: keep serving the page after the job has ended, until Ctrl-C.")
    ] = False,
    host: Annotated[str, typer.Option(help="Where --serve listens; `::`: on all addresses.")] = LOCALHOST,
    servers: Annotated[
        bool,
        typer.Option(
            "--servers",
            help="Send messages and clips through the servers that ESSP_BUS and ESSP_CACHE name, not memory. A master "
            "there that runs a job of this name loses it to this process, and leaves.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print events and status as JSON lines.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the services' logs.")] = False,
) -> None:
    """Run a job in this process, without servers. Ctrl-C saves and exits; the same command continues from there.

    With --splits or --folds, it runs one job for each division of the data set, one after the other, below the job's
    output. Then it shows the figures of each, their mean and standard deviation, also as a page (divisions.html).
    """
    spec, settings = load_job(job, epochs, sets, name), settings_of(servers)
    given = options_again(epochs, sets, name)
    stores = Stores(settings.stores)
    with options_named(epochs, splits, folds, name), _served(serve, host, keep) as page:
        options = EmbeddedOptions(fresh=fresh, page=page)
        if divisions := divisions_of(spec, splits, folds, stores):
            again = command_again(job, option_of(splits, folds), given)
            run_all(
                spec,
                divisions,
                checked(divisions, stores, fresh, yes, Declared(code=settings.code)),
                stores,
                fresh,
                as_json,
                again,
                lambda of: run_watched(
                    of, open_view(as_json), options, settings, verbose, yes=True
                ),  # already asked by `checked`
            )
            if keep and page is not None:
                _kept(page, spec, settings)
            return
        status = run_watched(spec, open_view(as_json), options, settings, verbose, yes)
        if keep and page is not None and status.state.ended:
            _kept(page, spec, settings)
        if not status.state.ended:
            typer.echo(f"to continue: essp run {shlex.quote(job)}{given}", err=True)
            raise typer.Exit(EXIT_INTERRUPTED)
        if status.state != JobState.COMPLETED:
            raise typer.Exit(1)


def settings_of(servers: bool = False) -> Settings:
    """The settings of a job in this process.

    Bus and cache are in memory unless `servers` is set: the shell may still name the servers of a cluster, whose master
    would clash with a job of the same name. Raises `ConfigError` if `servers` is set but no servers are named.
    """
    settings = Settings()
    named = [name for name in ("bus", "cache") if not getattr(settings, name).startswith("memory:")]
    if servers:
        if len(named) < _SERVERS:
            raise ConfigError(
                "ESSP_BUS and ESSP_CACHE have to name servers, as `essp servers up` prints them; without "
                "--servers the job runs in memory",
                field="--servers",
                code="conflict",
            )
        return settings
    if named:
        variables = " and ".join(f"ESSP_{name.upper()}" for name in named)
        say(f"not used: {variables}; this job runs in memory (essp run --servers uses the servers)")
    return settings.model_copy(update=dict.fromkeys(named, "memory://"))


@contextmanager
def _served(port: int, host: str, keep: bool) -> Iterator[Page | None]:
    """Serve the page during the block; None without a port. `keep`: it stays after the block."""
    if not port:
        if keep:
            raise ConfigError(
                "--keep keeps the page of --serve; give --serve PORT, too", field="--serve", code="missing"
            )
        if host != LOCALHOST:
            raise ConfigError(
                "--host says where --serve listens; give --serve PORT, too", field="--serve", code="missing"
            )
        yield None
        return
    with open_page("essp run --serve", host, port) as page:
        ends = "it stays until Ctrl-C" if keep else "it ends with this run (--keep: it stays), and the report stays"
        typer.echo(f"page    {page.address}\n        {ends}", err=True)
        yield page


def _kept(page: Page, spec: JobSpec, settings: Settings) -> None:
    """Serve the page of a job that has ended, until Ctrl-C."""
    with past_jobs(settings) as master, interruptible("leaving") as interrupted, page.serving(master):
        master.show(statuses_in(spec.output, Stores(settings.stores)))
        typer.echo(f"page    {page.address}; Ctrl-C ends it", err=True)
        interrupted.wait()


def run_watched(
    spec: JobSpec,
    view: View,
    options: EmbeddedOptions,
    settings: Settings,
    verbose: bool = False,
    yes: bool = False,
) -> JobStatus:
    """Run a job to its end, or until Ctrl-C, which saves; then write the report. Returns the last status.

    `settings`: from `settings_of`. `yes`: do not ask whether the output of another job may be removed when the job
    starts from scratch.

    Raises `ConfigError` for a job that cannot run, as `essp validate` does; `Unavailable` if the servers in the
    settings are not ready; `Conflict` while another process runs a job in that output.
    """
    set_up_logging(settings if verbose else settings.model_copy(update={"log_level": "ERROR"}))
    stores, declared = Stores(settings.stores), Declared(code=settings.code)
    job = preflight_asking(spec, stores, options.fresh, yes, declared)
    check_devices(job.spec)
    check_videos(job, stores)
    if problems := failing(settings):
        raise not_ready(problems)
    _tell_if_trained(job)
    tell(job)
    output = stores.under(job.spec.output)
    with Claim(output, partial(typer.echo, err=True)) as claim:
        if claim.waited:  # another process may have continued the training
            asked = ANYBODY if job.removes is None else Asked(replaces=job.removes.job)
            job = preflight(spec, stores, options.fresh, declared, asked=asked)
        status = _watched(job, view, settings, options, claim)
        if status.state == JobState.COMPLETED and not job.spec.predicts:
            _write_report(output, stores)
    return status


def _tell_if_trained(job: Preflight) -> None:
    """Say how to continue a job whose trainers are done."""
    if job.spec.trainers and all(name in job.resume.ended for name in job.spec.trainers):
        stopped = ", ".join(sorted(job.resume.stops))
        but = f"; {stopped} stopped early, and would want a larger stop.patience, too" if stopped else ""
        say(f"training has finished; to continue, give --epochs {2 * job.spec.epochs}{but}")


def _write_report(output: ObjectStore, stores: Stores) -> None:
    """Write the report, and name it with the best of each sweep."""
    typer.echo("making the report ...", err=True)
    # Imported only now that a report is needed: plotting takes a few seconds and another library.
    from essp.report.folder import write_report
    from essp.report.sweeps import best_of_sweeps

    report = write_report(output, stores)
    typer.echo(f"report  {report.page}", err=True)
    for line in best_of_sweeps(report.run):
        typer.echo(line, err=True)


def _watched(job: Preflight, view: View, settings: Settings, options: EmbeddedOptions, claim: Claim) -> JobStatus:
    seen = 0
    with view, interruptible("Saving a checkpoint, then exiting. Press Ctrl-C again to quit now.") as interrupted:
        with Embedded(job, settings, options) as embedded:
            ended = False
            while not (ended or interrupted.is_set()):
                claim.check()
                ended = embedded.ended(_LOOK_S)
                events = embedded.events(seen)
                seen = events[-1].id if events else seen
                view.show(embedded.status(), events, embedded.usage())
        status = embedded.status()
        if status.state.ended:
            view.result(status)
    return status
