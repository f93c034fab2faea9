"""`--fresh`: what an earlier job has left is removed, and before that people are told what goes, or asked."""

from __future__ import annotations

from functools import partial

import typer

from essp.cli.confirmation import ask_for
from essp_common.job.spec import JobSpec
from essp_common.wiring import Stores
from essp_engine.preflight.output import Asked
from essp_engine.preflight.preflight import Preflight, preflight
from essp_engine.registrations import Declared
from essp_master.config import MasterSettings


def preflight_asking(spec: JobSpec, stores: Stores, fresh: bool, yes: bool, declared: Declared) -> Preflight:
    """As `preflight` of a job in this process; whether the output of another job may go is asked, unless it was said
    before (`yes`)."""
    asked = Asked(confirm=partial(ask_for, yes=yes))
    return preflight(spec, stores, fresh, declared, asked=asked, state=MasterSettings().state)


def tell(found: Preflight) -> None:
    """Say what goes."""
    if found.removes is not None:
        typer.echo(f"--fresh removes {found.removes.words}", err=True)
