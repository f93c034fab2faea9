"""Where commands print tables and texts.

On a terminal, output is as wide as the terminal. In a pipe or a file, lines are neither wrapped nor cut, because
programs read paths and ids out of them; `COLUMNS` sets a width. Markup and emoji codes are off, because names of videos
and classes may contain brackets and `:100:`; styled text uses `Text`.
"""

from __future__ import annotations

import os

from rich.console import Console

_UNBROKEN = 10_000


def open_console(stderr: bool = False) -> Console:
    """A console on stdout or stderr."""
    found = Console(stderr=stderr, markup=False, emoji=False)
    if not found.is_terminal and not os.environ.get("COLUMNS"):
        found.width = _UNBROKEN
    return found
