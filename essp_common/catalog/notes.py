"""What people should know of a usable file beside the numbers of its row: lines of `kind: what`, in `VideoRow.notes`.

`essp_engine/video/notes.py` makes them as a file is read; builds, summaries and checks tell them.
"""

from __future__ import annotations

SALVAGED = "salvaged"
"""The file was cut off or is damaged, and its sound part is used."""
SIZES = "sizes"
"""The size of the pictures changes."""
INTERLACED = "interlaced"
"""Frames are two fields."""
TRACKS = "tracks"
"""There are several tracks of pictures, of which one is taken."""
BITS = "bits"
"""Grey of more bits than clips have, such as distances or temperatures."""
CROP = "crop"
"""The container asks players to cut the picture's edges off."""


def lines(notes: str) -> list[tuple[str, str]]:
    """The notes of a row, as kinds and texts."""
    return [(kind, what) for kind, _, what in (line.partition(": ") for line in notes.splitlines())]
