"""Collects notes about a file that users should know in addition to its row (`essp_common/catalog/notes.py`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

import av.logging
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from essp_common.catalog.notes import BITS, CROP, INTERLACED, SIZES, TRACKS
from essp_engine.video.container import is_default, picture_streams

_MOST = 4
"""Maximum number of sizes that are listed."""
_CROPPING = ("matroska", "mov")
"""Formats whose tracks may ask for cropping: PixelCrop (RFC 9559), clap (ISO/IEC 14496-12)."""
_CUT_OFF = re.compile(r"Frame Cropping: (\d+)/(\d+)/(\d+)/(\d+)", re.IGNORECASE)


class Pictures:
    """Properties of the decoded frames of a file, and their changes."""

    def __init__(self) -> None:
        self.frames = self.interlaced = 0
        self.sizes: list[tuple[int, int, int]] = []
        """First frame, width and height of each stretch of frames with one size."""
        self.grey_bits = 8

    def take(self, frame: VideoFrame) -> None:
        """Examine the next frame."""
        size = frame.width, frame.height
        if not self.sizes or self.sizes[-1][1:] != size:
            self.sizes.append((self.frames, *size))
        components = frame.format.components
        if len(components) == 1 and components[0].bits > self.grey_bits:
            self.grey_bits = components[0].bits
        self.interlaced += frame.interlaced_frame
        self.frames += 1

    def notes(self) -> list[str]:
        """Notes about fields and sizes."""
        found = []
        if self.interlaced:
            found.append(f"{INTERLACED}: {self.interlaced} of {self.frames} decoded frames are two fields")
        if len(self.sizes) > 1:
            told = ", ".join(f"{width} x {height} from frame {first} on" for first, width, height in self.sizes[:_MOST])
            found.append(f"{SIZES}: {told}{', ...' if len(self.sizes) > _MOST else ''}")
        if self.grey_bits > 8:
            found.append(
                f"{BITS}: grey of {self.grey_bits} bits; clips have the upper 8, or with pixels: gray16 all of them"
            )
        return found


def of_container(container: InputContainer, stream: VideoStream) -> list[str]:
    """Notes about what the container declares for its tracks. `stream`: the track that is used."""
    found = []
    tracks = picture_streams(container)
    if len(tracks) > 1:
        told = ", ".join(map(_named, tracks))
        found.append(f"{TRACKS}: {len(tracks)} tracks of pictures ({told}); {_named(stream)} is taken")
    left, right, top, bottom = _cropped(container, tracks.index(stream))
    if left or right or top or bottom:
        context = stream.codec_context
        shown = f"{context.width - left - right} x {context.height - top - bottom}"
        found.append(
            f"{CROP}: players show {shown} of {context.width} x {context.height} pixels, without {left} on the left, "
            f"{right} on the right, {top} at the top and {bottom} at the bottom"
        )
    return found


def _named(track: VideoStream) -> str:
    context = track.codec_context
    what = f"{context.width} x {context.height}" if context is not None else "of an unknown codec"
    return f"track {track.index}: {what}{', default' if is_default(track) else ''}"


def _cropped(container: InputContainer, place: int) -> Sequence[int]:
    """Pixels to crop on the left, right, top and bottom of a video track."""
    if not container.format.name.startswith(_CROPPING):
        return 0, 0, 0, 0
    found = _CUT_OFF.search(described(container, place))
    return tuple(map(int, found.groups())) if found else (0, 0, 0, 0)


def described(container: InputContainer, place: int) -> str:
    """FFmpeg's description of a video track, given its place among them; empty if there is none.

    PyAV does not expose side data of streams, so it is parsed from this.
    """
    before = av.logging.get_level()
    av.logging.set_level(av.logging.INFO)
    try:
        text = cast(Any, container).dumps_format()  # missing from PyAV's types
    finally:
        av.logging.set_level(before)
    streams = re.split(r"^ *Stream #", text, flags=re.MULTILINE)[1:]
    pictures = [stream for stream in streams if re.match(r"[^\n]*: Video: ", stream)]
    return pictures[place] if place < len(pictures) else ""
