"""Interlaced frames as whole pictures.

A frame with FFmpeg's interlaced flag contains two fields, line by line. libswscale's newer interface scales them
separately and interleaves the results, which keeps the comb of a moving edge at any size. ffmpeg, decord and torchcodec
scale the frame as a whole, and so does ESSP: the flag is cleared before scaling.
"""

from __future__ import annotations

from av.filter.graph import Graph
from av.video.frame import VideoFrame

_CLOCK = "1/1000"
"""The time base, which does not matter here."""


class WholePictures:
    """Clears the interlaced flag. Used from one thread."""

    def __init__(self) -> None:
        self._graph: Graph | None = None
        self._made_for: tuple[object, ...] = ()

    def of(self, frame: VideoFrame) -> VideoFrame:
        """The frame without the flag: itself, or another frame that shares its samples."""
        if not frame.interlaced_frame:
            return frame
        like = frame.width, frame.height, frame.format.name, int(frame.colorspace), int(frame.color_range)
        if self._graph is None or self._made_for != like:
            self._graph, self._made_for = _clearing(*like), like
        self._graph.vpush(frame)
        return self._graph.vpull()


def _clearing(width: int, height: int, pixel_format: str, colorspace: int, color_range: int) -> Graph:
    graph = Graph()
    graph.threads = 1
    source = graph.add(
        "buffer",
        video_size=f"{width}x{height}",
        pix_fmt=pixel_format,
        time_base=_CLOCK,
        colorspace=str(colorspace),
        range=str(color_range),
    )
    graph.link_nodes(source, graph.add("setfield", "prog"), graph.add("buffersink")).configure()
    return graph
