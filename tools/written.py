"""What the tools write that make text of code: with `--write` into its files, without it a look at what has drifted.

Each such tool is `python -m tools.NAME [--write]`. Without `--write` it writes nothing, and exits with 1 if a file is
not as it would be made now: `make check` runs them so.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 120


def settle(made: Mapping[Path, str], remedy: str = "make docs", arguments: Sequence[str] | None = None) -> None:
    """Write these files, or exit with the names of those that differ and the command that mends them."""
    parser = argparse.ArgumentParser(description=f"Tell whether what `{remedy}` writes is current.")
    parser.add_argument("--write", action="store_true", help="write it")
    if parser.parse_args(arguments).write:
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")
    elif stale := drifted(made):
        sys.exit(f"not as it would be made now: {', '.join(stale)}; run `{remedy}` and commit")


def drifted(made: Mapping[Path, str]) -> list[str]:
    """The files that hold something else than they should, or are not there."""
    return [
        str(path.relative_to(ROOT))
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def between(whole: str, begin: str, made: str, end: str) -> str:
    """A text with what stands between two marks replaced. Raises `ValueError` if it has not the two in this order."""
    before, opened, rest = whole.partition(begin)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise ValueError(f"no {begin} with {end} after it")
    return f"{before}{begin}{made}{end}{after}"


def cell(text: str) -> str:
    """A text in a table of Markdown."""
    return text.replace("|", "\\|")


def wrapped(paragraph: str) -> list[str]:
    """A paragraph as lines of Markdown."""
    return textwrap.wrap(" ".join(paragraph.split()), COLUMNS, break_long_words=False, break_on_hyphens=False)
