"""The catalog: one row a video, stored as Parquet.

Built by `build.py`; read here. `CatalogView` is the part of it that plans draw from: the usable videos of one
split, as arrays, in an order that depends on the rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class VideoRow:
    """One video, or one labelled segment of one (then several rows share a `uri`)."""

    id: str
    """Unique and stable: the path below the source, plus `#start-end` for a segment."""
    uri: str
    class_name: str
    split: str
    size_bytes: int
    etag: str
    container: str = ""
    codec: str = ""
    pixel_format: str = ""
    width: int = 0
    """As displayed: rotation applied."""
    height: int = 0
    rotation: int = 0
    """Degrees, clockwise, that the decoded picture is turned by for display: 0, 90, 180 or 270."""
    fps: float = 0.0
    duration_s: float = 0.0
    time_base: tuple[int, int] = (0, 1)
    frame_count: int = 0
    """Frames of the whole file in display order, as a sequential decode gives them."""
    first_frame: int = 0
    """The segment's first frame (0 for a whole video)."""
    last_frame: int = 0
    """The segment's last frame, inclusive."""
    seekable: bool = False
    """A decode that starts at any of `keyframe_pts` gives the very frames of a sequential decode."""
    keyframe_pts: tuple[int, ...] = ()
    keyframe_frame: tuple[int, ...] = ()
    """Display-order index of each keyframe."""
    keyframe_offset: tuple[int, ...] = ()
    """Byte offset of each keyframe's packet in the file (-1: the container does not say)."""
    error: str | None = None
    """Why the video cannot be used; null: it can."""


@dataclass(frozen=True)
class CatalogView:
    """The usable videos of one split, indexed 0..n-1."""

    rows: tuple[VideoRow, ...]
    classes: tuple[str, ...]
    """All class names of the catalog, sorted; a class id is a position in it, the same for every split."""
    class_id: NDArray[np.int32]
    """(n,) class of each video."""
    by_class: tuple[NDArray[np.int32], ...]
    """For each class id, the videos in it (may be empty)."""

    def __len__(self) -> int:
        return len(self.rows)
