"""Where commands print tables and texts.

On a terminal, output is as wide as the terminal. In a pipe or a file, lines are neither wrapped nor cut, because
programs read paths and ids out of them; `COLUMNS` sets a width. Markup and emoji codes are off, because names of videos
and classes may contain brackets and `:100:`; styled text uses `Text`.

Sentences are printed by `say`: on a terminal their lines break between words, and a path or URI in them stays whole, so
that it can be copied. Commands to copy are printed without it: a shell would take a second line as another command.
"""

from __future__ import annotations

import os
from textwrap import fill

from rich.console import Console

_UNBROKEN = 10_000


def open_console(stderr: bool = False) -> Console:
    """A console on stdout or stderr."""
    found = Console(stderr=stderr, markup=False, emoji=False)
    if not found.is_terminal and not os.environ.get("COLUMNS"):
        found.width = _UNBROKEN
    return found


def say(text: str, console: Console | None = None, style: str = "", indent: int = 0) -> None:
    """Print sentences, without `console` to stderr. `indent`: of the second line and those that follow."""
    console = console or open_console(stderr=True)
    console.print(broken(text, console, indent), style=style or None, highlight=False, soft_wrap=True)


def broken(text: str, console: Console, indent: int = 0) -> str:
    """The text as it fits the width of a terminal, its lines indented from the second one on; unchanged elsewhere."""
    if not console.is_terminal:
        return text
    lines = (
        fill(line, console.width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )
    return "\n".join(lines)
