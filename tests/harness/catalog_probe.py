"""A stand-in for reading videos: the file's text says what it is like to read it.

A number is a sound video of so many frames. Each reading leaves a line in the file's name + `.readings`, which is the
evidence of what a build has really opened.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from essp_common.errors import BadVideo, Unavailable
from essp_engine.video.probe import VideoFacts

PROBE = "tests.harness.catalog_probe:probe"


def probe(file: str | BinaryIO) -> VideoFacts:
    if isinstance(file, str):
        with open(file + ".readings", "a", encoding="ascii") as readings:
            readings.write("read\n")
        text = Path(file).read_text(encoding="ascii")
    else:
        text = file.read().decode("ascii")
    if text == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if text == "hang":
        threading.Event().wait()
    if text == "busy":
        while True:
            sum(range(1000))
    if text == "damaged":
        raise BadVideo("a block of it is broken")
    if text == "down":
        raise Unavailable("the store does not answer", retry_after_s=0.0)
    if text == "away" and isinstance(file, str) and len(Path(file + ".readings").read_text().split()) < 3:
        raise Unavailable("the store does not answer")
    if text == "away":
        return facts(60)
    if text == "impossible":
        return replace(facts(30), keyframe_frame=(0, 0, 20))
    return facts(int(text))


def facts(frames: int) -> VideoFacts:
    """A sound video of so many frames, 25 a second, with a keyframe every 10."""
    places = tuple(range(0, frames, 10))
    return VideoFacts(
        container="mov",
        codec="h264",
        pixel_format="yuv420p",
        width=320,
        height=240,
        rotation=90,
        fps=25.0,
        duration_s=frames / 25,
        start_s=0.0,
        timestamps=b"",
        time_base=(1, 12800),
        frame_count=frames,
        seekable=True,
        lookahead=1,
        keyframe_pts=tuple(512 * place for place in places),
        keyframe_frame=places,
        keyframe_offset=tuple(48 + place for place in places),
    )
