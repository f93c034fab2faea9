"""Asks for confirmation before an action that cannot be undone."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from essp_common.artifacts.removal import OfAnotherJob
from essp_common.errors import ConfigError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str) -> None:
    """Return if the user agrees. Raises `Abort` if not, and `ConfigError` if there is no terminal."""
    try:
        with redirect_stdout(sys.stderr):  # Typer writes the blank after its question to stdout
            agreed = typer.confirm(question, err=True)
    except typer.Abort as error:
        if sys.stdin.isatty():
            raise
        typer.echo(err=True)  # end the line of the question
        raise ConfigError(
            "cannot ask for confirmation without a terminal; add --yes", field="--yes", code="missing"
        ) from error
    if not agreed:
        raise typer.Abort


def ask_for(other: OfAnotherJob, yes: bool) -> None:
    """Ask whether the output of another job may be removed. Raises as `confirm` does."""
    if not yes:
        typer.echo(str(other).partition("; choose")[0], err=True)
        confirm(f"Remove the output of job {other.job}?")
