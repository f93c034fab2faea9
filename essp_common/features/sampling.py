"""Chooses the frames of a clip that a feature uses. Extractors, and trainers that read `rgb` directly, share this rule.

Both functions choose around the middle of the clip, so the single frame of an appearance stream lies inside the window
of the motion stream of the same clip.
"""

from __future__ import annotations

from essp_common.errors import BadFrames


def evenly_spaced(frame_count: int, wanted: int) -> list[int]:
    """The middle frames of `wanted` equal segments of a clip (Wang et al., Temporal Segment Networks, 2016).

    For one wanted frame, it is the middle of the clip. Raises `BadFrames` if the clip has fewer frames than wanted.
    """
    if frame_count < wanted:
        raise BadFrames(f"the clip has {frame_count} frame(s), {wanted} are needed; raise clip.frames")
    return [(2 * i + 1) * frame_count // (2 * wanted) for i in range(wanted)]


def centre_window(frame_count: int, length: int) -> slice:
    """The `length` consecutive frames in the middle of a clip. Of two windows in the middle, the earlier one.

    Raises `BadFrames` if the clip has fewer frames.
    """
    if frame_count < length:
        raise BadFrames(f"the clip has {frame_count} frame(s), {length} are needed; raise clip.frames")
    start = (frame_count - length) // 2
    return slice(start, start + length)
