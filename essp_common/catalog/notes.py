"""Notes about a usable file that users should know in addition to its row: lines of `kind: what`, in `VideoRow.notes`.

`essp_engine/video/notes.py` writes them while a file is read; builds, summaries and checks report them.
"""

from __future__ import annotations

SALVAGED = "salvaged"
"""The file was cut off or is damaged, and its intact part is used."""
SIZES = "sizes"
"""The size of the pictures changes."""
INTERLACED = "interlaced"
"""Frames are two fields."""
TRACKS = "tracks"
"""There are several video tracks, one of which is used."""
BITS = "bits"
"""Grey values with more than 8 bits, such as distances or temperatures."""
DEPTH = "depth"
"""A depth camera, as its source says. Only clips of `gray16` have its distances."""
OFFSET = "offset"
"""The frames of an episode are not shown at their timestamps; those nearest to them are used."""
CROP = "crop"
"""The container asks players to crop the edges of the picture."""


def is_depth(notes: str) -> bool:
    """Whether the notes of a row say that it is a depth camera."""
    return DEPTH in dict(lines(notes))


def lines(notes: str) -> list[tuple[str, str]]:
    """The notes of a row, as kinds and texts."""
    return [(kind, what) for kind, _, what in (line.partition(": ") for line in notes.splitlines())]
