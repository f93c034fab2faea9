"""`essp page`: the master's page over jobs in a folder, without a master."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Annotated

import typer

from essp.cli.interrupt import interruptible
from essp.embedded.finished import statuses_in
from essp.embedded.page import open_page, past_jobs
from essp.uris import as_uri, shown
from essp_common.errors import NotFound
from essp_common.quantities import counted
from essp_common.runtime.config import Settings
from essp_common.runtime.process import set_up_logging
from essp_common.runtime.retry import Outage
from essp_common.wiring import Stores

LOCALHOST = "127.0.0.1"
_AGAIN_S = 10.0
"""Interval at which the outputs are read again: a job may be under way."""


def main(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="A folder with outputs of jobs, or one output: a path or URI.")
    ],
    port: Annotated[int, typer.Option(help="The port of the page (0: a free one).", min=0, max=65535)] = 0,
    host: Annotated[str, typer.Option(help="Where it listens; `::`: on all addresses.")] = LOCALHOST,
) -> None:
    """Show the page of jobs that have run here, until Ctrl-C. Nothing can be changed on it.

    The address has a token in it. Outputs are read again every ten seconds, so new jobs appear by themselves.
    """
    settings = Settings()
    set_up_logging(settings.model_copy(update={"log_level": "WARNING"}))
    stores, uri = Stores(settings.stores), as_uri(folder).rstrip("/")
    found = statuses_in(uri, stores)
    if not found:
        raise NotFound(f"{shown(uri)} holds no job that has run; name a folder with outputs, such as runs/")
    with (
        past_jobs(settings) as master,
        open_page("essp page", host, port, reads_only=True) as page,
        interruptible("leaving") as interrupted,
    ):
        master.show(found)
        with page.serving(master):
            typer.echo(f"page    {page.address}\n        {counted(len(found), 'job')} of {shown(uri)}; Ctrl-C ends it")
            keep_up(interrupted, lambda: master.show(statuses_in(uri, stores)))


def keep_up(interrupted: threading.Event, read_again: Callable[[], None]) -> None:
    """Read again from time to time, until the event. What was read stays on the page while a store does not answer."""
    outage = Outage("the jobs are not read again", interrupted.wait)
    while not interrupted.wait(_AGAIN_S):
        with outage:
            read_again()
