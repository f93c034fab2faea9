"""Previews of a feature, as a picture of a few frames or as a video; each frame has its feature below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from essp.folders import written
from essp_common.errors import BadVideo, ConfigError
from essp_common.job.feature_layout import FeatureLayout
from essp_common.pb.v1.messages_pb2 import Resize, Seed
from essp_engine.features import registry
from essp_engine.features.drawing import Drawing, Picture, drawing, fullest_of, grid
from essp_engine.features.intermediates import Intermediates, extract_with
from essp_engine.features.port import Extractor, TrackingExtractor
from essp_engine.features.sampling import evenly_spaced
from essp_engine.video.geometry import output_size
from essp_engine.video.motion_layout import motion_shape
from essp_engine.video.probe import probe
from essp_engine.video.reader import Reader
from essp_engine.video.synthetic import Encoding, write_video

_COLUMNS = 5  # frames in a picture


@dataclass(frozen=True)
class Preview:
    """What to show."""

    feature: str
    params: Mapping[str, Any]
    start: int
    frames: int
    short_side: int


def write_preview(video: Path, out: Path, preview: Preview) -> str:
    """Write the picture or the video.

    Returns how to read it; an empty text if it shows ordinary frames. Raises `ConfigError` for what cannot be drawn,
    `BadVideo` for a damaged file.
    """
    if out.suffix not in (".png", ".mp4"):
        raise ConfigError(f"{out}: a preview is a .png or an .mp4")
    extractor = registry.create(preview.feature, preview.params)
    extractor.setup()
    needed = extractor.frames_needed()
    clip = _read(video, preview, needed if out.suffix == ".png" else preview.frames + needed - 1)
    feature = extract_with(extractor, clip.part(0, needed))
    layout = registry.layout_of(preview.feature)
    fullest = fullest_of(feature, layout)
    drawn = _drawn(extractor, layout, clip.frames, feature, fullest)
    if out.suffix == ".png":
        _write_picture(out, _sheet(drawn.pictures, clip.frames))
    else:
        encoding = Encoding(fps=round(probe(str(video)).fps) or 25)
        with written(out):
            write_video(out, _strips(preview, extractor, layout, clip, fullest), encoding)
    return drawn.words


class _Clip(NamedTuple):
    """Frames `(T, H, W, 3)`, and their motion if the feature needs it."""

    frames: NDArray[np.uint8]
    motion: NDArray[np.int16] | None

    def part(self, start: int, stop: int) -> Intermediates:
        """Some of the frames, for an extractor."""
        motion = None if self.motion is None else self.motion[start:stop]
        return Intermediates(self.frames[start:stop], motion=motion)


def _read(video: Path, preview: Preview, count: int) -> _Clip:
    """`count` frames from the first one shown; the last frame of the file is repeated as needed."""
    try:
        facts = probe(str(video))
    except BadVideo as error:
        raise BadVideo(f"{video}: {error}") from error
    if preview.start >= facts.frame_count:
        raise ConfigError(
            f"{video} has {facts.frame_count} frames; --start {preview.start} is past its end",
            field="--start",
            code="range",
        )
    resize = Resize(mode=Resize.SHORT_SIDE, height=preview.short_side, interpolation="area")
    seed = Seed(first_frame=preview.start, frame_count=count, stride=1, last_frame=facts.frame_count - 1)
    clip = np.zeros((count, *output_size(resize, facts.height, facts.width), 3), np.uint8)
    moves = registry.needs_of(preview.feature) == "motion"
    motion = np.zeros((count, *motion_shape(*clip.shape[1:3])), np.int16)
    try:
        with Reader(str(video), motion=moves) as reader:
            (fault,) = reader.read([seed], resize, [clip], strict=False, motions=[motion] if moves else ())
    except BadVideo as error:
        raise BadVideo(f"{video}: {error}") from error
    if fault is not None:
        raise BadVideo(f"{video}: {fault}") from fault
    return _Clip(clip, motion if moves else None)


def _sheet(drawn: Sequence[Picture], clip: NDArray[np.uint8]) -> Picture:
    shown = evenly_spaced(len(drawn), min(_COLUMNS, len(drawn)))
    return grid([[clip[min(i, len(clip) - 1)] for i in shown], [drawn[i] for i in shown]])


def _strips(
    preview: Preview, extractor: Extractor, layout: FeatureLayout, clip: _Clip, fullest: float
) -> Iterator[Picture]:
    """One picture per frame.

    A stack of n fields serves n frames, so nothing is extracted twice. `fullest`: one scale for the whole video, to
    avoid flicker.
    """
    needed = extractor.frames_needed()
    start = 0
    while start < preview.frames:
        feature = extract_with(extractor, clip.part(start, start + needed))
        drawn = _drawn(extractor, layout, clip.frames[start:], feature, fullest).pictures[: preview.frames - start]
        for offset, picture in enumerate(drawn):
            strip = grid([[clip.frames[start + min(offset, needed - 1)]], [picture]])
            yield strip[: strip.shape[0] // 2 * 2, : strip.shape[1] // 2 * 2]  # 4:2:0 needs even sides
        start += len(drawn)


def _drawn(
    extractor: Extractor, layout: FeatureLayout, clip: NDArray[np.uint8], array: NDArray[Any], fullest: float
) -> Drawing:
    """The pictures of a feature, at the size of the clip; tracks are drawn on a frame."""
    height, width = clip.shape[1:3]
    if isinstance(extractor, TrackingExtractor):
        return Drawing([_with_tracks(clip[0], extractor.paths(array))], "green: the path of a point; red: its end")
    made = drawing(array, layout, fullest)
    return made._replace(pictures=[_fitted(picture, height, width) for picture in made.pictures])


def _fitted(picture: Picture, height: int, width: int) -> Picture:
    if picture.shape[:2] == (height, width):
        return picture
    # Enlarge with nearest neighbour; where several numbers share a pixel, show their mean.
    smaller = picture.shape[0] > height or picture.shape[1] > width
    kind = cv2.INTER_AREA if smaller else cv2.INTER_NEAREST
    return np.asarray(cv2.resize(picture, (width, height), interpolation=kind), np.uint8)


def _with_tracks(frame: Picture, paths: Sequence[NDArray[np.float32]]) -> Picture:
    drawn = frame // 2
    for path in paths:
        points = np.rint(path).astype(np.int32)
        cv2.polylines(drawn, [points], isClosed=False, color=(0, 255, 0), lineType=cv2.LINE_AA)
        cv2.circle(drawn, points[-1].tolist(), 1, (255, 0, 0), cv2.FILLED)
    return drawn


def _write_picture(out: Path, picture: Picture) -> None:
    _, encoded = cv2.imencode(".png", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    with written(out):
        out.write_bytes(encoded.tobytes())
