"""`essp`, called in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from essp.cli.main import app


def essp(*arguments: str, typed: str | None = None) -> Result:
    """What a call printed and its exit code; errors of ESSP are raised, as `main` turns them into exit codes."""
    done = CliRunner().invoke(app, arguments, input=typed)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done
