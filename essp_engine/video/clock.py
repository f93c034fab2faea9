"""The timing of a video: its frame rate, its length, and its timestamps if the rate varies.

A container's declarations are not reliable: FFmpeg reports 1000 frames per second for intact FLV and Matroska files,
and one mean rate for a recording that stands still for ten seconds. Timestamps decide.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

_FINE = 2.0
"""From this many ticks per frame, the clock is finer than the frames, so that rounding explains an error of one
tick."""

_RUN_IN_S = 0.25
"""Longer than the run-in of any audio codec: AAC and Opus take up to 80 ms."""
_MICROSECOND = 1e-6


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a video's frames, in seconds from the beginning of the file."""

    fps: float
    duration_s: float
    start_s: float
    stamps: tuple[int, ...] = ()
    """Timestamps of the frames in ticks, if the rate varies; otherwise `fps` gives each to within a tick."""


def measure(
    stamps: Sequence[int | None],
    time_base: Fraction,
    declared: float,
    last_duration: int,
    begin_s: float,
    decoded: Sequence[int | None] = (),
) -> Times:
    """The times of frames with these timestamps, in display order.

    `declared`: the container's rate, which is used if timestamps are missing, or agree with it to within a tick.
    `decoded`: the decoding times of packets, in ticks; they give the rate if timestamps are not display times, as in
    AVI with B-frames. `last_duration`: ticks for which the last frame is shown, 0 if unknown. `begin_s`: when the file
    begins, on its clock.

    A clock may begin anywhere, even below zero: FFmpeg counts MPEG-TS up to zero at its 33-bit overflow. Only if the
    video itself begins at zero or later is a beginning just below zero not such a clock: it is the run-in of the audio,
    which players skip.
    """
    count = len(stamps)
    known = [stamp for stamp in stamps if stamp is not None]
    ticks = np.array(known, np.int64)
    if len(known) < count or count < 2 or not time_base or (np.diff(ticks) < 0).any() or ticks[0] == ticks[-1]:
        fps = _rate(decoded, time_base, declared)
        return Times(fps, count / fps if fps else 0.0, 0.0)
    first_s = float(known[0] * time_base)
    start_s = first_s - (begin_s if first_s < 0 or abs(begin_s) > _RUN_IN_S else max(0.0, begin_s))
    start_s = start_s if abs(start_s) > _MICROSECOND else 0.0  # FFmpeg rounds the beginning of a file to this
    span = int(ticks[-1] - ticks[0])
    period = span / (count - 1)
    off = np.abs(ticks - ticks[0] - np.arange(count) * period).max()
    if off > (1.0 if period >= _FINE else 0.0) + 1e-6:
        last = last_duration or int(np.median(np.diff(ticks)))
        duration_s = float((span + last) * time_base)
        return Times(count / duration_s, duration_s, start_s, tuple(known))
    fps = _agreed(declared, span, count, time_base)
    return Times(fps, count / fps, start_s)


def _rate(decoded: Sequence[int | None], time_base: Fraction, declared: float) -> float:
    """The rate at which packets are decoded, if it is constant; otherwise the declared rate."""
    known = [stamp for stamp in decoded if stamp is not None]
    steps = np.diff(np.array(known, np.int64))
    if len(known) < len(decoded) or not len(steps) or not time_base or steps.min() <= 0 or np.ptp(steps) > 1:
        return declared
    return _agreed(declared, known[-1] - known[0], len(known), time_base)


def _agreed(declared: float, span: int, count: int, time_base: Fraction) -> float:
    """The declared rate, if `count` frames at that rate take `span` ticks, to within one; otherwise the rate from the
    ticks."""
    if declared and abs((count - 1) / declared / float(time_base) - span) <= 1.0 + 1e-6:
        return declared
    return float(1 / (Fraction(span, count - 1) * time_base))


def pack(stamps: Sequence[int]) -> bytes:
    """Timestamps in the catalog's format (`essp_common/catalog/timing.py` reads them): differences, compressed."""
    return zlib.compress(np.diff(np.asarray(stamps, np.int64)).astype("<i8").tobytes())
