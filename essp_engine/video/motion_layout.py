"""How the motion of a clip's frames is stored, for what does not decode (`motion.py` says what it means)."""

from __future__ import annotations

CELL = 8
"""Side of a cell of the motion grid, in pixels of the output frame."""
DTYPE = "<i2"
"""Type of the numbers."""
UNIT = 16
"""Units of motion in a pixel."""
CODECS = frozenset({"h264", "h263", "mpeg1video", "mpeg2video", "mpeg4", "msmpeg4v2", "msmpeg4v3", "wmv1", "wmv2"})
"""Codecs whose FFmpeg decoders export their vectors."""


def motion_shape(height: int, width: int) -> tuple[int, int, int]:
    """The shape of the motion of a frame of this size."""
    return -(-height // CELL), -(-width // CELL), 2
