"""Where commands print tables and texts.

On a terminal they are as wide as it is. Elsewhere, in a pipe or a file, nothing is wrapped or cut: programs read paths
and ids out of the lines. `COLUMNS` sets a width. Brackets are brackets, and `:100:` is no picture, since names of
videos and classes have both: what has a style is a `Text`.
"""

from __future__ import annotations

import os

from rich.console import Console

_UNBROKEN = 10_000


def open_console(stderr: bool = False) -> Console:
    """Stdout or stderr."""
    found = Console(stderr=stderr, markup=False, emoji=False)
    if not found.is_terminal and not os.environ.get("COLUMNS"):
        found.width = _UNBROKEN
    return found
