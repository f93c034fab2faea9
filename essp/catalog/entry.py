"""What a source says of a video before anybody has opened it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a file that a label is for.

    In seconds it is [start, end), in frames start..end with both; an end of None is the end of the file.
    """

    start: float
    end: float | None
    unit: Literal["s", "frame"]

    def __str__(self) -> str:
        end = "" if self.end is None else f"{self.end:.10g}"
        return f"{self.start:.10g}-{end}" + ("s" if self.unit == "s" else "")


@dataclass(frozen=True, slots=True)
class Entry:
    """One video, or segment of one, as its source names it."""

    id: str
    uri: str
    class_name: str
    split: str
    size_bytes: int = 0
    etag: str = ""
    segment: Segment | None = None
    group: str = ""
    """What it shares with others; empty: nothing."""
    error: str | None = None
    """`kind: reason` for what cannot become a usable row, whatever is in the file."""
