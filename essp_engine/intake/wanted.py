"""From a stored clip, the frames that a stream looks at: read no more than these, and decoded where it was read.

A clip of eleven frames that other streams need for flow is eleven times what a stream of one frame needs. Where the
frames of an uncompressed clip lie follows from its size, so one request brings the header and these frames. Of a
compressed clip only its header says where they lie; that would take a second request, so it is read whole.
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
from essp_common.runtime.process import cpu_count
from essp_engine.features.sampling import evenly_spaced, wanted_frames
from essp_engine.intake.ordered import Read
from essp_engine.video import codec
from essp_engine.video.colour import Colour

Frames = NDArray[Any]

_MOST_FETCHES = 8
"""Beyond that, threads of Python only wait for each other."""


class Decoded(NamedTuple):
    """The frames of a clip that a stream looks at."""

    frames: Frames
    colour: Colour | None
    """What their numbers mean if they are not RGB or a feature."""


class Decoding:
    """Decodes what the cache has handed out: a value, or the parts of one that hold the wanted frames. Thread-safe."""

    def __init__(self, wanted: int | None) -> None:
        """`wanted`: how many evenly spaced frames of each clip (None: all)."""
        self._wanted = wanted

    def __call__(self, value: Buffer) -> Decoded:
        """Raises `BadFrames`, and `ConfigError` for clips that are too short."""
        described = codec.described(value)
        if self._wanted is None:
            return Decoded(codec.decode(value, None, described, checked=True), described.colour)
        available = described.shape[0]
        if available < self._wanted:
            raise ConfigError(
                f"the clips have {counted(available, 'frame')}, the stream needs {self._wanted}; raise clip.frames"
            )
        frames = evenly_spaced(available, self._wanted)
        return Decoded(codec.decode(value, frames, described, checked=True), described.colour)


def in_flight(clip: ClipSpec, stream: StreamSpec, cache_url: str, fetches: int) -> tuple[int, Read]:
    """How many threads fetch clips of a stream, and how each is read. `fetches`: as set; 0: as many as help."""
    wanted = wanted_frames(clip, stream)
    stored = stream.codec if wanted is None else clip.codec
    if cache_url.startswith(("memory:", "shm:")) and stored.name == "raw":
        # There is nothing to wait for, and nothing to decode; and all of a value is there without a copy, unlike parts.
        return fetches, _Reading(Decoding(wanted), clip.frames, ())
    return fetches or min(_MOST_FETCHES, cpu_count()), reading(clip, wanted)


def reading(clip: ClipSpec, wanted: int | None) -> Read:
    """How to read and decode clips of which `wanted` evenly spaced frames are needed (None: features, all of them)."""
    in_parts = wanted is not None and wanted < clip.frames and clip.codec.name == "raw"
    frames = evenly_spaced(clip.frames, wanted) if wanted is not None and in_parts else ()
    return _Reading(Decoding(wanted), clip.frames, frames)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A function that another process can be given."""

    decoded: Decoding
    available: int
    """Frames of a clip."""
    frames: Sequence[int]
    """Those to read; empty: the whole value."""

    def __call__(self, cache: FrameCache, key: str, size_bytes: int) -> Decoded:
        if not self.frames:
            return self.decoded(cache.get(key))
        try:
            parts = codec.raw_parts(size_bytes, self.available, self.frames)
        except BadFrames:  # the message is of another clip than the job's; who decodes the value says so
            return self.decoded(cache.get(key))
        return self.decoded(cache.get(key, parts))
