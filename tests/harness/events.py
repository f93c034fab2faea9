"""A few events, each filmed by two cameras: one with a steady rate, one slower, or with a varying one, that began
later."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from essp.catalog.build import BuildOptions, build
from essp_engine.video.synthetic import Encoding, numbered, write_video

FPS = 30
LATE_S = (0.0, 0.25, 0.5)
"""By so much the clock of the second camera is ahead, in turn."""


def write_events(folder: Path, count: int = 6) -> Path:
    """The catalog of such events."""
    lines = ["path:left,path:right,label,start_s:right"]
    for number in range(count):
        left, right = folder / f"{number}-left.mp4", folder / f"{number}-right.mkv"
        write_video(left, numbered(36, 64, 48, number), Encoding("h264", fps=FPS, gop=6))
        slow = Encoding("h264", fps=12, gop=5, intervals=(1, 1, 2) if number % 2 else ())
        write_video(right, numbered(24, 48, 48, 100 + number), slow)
        lines.append(f"{left.name},{right.name},{'ab'[number % 2]},{LATE_S[number % len(LATE_S)] or ''}")
    (folder / "events.csv").write_text("\n".join(lines))
    build(f"file://{folder}/events.csv", f"file://{folder}/c.parquet", ("file:///",), BuildOptions())
    return folder / "c.parquet"


def plainly_decoded(uri: str) -> tuple[list[float], list[NDArray[np.uint8]]]:
    """Times and frames of a file, decoded from its start."""
    with av.open(uri.removeprefix("file://")) as container:
        frames = list(container.decode(video=0))
        times = [float(frame.time or 0) for frame in frames]
        return times, [np.asarray(frame.to_ndarray(format="rgb24"), np.uint8) for frame in frames]


def last_shown(times: list[float], moment_s: float) -> int:
    """The last frame that has appeared at a moment; frames up to a millisecond later count as simultaneous."""
    return max(0, bisect_right(times, moment_s + 1e-3) - 1)


def in_step(meta: dict[str, list[Any]], clip: int, back: range, late_s: float) -> list[int]:
    """The frames that the right camera shows `back` frames of the left one before the end of a clip of a batch."""
    times, late = (plainly_decoded(meta["uris"][clip][view])[0] for view in ("left", "right"))
    end = meta["frame_numbers"][clip]["left"][-1]
    return [last_shown(late, times[end - frames] + late_s) for frames in back]
