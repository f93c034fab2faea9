"""`--fresh`: reports what an earlier job left before it is removed, or asks for confirmation."""

from __future__ import annotations

import typer

from essp.cli.confirmation import ask_for
from essp_common.artifacts.removal import OfAnotherJob
from essp_common.job.spec import JobSpec
from essp_common.wiring import Stores
from essp_engine.preflight.output import Asked
from essp_engine.preflight.preflight import Preflight, preflight
from essp_engine.registrations import Declared
from essp_master.config import MasterSettings


def preflight_asking(spec: JobSpec, stores: Stores, fresh: bool, yes: bool, declared: Declared) -> Preflight:
    """Run `preflight` for a job in this process. Ask before the output of another job is removed, unless `yes`."""
    state = MasterSettings().state
    try:
        return preflight(spec, stores, fresh, declared, state=state)
    except OfAnotherJob as error:
        ask_for(error, yes)
        return preflight(spec, stores, fresh, declared, asked=Asked(replaces=error.job), state=state)


def tell(found: Preflight) -> None:
    """Report what will be removed."""
    if found.removes is not None:
        typer.echo(f"--fresh removes {found.removes.words}", err=True)
