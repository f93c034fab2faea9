"""Describes what a view shows of a clip, before anything is cut."""

from __future__ import annotations

from typing import NamedTuple


class Cut(NamedTuple):
    """What a view shows of each frame of a clip; it is resized to a square."""

    rows: slice
    columns: slice
    mirrored: bool = False
    erased: tuple[slice, slice] | None = None
    """Rows and columns of the square that are erased."""
