"""Pictures of a stream's current clips, read from the frame cache without affecting its consumers.

A preview only reads: it acks nothing, so it never frees, keeps or rebuilds a clip. It costs the cache little: one value
at a time, of at most `MOST_BYTES`, and one picture per stream and second, however many users watch. The master never
waits for a preview, and a missing value is not an error of the job.

The frames are those that the stream's consumers read, before a trainer crops and flips them. Features are drawn
according to their kind (`essp_engine/features/drawing.py`).
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from essp_common.cache.port import Buffer, FrameCache
from essp_common.errors import BadFrames, CacheMiss, ConfigError, NotFound, Unavailable
from essp_common.job.clip_spec import StreamSpec
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.spec import JobSpec
from essp_common.job.status import StreamPreview, purpose_name
from essp_common.quantities import size
from essp_engine.features.drawing import Drawing, Picture, drawing, grid
from essp_engine.features.sampling import evenly_spaced, wanted_frames
from essp_engine.video import codec, colour
from essp_engine.video.joined import has_motion, is_joined, separate
from essp_master.job.stored_clips import StoredClip

MOST_BYTES = 16 * 2**20
"""Limit for the value that is read, and for its decoded form."""
MOST_PICTURES = 6
_LONGEST_SIDE = 256
"""In pixels; larger pictures are scaled down."""
_QUALITY = 85
_FRESH_S = 1.0
_PATIENCE_S = 2.0
"""How long a request waits for the drawing of another one."""


class Previews:
    """Draws values from a cache. Thread-safe."""

    def __init__(self, cache: FrameCache, clock: Callable[[], float] = time.monotonic) -> None:
        self._cache = cache
        self._clock = clock
        self._busy = threading.Lock()
        self._drawn: dict[tuple[str, str], tuple[StreamPreview, float]] = {}
        """By job and stream: the last picture, and when it was drawn."""

    def of(self, spec: JobSpec, stream: str, layout: FeatureLayout, clips: Sequence[StoredClip]) -> StreamPreview:
        """Return pictures of the first of these clips that is still in the cache. `layout`: how to read the stream.

        Raises `NotFound` if no clip is left or it cannot be drawn, and `Unavailable` while the cache does not answer or
        is busy with other previews.
        """
        if not self._busy.acquire(timeout=_PATIENCE_S):
            raise Unavailable("pictures for others are being drawn, or the frame cache does not answer; ask again")
        try:
            now_s = self._clock()
            self._drawn = {asked: each for asked, each in self._drawn.items() if now_s - each[1] < _FRESH_S}
            drawn = self._drawn.get((spec.name, stream))
            if drawn is None:
                drawn = self._drawn[spec.name, stream] = self._look(spec, stream, layout, clips), self._clock()
            return drawn[0]
        finally:
            self._busy.release()

    def _look(self, spec: JobSpec, stream: str, layout: FeatureLayout, clips: Sequence[StoredClip]) -> StreamPreview:
        for clip in clips:
            try:
                made, count = self._pictures(spec, spec.streams[stream], layout, clip)
            except (CacheMiss, BadFrames):
                continue
            except (ConfigError, ValueError, IndexError) as error:  # a third-party feature may have any content
                raise NotFound(f"stream {stream} has no picture: {error}") from error
            return _preview(spec, stream, clip, made, count)
        if not clips:
            raise NotFound(f"no clip of stream {stream} was made since this master has job {spec.name}")
        raise NotFound(f"no clip of stream {stream} is in the cache now: each clip is consumed as soon as it is made")

    def _pictures(
        self, spec: JobSpec, stream: StreamSpec, layout: FeatureLayout, clip: StoredClip
    ) -> tuple[Drawing, int]:
        """Return an evenly spaced selection of a clip's pictures, in order, and their total number."""
        wanted = wanted_frames(spec.clip, stream)
        value = _of_stream(spec, stream, self._read(spec, clip, wanted))
        found = codec.described(value)
        frames, looked_at = _chosen(found.shape[0], wanted)
        if layout.values == "descriptor":  # all descriptors together are one picture
            frames, looked_at = list(range(found.shape[0])), found.shape[0]
        _refuse_more(found.nbytes // found.shape[0] * len(frames))
        array: NDArray[Any] = codec.decode(value, frames, found, checked=True)
        drawn = drawing(colour.pictures(array, found.colour), layout)
        count = len(drawn.pictures) * looked_at // len(frames)
        return drawn._replace(pictures=[drawn.pictures[k] for k in _chosen(len(drawn.pictures), None)[0]]), count

    def _read(self, spec: JobSpec, clip: StoredClip, wanted: int | None) -> Buffer:
        """Read the value, or, if its frames are uncompressed, only the frames to show."""
        available = spec.clip.frames
        joined = len(spec.clip.views) > 1 or spec.clip.motion
        if wanted is None or spec.clip.codec.name != "raw" or wanted >= available or joined:
            _refuse_more(clip.size_bytes)
            return self._cache.get(clip.key)
        parts = codec.raw_parts(clip.size_bytes, available, _chosen(available, wanted)[0])
        _refuse_more(sum(end - begin for begin, end in parts))
        return self._cache.get(clip.key, parts)


def _of_stream(spec: JobSpec, stream: StreamSpec, value: Buffer) -> Buffer:
    """The frames of the stream's view, or of the first one, without their motion."""
    if has_motion(value):
        return separate(value)[0]
    if is_joined(value):
        return separate(value)[list(spec.clip.views).index(stream.view) if stream.view else 0]
    return value


def _chosen(available: int, wanted: int | None) -> tuple[list[int], int]:
    """Return which of `available` frames to show, and how many are considered: `wanted` evenly spaced ones, or all."""
    looked_at = evenly_spaced(available, wanted or max(1, available))
    return [looked_at[k] for k in evenly_spaced(len(looked_at), min(MOST_PICTURES, len(looked_at)))], len(looked_at)


def _refuse_more(size_bytes: int) -> None:
    if size_bytes > MOST_BYTES:
        raise ConfigError(
            f"it would take {size(size_bytes)}, and a look takes at most {size(MOST_BYTES)}", code="range"
        )


def _preview(spec: JobSpec, stream: str, clip: StoredClip, drawn: Drawing, count: int) -> StreamPreview:
    shown = drawn.pictures
    height, width = shown[0].shape[:2]
    sheet = grid([[_smaller(picture) for picture in shown]])
    return StreamPreview(
        stream=stream,
        feature=spec.streams[stream].feature,
        purpose=purpose_name(clip.purpose, spec.kind),
        epoch=clip.epoch,
        index=clip.index,
        video=clip.video,
        class_name=clip.class_name,
        first_frame=clip.first_frame,
        height=height,
        width=width,
        pictures=count,
        shown=len(shown),
        caption=drawn.words,
        jpeg=base64.b64encode(simplejpeg.encode_jpeg(sheet, _QUALITY, "RGB", "444")).decode(),
    )


def _smaller(picture: Picture) -> Picture:
    """Scale a picture down to at most `_LONGEST_SIDE` pixels a side, by block means."""
    step = -(-max(picture.shape[:2]) // _LONGEST_SIDE)
    height, width = (side // step or 1 for side in picture.shape[:2])
    if step == 1:
        return picture
    squares = picture[: height * step, : width * step].reshape(height, -1, width, min(step, picture.shape[1]), 3)
    made: Picture = squares.mean(axis=(1, 3)).astype(np.uint8)
    return made
