"""What a source says of a video before anybody has opened it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a file that a label is for.

    In seconds it is [start, end), in frames start..end with both; an end of None is the end of the file. Or it is
    `frames` frames from the one that is shown at `start` seconds on, at `rate` a second.
    """

    start: float
    end: float | None
    unit: Literal["s", "frame"]
    frames: int | None = None
    rate: float = 0.0
    tolerance_s: float = 0.0
    """How far each of the `frames` may be shown from when it should be."""

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
    labels: tuple[str, ...] = ()
    """All that the video as a whole shows, where that may be several things; else `class_name` says it."""
    spans: tuple[tuple[Segment, str], ...] = ()
    """Stretches of the file and what each shows."""
    frames: int | None = None
    """How many frames the file has to have, since the spans are made of a name for each, to within one."""
    series: bytes = b""
    """`Targets` of nothing but series, packed: values for each frame of the video, or of its segment. A source may have
    a million."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Of the series: name -> file; the empty name: what each frame shows."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What else the source says of it, by the name of the column."""
    unlabelled: str = ""
    """Why it has no class: a problem if another one of the source has one, else all can be predicted on."""
    error: str | None = None
    """`kind: reason` for what cannot become a usable row, whatever is in the file."""
