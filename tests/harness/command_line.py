"""`essp`, called in this process."""

from __future__ import annotations

import sys
from unittest.mock import patch

from typer.testing import CliRunner, Result

from essp.cli.main import app, main


def essp(*arguments: str, typed: str | None = None) -> Result:
    """What a call printed and its exit code; errors of ESSP are raised, as `main` turns them into exit codes."""
    done = CliRunner().invoke(app, arguments, input=typed)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def main_of(*arguments: str) -> int:
    """The exit code of a call as the console script makes it: errors are one message on stderr."""
    try:
        with patch.object(sys, "argv", ["essp", *arguments]):
            main()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    return 0
