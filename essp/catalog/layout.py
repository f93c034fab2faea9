"""A layout of data sets. Each is defined in the module of its functions, and `layouts.py` lists them all.

A new layout needs a name in `Kind`, a module with a `Layout` (how it is recognised, who lists it, further properties),
a line in `layouts.py`, a row of the table in docs/catalog.md, and its tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from essp.catalog.entry import Entry
from essp.catalog.found import Found

Kind = Literal[
    "auto", "csv", "lerobot", "kinetics", "mmaction2", "something", "activitynet", "webdataset", "ucf101", "hmdb51",
    "hollywood2", "ccv", "kth", "videofolder", "parquet", "mcap", "two-level", "folders",
]  # fmt: skip
"""What a source may be called. `auto` recognises the source; `csv` is a user's own list, which needs no layout because
its columns say everything."""
LISTS = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".parquet", ".pq")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
RECORDINGS = (".mcap",)
TABLES = (".parquet", ".pq", ".arrow")
"""Files that may hold the bytes of videos."""


def _nothing(_found: Found, _entries: Iterable[Entry], _empty: Sequence[str]) -> Iterable[str]:
    return ()


@dataclass(frozen=True)
class Layout:
    """How a data set is stored."""

    name: Kind
    """Its name for `--source`."""
    looks: str
    """What identifies it, in words."""
    fits: Callable[[Found], str]
    """Returns what identifies a source as this layout; empty: the source is something else."""
    read: Callable[[Found], Iterable[Entry]]
    """Lists the content. Raises `ConfigError`, with the place and what to write there, for a source that is broken or
    not of this layout."""
    files: tuple[str, ...] = LISTS
    """Suffixes of its files other than videos; all other files are counted."""
    csv: bool = False
    """Its lists may be called `.csv` or `.parquet` and have other columns than users' own lists."""
    episodes: bool = False
    """Its rows are episodes that share files: `--camera` and `--tolerance-s` apply to it, `--whole` does not."""
    complete: bool = False
    """It lists each video of the folder."""
    copies: bool = False
    """A build copies its videos, so those that are found in the source are copies, maybe of what is no longer there."""
    notes: Callable[[Found, Iterable[Entry], Sequence[str]], Iterable[str]] = _nothing
    """Likely mistakes in the source, given its entries. The last argument: local folders without any file."""
