"""Catalogs and clips: `essp.open_catalog`, `essp.decode`.

A clip is decoded in the calling process and thread, by the same reader as in a decoder: each frame is the one that a
plain decode of the file from its start gives, wherever the clip begins. Files that may be hostile are better left to
jobs, whose decoders read each file in a child process.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from essp.api.arguments import is_whole, plain, several, sides_of, uri_of, whole_number
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import read_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import BadVideo, ConfigError, NotFound
from essp_common.job.clip_spec import ClipSpec
from essp_common.messages.recipe import resize_of
from essp_common.pb.v1.messages_pb2 import Resize, Seed, Seek
from essp_common.quantities import size as in_words
from essp_common.runtime.config import Settings
from essp_common.validation import shown
from essp_common.wiring import Stores
from essp_engine.planning.plan import seek_to
from essp_engine.planning.planned_clip import even_snippets
from essp_engine.video.colour import pictures
from essp_engine.video.container import VideoFile
from essp_engine.video.geometry import GRAY, YUV420, frame_shape
from essp_engine.video.probe import probe
from essp_engine.video.reader import Reader

Interpolation = Literal["bilinear", "bicubic", "area"]
Clips = NDArray[np.uint8]
_KEPT = (YUV420, GRAY)
MOST_FRAMES = 2**31 - 1
_MOST_SIDE = 2**13


def open_catalog(uri: str | Path) -> Catalog:
    """The catalog at a path or URI, as `essp catalog build` wrote it.

    `catalog.rows` has a `VideoRow` for each video, those that cannot be used too (`row.error` says why);
    `catalog.classes` are the class names, sorted, and a class id is a position in them; `catalog.view("train")` has
    the usable videos of one split.

        catalog = essp.open_catalog("catalog.parquet")
        clip = essp.decode(catalog.view("train").rows[0], start=16, frames=16)

    Raises `NotFound`, `PermanentError` for a file that is no catalog, and `ConfigError` for a catalog of another
    version of ESSP. Object stores other than the local disk are those of the environment variable `ESSP_STORES`.
    """
    store, key = Stores(Settings().stores).resolve(uri_of("uri", uri))
    return read_catalog(store, key)


def decode(
    video: str | Path | VideoRow,
    start: int | Sequence[int] = 0,
    *,
    frames: int = 16,
    stride: int = 1,
    short_side: int | None = None,
    size: tuple[int, int] | None = None,
    interpolation: Interpolation = "area",
    clip: ClipSpec | None = None,
    strict: bool = True,
) -> Clips:
    """One clip, `(T, H, W, 3)`, or several of one video, `(N, T, H, W, 3)`; uint8, RGB, frame-exact.

    video: a path or URI, or a row of a catalog. A row is faster, since the catalog knows the keyframes; a file that is
        given by its name is checked first, as `essp catalog build` does.
    start: the first frame, from 0; a sequence of N first frames gives N clips, which are decoded in one pass. For a
        labelled segment of a file, frames are counted from the segment's first.
    frames, stride: T frames, each `stride` after the one before. Frames past the end repeat the last one.
    short_side: scale the picture, with its aspect ratio kept, so that its shorter side has this many pixels.
    size: `(height, width)` to scale to. Neither: as the video is displayed, its rotation applied.
    clip: frames, stride, size and colours in one, as a model was trained: `clip=model.clip`. Of `gray` clips
        `(T, H, W, 1)`. The first of its `snippets` begins at `start`, and each other one as far into its part of the
        video. Goes without those arguments that it stands for.
    strict: raise for a damaged frame; otherwise the frame shown last stands in for it.

        essp.decode("a.mp4", 100).shape                               # (16, 240, 320, 3)
        essp.decode("a.mp4", [0, 8], frames=8, short_side=128).shape  # (2, 8, 128, 171, 3)

    Raises `BadVideo` (`error.kind`: `vanished`, `truncated`, `damaged`, `not_video`, `changed`, ...),
    `ConfigError` for a start outside the video or a size that is none, and `NotFound` for a URI that lies in no store.
    """
    start = plain(start)
    starts = several("start", start, int)
    if clip is not None:
        if not isinstance(clip, ClipSpec):
            raise ConfigError(f"clip: {shown(clip)} is none of a model or a loader; give model.clip or loader.clip")
        if plain((frames, stride, short_side, size)) != (16, 1, None, None):
            raise ConfigError("clip: has frames, stride and size of its own; leave these out beside it")
        frames, stride, resize = clip.frames, clip.stride, resize_of(clip)
    else:
        frames = whole_number("frames", frames, 1, MOST_FRAMES)
        stride = whole_number("stride", stride, 1, MOST_FRAMES)
        resize = resize_to(short_side, size, interpolation)
    with ExitStack() as stack:
        file = _opened(stack, video)
        row = video if isinstance(video, VideoRow) else _row(str(video), file)
        clips = _room((len(starts), frames, *frame_shape(resize, row.height, row.width)))
        seeds = [seed_of(row, first, frames, stride) for first in starts]
        if clip is not None:
            for seed in seeds:
                _add_snippets(seed, row, clip)
        with Reader(file, lookahead=row.lookahead) as reader:
            for error in reader.read(seeds, resize, list(clips), strict=strict):
                if error is not None:
                    raise error
            made = [pictures(each, colour) for each, colour in zip(clips, reader.colours, strict=True)]
    if resize.pixels in _KEPT:
        clips = np.stack(made)
    return clips[0] if isinstance(start, int) else clips


def _room(shape: tuple[int, ...]) -> Clips:
    """Zeros. Raises `ConfigError` if there is no memory for them."""
    try:
        return np.zeros(shape, np.uint8)
    except (MemoryError, ValueError) as error:
        raise ConfigError(
            f"frames: {in_words(prod(shape))} are more than there is memory; take fewer or smaller ones"
        ) from error


def _opened(stack: ExitStack, video: str | Path | VideoRow) -> VideoFile:
    """The path of a local file, otherwise a file that is read in ranges and closed with `stack`."""
    uri = video.uri if isinstance(video, VideoRow) else uri_of("video", video)
    if isinstance(video, VideoRow) and video.error is not None:
        raise BadVideo(f"{video.id} cannot be used: {video.error}")
    store, key = Stores(Settings().stores).resolve(uri, video=True)
    try:
        info = store.head(key)
        path = store.local_path(key)
        file: VideoFile = stack.enter_context(store.open(key)) if path is None else path
    except NotFound as error:
        raise BadVideo(f"{uri} is not there", "vanished") from error
    if isinstance(video, VideoRow) and (video.size_bytes, video.etag) != (info.size_bytes, info.etag):
        raise BadVideo(f"{uri} is not the file that the catalog was built from; build it again", "changed")
    return file


def _row(name: str, file: VideoFile) -> VideoRow:
    """What a catalog would hold of the whole file."""
    facts = probe(file)
    found = {field.name: getattr(facts, field.name) for field in fields(facts)}
    return VideoRow(name, name, "", "", 0, "", last_frame=facts.frame_count - 1, **found)


def seed_of(row: VideoRow, start: int, frames: int, stride: int) -> Seed:
    """The recipe of a clip that begins at `start` of a row. Raises `ConfigError` for a start outside it."""
    length = row.last_frame - row.first_frame + 1
    if not is_whole(start) or not 0 <= start < length:
        raise ConfigError(f"start={shown(start)}: {row.id} has frames 0 to {length - 1}")
    first = row.first_frame + start
    seed = Seed(first_frame=first, frame_count=frames, stride=stride, last_frame=row.last_frame)
    seek = Seek()
    if seek_to(row, first, seek):
        seed.seek.CopyFrom(seek)
    return seed


def _add_snippets(seed: Seed, row: VideoRow, clip: ClipSpec) -> None:
    for first in even_snippets(row, clip, seed.first_frame):
        snippet = seed.later.add(first_frame=first)
        seek_to(row, first, snippet.seek)


def resize_to(short_side: Any, size: Any, interpolation: Any) -> Resize:
    """What `short_side` and `size` ask for. Raises `ConfigError` if both do, or for a size that is none."""
    methods = get_args(Interpolation)
    if not isinstance(interpolation, str) or interpolation not in methods:
        raise ConfigError(f"interpolation: {shown(interpolation)} is none of {', '.join(methods)}")
    if short_side is not None and size is not None:
        raise ConfigError("give short_side or size, not both")
    if size is not None:
        height, width = sides_of("size", size, _MOST_SIDE, square=False)
        return Resize(mode=Resize.EXACT, height=height, width=width, interpolation=interpolation)
    if short_side is not None:
        height = whole_number("short_side", short_side, 1, _MOST_SIDE)
        return Resize(mode=Resize.SHORT_SIDE, height=height, interpolation=interpolation)
    return Resize(mode=Resize.NONE)
