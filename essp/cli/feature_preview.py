"""Previews of a feature: as a picture of a few frames, or as a video; each frame with its feature below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from essp.folders import written
from essp_common.errors import ConfigError
from essp_common.features import registry
from essp_common.features.drawing import Picture, fullest_speed, grid, pictures
from essp_common.features.port import Extractor
from essp_common.features.sampling import evenly_spaced
from essp_common.pb.v1.messages_pb2 import Resize, Seed
from essp_common.video.geometry import output_size
from essp_common.video.probe import probe
from essp_common.video.reader import Reader
from essp_common.video.synthetic import Encoding, write_video
from essp_extractor.features.trajectories import Trajectories

_COLUMNS = 5  # frames in a picture


@dataclass(frozen=True)
class Preview:
    """What is shown."""

    feature: str
    params: Mapping[str, Any]
    start: int
    frames: int
    short_side: int


def write_preview(video: Path, out: Path, preview: Preview) -> None:
    """Write the picture or the video. Raises `ConfigError` for what cannot be drawn, `BadVideo` for a bad file."""
    if out.suffix not in (".png", ".mp4"):
        raise ConfigError(f"{out}: a preview is a .png or an .mp4")
    extractor = registry.create(preview.feature, preview.params)
    extractor.setup()
    needed = extractor.frames_needed()
    clip = _read(video, preview, needed if out.suffix == ".png" else preview.frames + needed - 1)
    if out.suffix == ".png":
        _write_picture(out, _sheet(preview.feature, extractor, clip))
    else:
        encoding = Encoding(fps=round(probe(str(video)).fps) or 25)
        with written(out):
            write_video(out, _strips(preview, extractor, clip), encoding)


def _read(video: Path, preview: Preview, count: int) -> NDArray[np.uint8]:
    """`(count, H, W, 3)`, from the first frame shown; the last frame of the file repeats."""
    facts = probe(str(video))
    if preview.start >= facts.frame_count:
        raise ConfigError(f"{video} has {facts.frame_count} frames; --start {preview.start} is past its end")
    resize = Resize(mode=Resize.SHORT_SIDE, height=preview.short_side, interpolation="area")
    seed = Seed(first_frame=preview.start, frame_count=count, stride=1, last_frame=facts.frame_count - 1)
    clip = np.zeros((count, *output_size(resize, facts.height, facts.width), 3), np.uint8)
    with Reader(str(video)) as reader:
        (error,) = reader.read([seed], resize, [clip], strict=False)
    if error is not None:
        raise error
    return clip


def _sheet(feature: str, extractor: Extractor, clip: NDArray[np.uint8]) -> Picture:
    drawn = _drawn(feature, extractor, clip, extractor.extract(clip))
    shown = evenly_spaced(len(drawn), min(_COLUMNS, len(drawn)))
    return grid([[clip[min(i, len(clip) - 1)] for i in shown], [drawn[i] for i in shown]])


def _strips(preview: Preview, extractor: Extractor, clip: NDArray[np.uint8]) -> Iterator[Picture]:
    """One picture a frame. A stack of n fields serves n frames, so nothing is extracted twice."""
    needed = extractor.frames_needed()
    fullest = None
    start = 0
    while start < preview.frames:
        feature = extractor.extract(clip[start : start + needed])
        if preview.feature.startswith("flow"):
            fullest = fullest or fullest_speed(feature)  # one scale for the whole video, or it flickers
        drawn = _drawn(preview.feature, extractor, clip[start:], feature, fullest)[: preview.frames - start]
        for offset, picture in enumerate(drawn):
            strip = grid([[clip[start + min(offset, needed - 1)]], [picture]])
            yield strip[: strip.shape[0] // 2 * 2, : strip.shape[1] // 2 * 2]  # 4:2:0 needs even sides
        start += len(drawn)


def _drawn(
    feature: str, extractor: Extractor, clip: NDArray[np.uint8], array: NDArray[Any], fullest: float | None = None
) -> list[Picture]:
    """The pictures of a feature, as large as the clip's: grids of descriptors are enlarged, tracks drawn on a frame."""
    height, width = clip.shape[1:3]
    if isinstance(extractor, Trajectories):
        return [_with_tracks(clip[0], extractor.paths(array))]
    return [_fitted(picture, height, width) for picture in pictures(feature, array, fullest)]


def _fitted(picture: Picture, height: int, width: int) -> Picture:
    if picture.shape[:2] == (height, width):
        return picture
    return np.asarray(cv2.resize(picture, (width, height), interpolation=cv2.INTER_NEAREST), np.uint8)


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
