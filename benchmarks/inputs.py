"""The videos that benchmarks read: made once, into a folder that is reused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from essp_common.testing.videos import Encoding, drifting, texture, write_video


@dataclass(frozen=True, slots=True)
class VideoSet:
    """A kind of video, as real sets have them."""

    name: str
    codec: str
    gop: int
    width: int
    height: int
    suffix: str
    frames: int = 300
    videos: int = 8


SETS = (
    VideoSet("mpeg4_320x240_gop12", "mpeg4", 12, 320, 240, ".avi"),
    VideoSet("h264_640x360_gop60", "h264", 60, 640, 360, ".mp4"),
    VideoSet("h264_640x360_gop250", "h264", 250, 640, 360, ".mp4"),
)


def make(video_set: VideoSet, root: Path) -> Path:
    """The folder with the videos of a set, in two class folders; made if it is not there."""
    folder = root / video_set.name
    for number in range(video_set.videos):
        path = folder / f"class{number % 2}" / f"{number:02d}{video_set.suffix}"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}{video_set.suffix}")
        pictures = drifting(texture(video_set.width, video_set.height, number), video_set.frames, velocity=(3, 1))
        write_video(partial, pictures, Encoding(codec=video_set.codec, gop=video_set.gop, bframes=2 * (video_set.codec == "h264")))
        partial.rename(path)
    return folder
