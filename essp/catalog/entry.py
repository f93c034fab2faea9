"""What a source says about a video before the video is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

_NONE: Mapping[str, Any] = {}
"""Shared, because most entries have none."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a file that a label describes.

    In seconds it is [start, end); in frames it is start..end, including both. An end of None is the end of the file.
    With `frames`, it is this number of frames, starting with the frame shown at `start` seconds, at `rate` frames a
    second.
    """

    start: float
    end: float | None
    unit: Literal["s", "frame"]
    frames: int | None = None
    rate: float = 0.0
    tolerance_s: float | None = None
    """How far each of the `frames` may be shown from its expected time; None: less than half a frame."""

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
    """What it shares with other videos; empty: nothing."""
    event: str = ""
    """What the views of one event have in common; empty: it is the only view."""
    view: str = ""
    """Which of the views it is, such as the name of the camera."""
    first_view: bool = True
    """The values and spans that the source has for each frame count the frames of this view; other views, which may
    have another rate, get values only if they have as many frames."""
    labels: tuple[str, ...] = ()
    """All labels of the whole video, if it may have several; otherwise `class_name` is the only one."""
    spans: tuple[tuple[Segment, str], ...] = ()
    """Stretches of the file, each with its label."""
    frames: int | None = None
    """The number of frames that the file must have, to within one, because the spans come from one name for each
    frame."""
    series: bytes = b""
    """Packed `Targets` that contain only series: values for each frame of the video, or of its segment. Packed, because
    a source may have a million entries."""
    files: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """The files of the series: name -> file; the empty name: the label of each frame."""
    meta: Mapping[str, Any] = field(default_factory=lambda: _NONE)
    """What else the source says about it, by column."""
    unlabelled: str = ""
    """Why it has no class. This is a problem if another entry of the source has a class; otherwise prediction is
    possible."""
    origin_s: float = 0.0
    """When its event begins, in seconds of the file's clock, if the entry has no segment."""
    depth: bool = False
    """Whether its frames are distances of a depth camera, and not colours."""
    error: str | None = None
    """`kind: reason` if it cannot become a usable row, whatever the file contains."""
