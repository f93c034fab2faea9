"""`--fresh`: reports what an earlier job left before it is removed, or asks for confirmation."""

from __future__ import annotations

from functools import partial

from essp.cli.confirmation import ask_for
from essp.cli.console import say
from essp_common.job.spec import JobSpec
from essp_common.wiring import Stores
from essp_engine.preflight.output import Asked
from essp_engine.preflight.preflight import Preflight, preflight
from essp_engine.registrations import Declared
from essp_master.config import MasterSettings


def preflight_asking(spec: JobSpec, stores: Stores, fresh: bool, yes: bool, declared: Declared) -> Preflight:
    """Run `preflight` for a job in this process. Ask before the output of another job is removed, unless `yes`."""
    asked = Asked(confirm=partial(ask_for, yes=yes))
    return preflight(spec, stores, fresh, declared, asked=asked, state=MasterSettings().state)


def tell(found: Preflight) -> None:
    """Report what will be removed."""
    if found.removes is not None:
        say(f"--fresh removes {found.removes.words}")
