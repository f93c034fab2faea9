"""Rows of catalogs whose videos nobody opens."""

from __future__ import annotations

from essp_common.catalog.rows import VideoRow


def row(name: str, split: str = "train", uri: str = "", error: str | None = None, frames: int = 50) -> VideoRow:
    """A video `class/file`."""
    return VideoRow(
        name,
        uri or f"file:///{name}",
        name.partition("/")[0],
        split,
        1000,
        "etag",
        container="mov",
        codec="h264",
        pixel_format="yuv420p",
        width=320,
        height=240,
        fps=25.0,
        duration_s=2.0,
        time_base=(1, 12800),
        frame_count=frames if error is None else 0,
        last_frame=frames - 1 if error is None else 0,
        seekable=True,
        keyframe_pts=(-512, 3, 2**40),
        keyframe_frame=(0, 12, 24),
        keyframe_offset=(-1, 900, 2**35),
        error=error,
    )
