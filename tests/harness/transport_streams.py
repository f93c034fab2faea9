"""MPEG-TS with a stream that is not there from the beginning."""

from __future__ import annotations

import io
from typing import Any

import av

FRAMES = 1325


def with_late_sound() -> bytes:
    """A recording of `FRAMES` frames of 64x48, 25 a second, that has sound for one second in its middle."""
    return _transport(300) + _transport(25, 300, sound=True) + _transport(FRAMES - 325, 325)


def _transport(frames: int, first: int = 0, *, sound: bool = False) -> bytes:
    """From this frame on."""
    written = io.BytesIO()
    with av.open(written, "w", format="mpegts") as container:
        video: Any = container.add_stream("mpeg2video", rate=25, options={"bf": "0"})
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        audio: Any = container.add_stream("mp2", rate=48_000, layout="mono") if sound else None
        for number in range(first, first + frames):
            picture = av.VideoFrame(64, 48, "yuv420p")
            picture.pts = number
            container.mux(video.encode(picture))
            if audio is not None:
                silence = av.AudioFrame("s16p", "mono", 1152)
                silence.sample_rate, silence.pts = 48_000, number * 1920
                container.mux(audio.encode(silence))
        container.mux(video.encode())
    return written.getvalue()
