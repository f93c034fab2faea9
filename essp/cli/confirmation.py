"""Asking before what cannot be taken back."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from essp_common.errors import ConfigError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str) -> None:
    """Return if the answer is yes. Raises `Abort` if it is no, `ConfigError` where nobody is there to answer."""
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort as error:
        if sys.stdin.isatty():
            raise
        raise ConfigError("not confirmed, and no terminal to ask at; add --yes") from error
    if not agreed:
        raise typer.Abort
