"""Chooses the frames of a clip that a feature uses. Extractors, and trainers that read `rgb` directly, share this rule.

Frames are chosen around the middle of the clip, so the single frame of an appearance stream is inside the window of the
motion stream of the same clip.
"""

from __future__ import annotations

from essp_common.errors import BadFrames
from essp_common.job.clip_spec import ClipSpec, StreamSpec
from essp_common.quantities import counted


def wanted_frames(clip: ClipSpec, stream: StreamSpec) -> int | None:
    """How many frames of each clip a stream of `rgb` uses; None for other features, which use the whole clip."""
    return clip.snippets * seen_at_once(stream) if stream.feature == "rgb" else None


def seen_at_once(stream: StreamSpec) -> int:
    """How many frames a network of clips sees at once: the frames of a snippet."""
    return stream.params.get("frames", 1) if stream.feature == "rgb" else 1


def evenly_spaced(frame_count: int, wanted: int) -> list[int]:
    """The middle frames of `wanted` equal segments of a clip (Wang et al., Temporal Segment Networks, 2016).

    For one wanted frame, this is the middle of the clip. If the clip has snippets and `wanted` is a multiple of their
    number, each snippet contributes equally. Raises `BadFrames` if the clip has fewer frames than wanted.
    """
    if frame_count < wanted:
        raise BadFrames(f"the clip has {counted(frame_count, 'frame')}, {wanted} are needed; raise clip.frames")
    return [(2 * i + 1) * frame_count // (2 * wanted) for i in range(wanted)]


def centred_steps(frame_count: int, every: int) -> range:
    """The indices of every `every`-th frame of a clip: the largest possible number, with equal margins at both ends.

    If the number left out is odd, one more is left out at the end. `frame_count` is at least 1.
    """
    steps = (frame_count - 1) // every
    start = (frame_count - 1 - steps * every) // 2
    return range(start, start + steps * every + 1, every)


def centre_window(frame_count: int, length: int) -> slice:
    """The `length` consecutive frames in the middle of a clip; of two possible windows, the earlier one.

    Raises `BadFrames` if the clip has fewer frames.
    """
    if frame_count < length:
        raise BadFrames(f"the clip has {counted(frame_count, 'frame')}, {length} are needed; raise clip.frames")
    start = (frame_count - length) // 2
    return slice(start, start + length)
