"""Reads only the frames of a stored clip that a stream uses, and decodes them on the thread that read them.

A clip may have eleven frames because other streams need them for flow; a stream of one frame needs an eleventh of it.
The offsets of frames in an uncompressed clip follow from its size, so one request brings the header and these frames.
In a compressed clip only the header knows the offsets; that would take a second request, so it is read whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from essp_common.cache.port import Buffer, FrameCache
from essp_common.errors import BadFrames, ConfigError
from essp_common.job.clip_spec import ClipSpec, StreamSpec
from essp_common.quantities import counted
from essp_common.runtime.cores import cpu_count
from essp_engine.features.sampling import evenly_spaced, wanted_frames
from essp_engine.intake.ordered import Read
from essp_engine.video import codec, joined
from essp_engine.video.colour import Colour

Frames = NDArray[Any]

_MOST_FETCHES = 8
"""More Python threads than this only wait for each other."""


class Decoded(NamedTuple):
    """The frames of a clip that a stream uses."""

    frames: Frames
    colour: Colour | None
    """The meaning of the numbers if they are not RGB or a feature."""
    further: tuple[Decoded, ...] = ()
    """The same of each further view, for a stream of all views."""


class Decoding:
    """Decodes a value of the cache, or the parts of one that hold the needed frames. Thread-safe."""

    def __init__(self, wanted: int | None, view: int | None = None) -> None:
        """`wanted`: how many evenly spaced frames of each clip to decode (None: all). `view`: the number of
        the view to decode, of those that the value joins (None: the only one, or all frames of all of them)."""
        self._wanted = wanted
        self._view = view

    def __call__(self, value: Buffer) -> Decoded:
        """Raises `BadFrames`, and `ConfigError` for clips that are too short."""
        if joined.has_motion(value):
            return self._decoded(joined.separate(value)[0])
        if not joined.is_joined(value):
            return self._decoded(value)
        views = joined.separate(value)
        if self._view is not None:
            return self._decoded(views[self._view])
        first, *further = (Decoded(codec.decode(view, checked=True), codec.header(view).colour) for view in views)
        return first._replace(further=tuple(further))

    def _decoded(self, value: Buffer) -> Decoded:
        described = codec.described(value)
        if self._wanted is None:
            return Decoded(codec.decode(value, None, described, checked=True), described.colour)
        available = described.shape[0]
        if available < self._wanted:
            raise ConfigError(
                f"the clips have {counted(available, 'frame')}, but the stream needs {self._wanted}; raise clip.frames"
            )
        frames = evenly_spaced(available, self._wanted)
        return Decoded(codec.decode(value, frames, described, checked=True), described.colour)


def in_flight(clip: ClipSpec, stream: StreamSpec, cache_url: str, fetches: int) -> tuple[int, Read]:
    """How many threads fetch clips of a stream, and the function that reads each. `fetches`: the setting; 0: the best
    number."""
    wanted = wanted_frames(clip, stream)
    stored = stream.codec if wanted is None else clip.codec
    view = list(clip.views).index(stream.view) if stream.view else None
    whole = len(clip.views) > 1 and wanted is not None
    fetched = _Reading(Decoding(wanted, view), clip.frames, ()) if whole else reading(clip, wanted)
    if cache_url.startswith(("memory:", "shm:")) and stored.name == "raw":
        # There is nothing to wait for or to decode, and a whole value needs no copy, unlike its parts.
        return fetches, _Reading(fetched.decoded, clip.frames, ())
    return fetches or min(_MOST_FETCHES, cpu_count()), fetched


def reading(clip: ClipSpec, wanted: int | None) -> _Reading:
    """The function that reads and decodes `wanted` evenly spaced frames of each clip (None: features, all frames)."""
    in_parts = wanted is not None and wanted < clip.frames and clip.codec.name == "raw" and not clip.motion
    frames = evenly_spaced(clip.frames, wanted) if wanted is not None and in_parts else ()
    return _Reading(Decoding(wanted), clip.frames, frames)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A function that can be passed to another process."""

    decoded: Decoding
    available: int
    """Frames of a clip."""
    frames: Sequence[int]
    """The frames to read; empty: the whole value."""

    def __call__(self, cache: FrameCache, key: str, size_bytes: int) -> Decoded:
        if not self.frames:
            return self.decoded(cache.get(key))
        try:
            parts = codec.raw_parts(size_bytes, self.available, self.frames)
        except BadFrames:  # the message does not match the job's clips; decoding the value reports that
            return self.decoded(cache.get(key))
        return self.decoded(cache.get(key, parts))
