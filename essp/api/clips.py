"""Catalogs and clips: `essp.open_catalog`, `essp.decode`.

A clip is decoded in the calling process and thread, by the same reader as in a decoder: wherever the clip begins, its
frames are identical to those of a plain decode of the file from the start. For untrusted files use a job: its decoders
read each file in a child process.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from math import isfinite, prod
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from essp.api.arguments import is_whole, plain, several, sides_of, uri_of, whole_number
from essp.api.contents import Contents, is_contents, name_of_contents, opened_contents
from essp.api.loader_arguments import Clip
from essp.frame_folders import found_video
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import read_catalog
from essp_common.catalog.notes import is_depth
from essp_common.catalog.rows import VideoRow
from essp_common.catalog.timing import Timing
from essp_common.errors import BadVideo, ConfigError, NotFound
from essp_common.job.clip_spec import ClipSpec
from essp_common.messages.recipe import resize_of
from essp_common.pb.v1.messages_pb2 import Resize, Seed, Seek
from essp_common.quantities import size as in_words
from essp_common.runtime.config import Settings
from essp_common.validation import shown
from essp_common.wiring import Stores
from essp_engine.planning.plan import seek_to
from essp_engine.planning.planned_clip import even_snippets, places_in
from essp_engine.seeding.seeds import clip_seed
from essp_engine.video.colour import Colour, pictures
from essp_engine.video.container import VideoFile
from essp_engine.video.geometry import GRAY, GRAY16, YUV420, frame_dtype, frame_shape
from essp_engine.video.probe import probe, tolerant
from essp_engine.video.reader import Reader

Interpolation = Literal["bilinear", "bicubic", "area"]
Clips = NDArray[Any]
_KEPT = (YUV420, GRAY)
MOST_FRAMES = 2**31 - 1
_MOST_SIDE = 2**13


def open_catalog(uri: str | Path) -> Catalog:
    """Read the catalog at a path or URI, as written by `essp catalog build`.

    `catalog.rows` has a `VideoRow` for each video, also for unusable ones (`row.error` says why); `catalog.classes` are
    the sorted class names, and a class id is an index into them; `catalog.view("train")` has the usable videos of one
    split.

        catalog = essp.open_catalog("catalog.parquet")
        clip = essp.decode(catalog.view("train").rows[0], start=16, frames=16)

    Raises `NotFound`, `PermanentError` if the file is not a catalog, and `ConfigError` for a catalog of another version
    of ESSP. The environment variable `ESSP_STORES` names object stores other than the local disk.
    """
    store, key = Stores(Settings().stores).resolve(uri_of("uri", uri))
    return read_catalog(store, key)


def decode(
    video: str | Path | VideoRow | Contents,
    start: int | Sequence[int] = 0,
    *,
    at_s: float | Sequence[float] | NDArray[np.floating[Any]] | None = None,
    frames: int = 16,
    stride: int = 1,
    short_side: int | None = None,
    size: tuple[int, int] | None = None,
    interpolation: Interpolation = "area",
    clip: ClipSpec | Clip | None = None,
    strict: bool = True,
) -> Clips:
    """Decode one clip, `(T, H, W, 3)`, or several clips of one video, `(N, T, H, W, 3)`; uint8, RGB, frame-exact.

    video: a path or URI, or a row of a catalog. A row is faster, since the catalog knows the keyframes; without a row,
        the file is checked first, as by `essp catalog build`. Also a folder of frames (`run_01`), or a pattern of their
        names (`run_01/img_%05d.jpg`, `run_01/img_*.png`); the bytes of a file (`bytes`, `bytearray`, `memoryview`); or
        an open binary file: it is read from its beginning and stays open, and if it is not seekable, it may have 1 GiB.
    start: the first frame, from 0; a sequence of N first frames gives N clips, decoded in one pass. For a labelled
        segment of a file, frames count from the first frame of the segment.
    at_s: seconds, instead of `start`, `frames` and `stride`: the frame that the video shows at each moment, that is,
        the last one that has appeared by then. One moment gives one frame `(H, W, 3)`, a sequence of N moments gives
        `(N, H, W, 3)`, in any order and with repetitions. Seconds count from the beginning of the file, as a player
        counts; for a labelled segment, from its first frame. They are compared with the file's timestamps; for a row
        of a catalog with a constant rate, with that rate. Before the first frame and after the end a video shows
        nothing: with `strict` that is an error, otherwise the first or the last frame.
    frames, stride: T frames at a distance of `stride` frames. Frames past the end repeat the last one.
    short_side: scale frames so that the shorter side has this many pixels, and keep the aspect ratio.
    size: `(height, width)` to scale to. Without `short_side` and `size`, frames keep their displayed size, rotated as
        the video says.
    clip: frames, stride or times of frames, size and pixel format in one: an `essp.Clip`, or as a model was trained,
        `clip=model.clip`. `gray` clips are `(T, H, W, 1)`, and `gray16` clips, too, as uint16. The first of its
        `snippets` begins at `start`, and each other one at the same offset into its part of the video. It excludes
        `frames`, `stride`, `short_side`, `size` and `interpolation`.
    strict: raise for a damaged frame, and for a moment at which the video shows nothing; otherwise the last good frame
        replaces it.

        essp.decode("a.mp4", 100).shape                               # (16, 240, 320, 3)
        essp.decode("a.mp4", [0, 8], frames=8, short_side=128).shape  # (2, 8, 128, 171, 3)
        essp.decode("a.mp4", at_s=[0.5, 2, 0.5]).shape                # (3, 240, 320, 3)
        essp.decode(open("a.mp4", "rb").read(), at_s=1.25).shape      # (240, 320, 3)
        essp.decode("a.mp4", clip=essp.Clip(frames=8, max_pixels=50_000)).shape  # (8, 168, 252, 3)

    Raises `BadVideo` (`error.kind`: `vanished`, `truncated`, `damaged`, `not_video`, `changed`, ...), `ConfigError` for
    an invalid argument, such as a start outside the video, or colours of a depth camera, and `NotFound` for a URI
    outside all stores.
    """
    start = plain(start)
    if at_s is not None:
        _refuse_beside("at_s", clip=(clip, None), start=(start, 0), frames=(frames, 16), stride=(stride, 1))
        return _moments(video, plain(at_s), resize_to(short_side, size, interpolation), bool(strict))
    starts = several("start", start, int)
    if clip is not None:
        if isinstance(clip, Clip):
            clip = ClipSpec.model_validate(clip._job_section())
        if not isinstance(clip, ClipSpec):
            raise ConfigError(
                f"must be essp.Clip(...), model.clip or loader.clip, got {shown(clip)}", field="clip", code="type"
            )
        sizes = {"short_side": (short_side, None), "size": (size, None), "interpolation": (interpolation, "area")}
        _refuse_beside("clip", frames=(frames, 16), stride=(stride, 1), **sizes)
        frames, resize = clip.frames, resize_of(clip)
    else:
        frames = whole_number("frames", frames, 1, MOST_FRAMES)
        stride = whole_number("stride", stride, 1, MOST_FRAMES)
        resize = resize_to(short_side, size, interpolation)
    with ExitStack() as stack:
        file = _opened(stack, video)
        row = video if isinstance(video, VideoRow) else _row(video, file, strict)
        _refuse_colours(row, resize)
        clips = _zeros((len(starts), frames, *frame_shape(resize, row.height, row.width)), frame_dtype(resize))
        if clip is None:
            seeds = [seed_of(row, first, frames, stride) for first in starts]
        else:
            seeds = [_seed_of_clip(row, clip, first) for first in starts]
        with Reader(file, lookahead=row.lookahead, declared=row.declared) as reader:
            for error in reader.read(seeds, resize, list(clips), strict=strict):
                if error is not None:
                    raise error
            made = [pictures(each, colour) for each, colour in zip(clips, reader.colours, strict=True)]
    if resize.pixels in _KEPT:
        clips = np.stack(made) if made else pictures(_zeros(clips.shape[1:]), Colour())[np.newaxis][:0]
    return clips[0] if isinstance(start, int) else clips


def _moments(video: str | Path | VideoRow | Contents, at_s: Any, resize: Resize, strict: bool) -> Clips:
    """The frames shown at these moments."""
    several_given = isinstance(at_s, (list, tuple, range))
    seconds = list(at_s) if several_given else [at_s]
    for second in seconds:
        if isinstance(second, bool) or not isinstance(second, (int, float)) or not isfinite(second):
            raise ConfigError(f"must be seconds, or a list of them, got {shown(at_s)}", field="at_s", code="type")
    with ExitStack() as stack:
        file = _opened(stack, video)
        row = video if isinstance(video, VideoRow) else _row(video, file, strict, timed=True)
        numbers = _shown_at(row, seconds, strict)
        _refuse_colours(row, resize)
        frames = _zeros((len(numbers), *frame_shape(resize, row.height, row.width)))
        seeds = [seed_of(row, number - row.first_frame, 1, 1) for number in numbers]
        with Reader(file, lookahead=row.lookahead, declared=row.declared) as reader:
            for error in reader.read(seeds, resize, [frame[None] for frame in frames], strict=strict):
                if error is not None:
                    raise error
    return frames if several_given else frames[0]


def _shown_at(row: VideoRow, seconds: Sequence[float], strict: bool) -> list[int]:
    """The number of the frame in the file for each moment. Raises `ConfigError`."""
    timing = Timing(row)
    if not timing.known:
        raise ConfigError(
            f"{row.id} does not give the times of its frames; choose frames by `start`",
            field="at_s",
            code="unsupported",
        )
    whole = not row.first_frame and row.last_frame == row.frame_count - 1
    zero_s = 0.0 if whole else timing.shown_s(row.first_frame)
    found = []
    for second in seconds:
        number = timing.last_shown(zero_s + second)
        if strict and (number is None or not row.first_frame <= number <= row.last_frame):
            begin, end = (timing.shown_s(frame) - zero_s for frame in (row.first_frame, row.last_frame + 1))
            raise ConfigError(
                f"{row.id} shows its frames from {begin:g} s to {end:g} s, and nothing at {second:g} s; with "
                "strict=False you get its nearest frame",
                field="at_s",
                code="range",
            )
        if number is None:
            number = row.first_frame if zero_s + second < timing.shown_s(row.first_frame) else row.last_frame
        found.append(min(max(number, row.first_frame), row.last_frame))
    return found


def _refuse_colours(row: VideoRow, resize: Resize) -> None:
    """Raises `ConfigError` for colours of a depth camera."""
    if is_depth(row.notes) and resize.pixels != GRAY16:
        raise ConfigError(
            f"{row.id} has distances of a depth camera, which other formats round; use Clip(pixels='gray16')",
            field="clip.pixels",
            code="conflict",
        )


def _refuse_beside(argument: str, **others: tuple[Any, Any]) -> None:
    """Raises `ConfigError` for an argument that is replaced by another one. `others`: value and default of each."""
    for name, (value, default) in others.items():
        given = plain(value)
        if given is not None if default is None else given != default:
            raise ConfigError(f"`{argument}` replaces it; give one of the two", field=name, code="conflict")


def _zeros(shape: tuple[int, ...], dtype: str = "uint8") -> NDArray[Any]:
    """Raises `ConfigError` if there is not enough memory."""
    try:
        return np.zeros(shape, dtype)
    except (MemoryError, ValueError) as error:
        raise ConfigError(
            f"{in_words(prod(shape))} do not fit into memory; decode fewer or smaller frames",
            field="frames",
            code="range",
        ) from error


def _opened(stack: ExitStack, video: str | Path | VideoRow | Contents) -> VideoFile:
    """The path of a local file, or else a binary file; one that is opened here is closed with `stack`."""
    if not isinstance(video, (str, Path, VideoRow)) and is_contents(video):
        return opened_contents("video", video)
    uri = video.uri if isinstance(video, VideoRow) else uri_of("video", video)
    if isinstance(video, VideoRow) and video.error is not None:
        raise BadVideo(f"{video.id} cannot be used: {video.error}")
    stores = Stores(Settings().stores)
    stores.resolve(uri, video=True)  # raises for a URI outside all stores
    try:
        _, store, key, info = found_video(uri, stores)
        path = store.local_path(key)
        file: VideoFile = stack.enter_context(store.open(key)) if path is None else path
    except NotFound:
        raise BadVideo(f"{uri} does not exist", "vanished") from None
    if isinstance(video, VideoRow) and (video.size_bytes, video.etag) != (info.size_bytes, info.etag):
        copied = video.size_bytes == info.size_bytes
        cure = "build the catalog again" + (", or for copies run `essp catalog relocate CATALOG`" if copied else "")
        raise BadVideo(f"{uri} is not the file that the catalog was built from; {cure}", "changed")
    return file


def _row(video: object, file: VideoFile, strict: bool, *, timed: bool = False) -> VideoRow:
    """The row that a catalog would have for the whole file. Unless `strict`, a damaged file has one, too."""
    name = name_of_contents(video) if is_contents(video) else str(video)
    facts = (probe if strict else tolerant)(file, timed=timed)
    found = {field.name: getattr(facts, field.name) for field in fields(facts)}
    return VideoRow(name, name, "", "", 0, "", last_frame=facts.frame_count - 1, **found)


def seed_of(row: VideoRow, start: int, frames: int, stride: int) -> Seed:
    """The recipe of a clip that begins at `start` of a row. Raises `ConfigError` for a start outside it."""
    first = _first_frame(row, start)
    seed = Seed(first_frame=first, frame_count=frames, stride=stride, last_frame=row.last_frame)
    seek = Seek()
    if seek_to(row, first, seek):
        seed.seek.CopyFrom(seek)
    return seed


def _seed_of_clip(row: VideoRow, clip: ClipSpec, start: int) -> Seed:
    first = _first_frame(row, start)
    begin, _ = places_in(row, clip)
    if clip.of_whole_video and first != begin:
        if start:
            raise ConfigError(
                f"a clip that covers its whole video begins at frame {begin - row.first_frame} of {row.id}, not at "
                f"{start}",
                field="start",
                code="range",
            )
        first = begin
    return clip_seed(row, clip, first, even_snippets(row, clip, first))


def _first_frame(row: VideoRow, start: int) -> int:
    """The number in the file of a frame of a row. Raises `ConfigError` if the row has no such frame."""
    length = row.last_frame - row.first_frame + 1
    if not is_whole(start) or not 0 <= start < length:
        raise ConfigError(
            f"must be a frame of {row.id}, from 0 to {length - 1}, got {shown(start)}",
            field="start",
            code="range" if is_whole(start) else "type",
        )
    return row.first_frame + start


def resize_to(short_side: Any, size: Any, interpolation: Any) -> Resize:
    """The scaling for these arguments. Raises `ConfigError`."""
    methods = get_args(Interpolation)
    if not isinstance(interpolation, str) or interpolation not in methods:
        raise ConfigError(
            f"must be one of {', '.join(methods)}, got {shown(interpolation)}", field="interpolation", code="unknown"
        )
    if short_side is not None and size is not None:
        raise ConfigError("give short_side or size, not both", field="size", code="conflict")
    if size is not None:
        height, width = sides_of("size", size, _MOST_SIDE, square=False)
        return Resize(mode=Resize.EXACT, height=height, width=width, interpolation=interpolation)
    if short_side is not None:
        height = whole_number("short_side", short_side, 1, _MOST_SIDE)
        return Resize(mode=Resize.SHORT_SIDE, height=height, interpolation=interpolation)
    return Resize(mode=Resize.NONE)
