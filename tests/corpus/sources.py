"""Small sound files of every codec and container that the tests can make."""

from __future__ import annotations

from pathlib import Path

import av

from essp_engine.video.synthetic import Encoding, numbered, write_video

FRAMES = 10
_FILES = {
    "h264.mp4": Encoding(gop=4, bframes=2),
    "h264.mov": Encoding(gop=4),
    "h264.mkv": Encoding(gop=4, bframes=2),
    "hevc.mp4": Encoding(codec="hevc", gop=5),
    "mpeg4.mp4": Encoding(codec="mpeg4", gop=5),
    "mpeg4.avi": Encoding(codec="mpeg4", gop=4),
    "mpeg2.mkv": Encoding(codec="mpeg2", gop=5),
    "vp8.webm": Encoding(codec="vp8", gop=5),
    "vp9.webm": Encoding(codec="vp9", gop=5),
    "av1.mp4": Encoding(codec="av1", gop=5),
    "mjpeg.avi": Encoding(codec="mjpeg", pixel_format="yuvj420p"),
    "ffv1.mkv": Encoding(codec="ffv1"),
    "raw.h264": Encoding(gop=4, bframes=2),
    "raw.m4v": Encoding(codec="mpeg4", gop=4),
    "animated.gif": Encoding(codec="gif", pixel_format="rgb8"),
}


def write_sources(folder: Path) -> list[Path]:
    """Write them all."""
    paths = [write_video(folder / name, numbered(FRAMES, 64, 48), how) for name, how in _FILES.items()]
    return [*paths, _index_first(folder / "h264.mp4", folder / "faststart.mp4")]


def _index_first(source: Path, target: Path) -> Path:
    """The same packets with the index at the beginning, as files for the web have it."""
    with av.open(str(source)) as before, av.open(str(target), "w", options={"movflags": "faststart"}) as after:
        stream = after.add_stream_from_template(before.streams.video[0])
        for packet in before.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                after.mux(packet)
    return target
