"""What is known of a layout of data sets. Each stands beside its functions, and `layouts.py` lists them all.

A new one is a name in `Kind`, a module with a `Layout` (by what it is recognised, who lists it, what else is to be
known), a line in `layouts.py`, a row of the table in docs/catalog.md, and its tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from essp.catalog.entry import Entry
from essp.catalog.found import Found

Kind = Literal[
    "auto", "csv", "lerobot", "kinetics", "mmaction2", "something", "activitynet", "webdataset", "ucf101", "hmdb51",
    "hollywood2", "ccv", "kth", "two-level", "folders",
]  # fmt: skip
"""What a source may be said to be. `auto` is whatever it is recognised as; `csv` is a list of one's own, and no layout,
since its columns say all."""
LISTS = (".csv", ".tsv", ".txt", ".json")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst")


def _nothing(_found: Found, _entries: Sequence[Entry], _empty: Sequence[str]) -> Iterable[str]:
    return ()


@dataclass(frozen=True)
class Layout:
    """How a data set lies."""

    name: Kind
    """What `--source` calls it."""
    looks: str
    """What is looked for, in words."""
    fits: Callable[[Found], str]
    """By what a source is recognised as one; empty: it is not."""
    read: Callable[[Found], Iterable[Entry]]
    """Lists what lies there. Raises `ConfigError`, with the place and what to write there, for a source that is broken,
    or that is said to be one and is not."""
    files: tuple[str, ...] = LISTS
    """Suffixes of what belongs to it beside the videos; other files are counted."""
    csv: bool = False
    """Its lists may be called `.csv` and have other columns than one's own."""
    episodes: bool = False
    """Its rows are episodes that share files: `--camera` and `--tolerance-s` are about them, `--whole` is not."""
    notes: Callable[[Found, Sequence[Entry], Sequence[str]], Iterable[str]] = _nothing
    """What is surely not meant, of what was read. The last: folders on this machine without any file."""
