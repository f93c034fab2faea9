"""Draws a few videos of the evaluated split as the models see them: frames of a clip, and its features.

The clip is the middle one of the video, or of the part of it from which clips are taken (`clip.part`). If clips are
independent samples (`data.targets: spans`), it is the clip that was evaluated. It is read and resized according to the
job, and passed to the same extractors as the job's streams. A video that can no longer be read is left out: a report
never fails because of its pictures.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from essp.report.facts import Run
from essp.report.lettering import lettering, shortened
from essp.report.plots import Theme, png
from essp_common.artifacts.scores import clip_named
from essp_common.catalog.rows import VideoRow
from essp_common.errors import ConfigError, EsspError
from essp_common.job.clip_spec import StreamSpec
from essp_common.job.spec import JobSpec
from essp_common.messages.recipe import resize_of
from essp_common.quantities import percent
from essp_common.records.rows import record_at
from essp_common.wiring import Stores
from essp_engine.features import registry
from essp_engine.features.drawing import Picture, drawing
from essp_engine.features.intermediates import Intermediates, extract_with
from essp_engine.features.port import SignedExtractor
from essp_engine.features.quantization import Usage, usage
from essp_engine.planning.planned_clip import places_in
from essp_engine.seeding.seeds import clip_seed
from essp_engine.video.container import Limits, VideoFile
from essp_engine.video.geometry import frame_shape
from essp_engine.video.images import ImageDecoder
from essp_engine.video.reader import Reader

log = logging.getLogger(__name__)

COUNT = 5
_MISTAKES = 3
_WIDTH = 2.1
"""Width of one picture in inches."""
_DPI = 80
_TITLE = 84
"""Maximum number of columns of the text above a row. Longer lists of labels are shortened in the middle."""
_HEAD = 34
"""Maximum number of columns of a line below a picture. There may be several lines."""
_LINE = 0.15
"""Height of such a line in inches."""


@dataclass(frozen=True)
class Sample:
    """One video, or one clip if clips are independent samples, with its prediction."""

    video_id: str
    label: str
    """The name as returned by `lettering`, as is `predicted`."""
    predicted: str
    right: bool
    score: float
    clip: NDArray[np.uint8]
    """(T, H, W, 3)"""
    features: Mapping[str, Picture]
    """Stream -> its drawing, (H, W, 3)."""
    captions: Mapping[str, str]
    """Stream -> how to read its drawing."""
    codes: Mapping[str, Usage]
    """Flow stream -> how it uses its codes."""


def choose(run: Run) -> list[int]:
    """Indices of the videos to show: spread over the classes, and the misclassified ones with the highest scores."""
    if not len(run.fused):
        return []
    by_class = [np.flatnonzero(run.fused.class_id == c) for c in np.unique(run.fused.class_id)]
    spread = np.linspace(0, len(by_class) - 1, min(COUNT, len(by_class))).round().astype(int)
    return list(dict.fromkeys([*(int(by_class[c][0]) for c in spread), *run.mistakes[:_MISTAKES]]))


def read_samples(run: Run, stores: Stores, positions: Sequence[int]) -> list[Sample]:
    """Decode the chosen videos and compute the features that can be drawn."""
    samples = []
    names = lettering(run.model.classes).names
    drawn_streams = {
        name: stream
        for name, stream in run.model.streams.items()
        if stream.feature != "rgb"
        and name not in run.descriptors
        and stream.view in ("", *list(run.spec.clip.views)[:1])
    }
    for position in positions:
        shown = run.fused.video_id[position]
        try:
            video, first_frame = clip_named(shown) if run.spec.data.targets == "spans" else (shown, None)
            row = run.videos.get(video)
            if row is None:
                continue
            read = _read(run.spec, row, stores, first_frame)
            made = {name: _made(stream, read) for name, stream in drawn_streams.items()}
        except EsspError as error:
            log.warning("no sample of %s: %s", shown, error)
            continue
        predicted = int(run.predicted[position])
        samples.append(
            Sample(
                video_id=shown,
                label=run.answer(position, names),
                predicted=names[predicted],
                right=bool(run.fused.right[position]),
                score=float(run.fused.probabilities[position, predicted]),
                clip=read.clip,
                features={name: each.picture for name, each in made.items() if each.picture is not None},
                captions={name: each.caption for name, each in made.items()},
                codes={name: each.codes for name, each in made.items() if each.codes is not None},
            )
        )
    return samples


def read_clip(spec: JobSpec, row: VideoRow, stores: Stores) -> NDArray[np.uint8]:
    """The clip in the middle of a video, or of the part from which clips are taken, resized according to the job.

    Returns `(T, H, W, 3) uint8`; if clips consist of snippets, one snippet. Raises `BadVideo`, `NotFound`.
    """
    return _read(spec, row, stores).clip


def _read(spec: JobSpec, row: VideoRow, stores: Stores, first_frame: int | None = None) -> Intermediates:
    """The same in the colours of the job's clips. `first_frame`: of another clip instead of the middle one."""
    resize = resize_of(spec.clip)
    if spec.data.records:
        data, shape = record_at(row.uri, stores)
        clip = np.zeros((1, *frame_shape(resize, row.height, row.width)), np.uint8)
        colour = ImageDecoder(Limits().pixels).write(data, shape, resize, clip[0], strict=spec.limits.strict)
        return Intermediates(clip, colour)
    store, key = stores.resolve(row.uri, video=True)
    begin, places = places_in(row, spec.clip)
    seed = clip_seed(row, spec.clip, begin + (places - 1) // 2 if first_frame is None else first_frame)
    clip = np.zeros((spec.clip.snippet_frames, *frame_shape(resize, row.height, row.width)), np.uint8)
    path = store.local_path(key)
    with ExitStack() as stack:
        file: VideoFile = stack.enter_context(store.open(key)) if path is None else path
        reader = stack.enter_context(Reader(file, lookahead=row.lookahead, declared=row.declared))
        (error,) = reader.read([seed], resize, [clip], strict=spec.limits.strict)
        colour = reader.colours[0]
    if error is not None:
        raise error
    return Intermediates(clip, colour)


def draw_samples(samples: Sequence[Sample], theme: Theme) -> bytes:
    """One row per video: its first, middle and last frame (or its only one), then a drawing of each extracted
    stream."""
    streams = list(dict.fromkeys(stream for sample in samples for stream in sample.features))
    captions = {stream: caption for sample in samples for stream, caption in sample.captions.items()}
    single = all(len(sample.clip) == 1 for sample in samples)
    heads = [*(["image"] if single else ["first frame", "middle frame", "last frame"])]
    heads += [fill(f"{stream}. {captions[stream]}", _HEAD) if captions[stream] else stream for stream in streams]
    aspect = max(sample.clip.shape[1] / sample.clip.shape[2] for sample in samples)
    below = _LINE * max(head.count("\n") for head in heads)
    size = (_WIDTH * len(heads), len(samples) * (_WIDTH * aspect + 0.35) + 0.2 + below)
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
    grid = figure.subplots(len(samples), len(heads), squeeze=False)
    for sample, cells in zip(samples, grid, strict=True):
        middle = len(sample.clip) // 2
        shown: list[Any] = [sample.clip[0]] if single else [sample.clip[0], sample.clip[middle], sample.clip[-1]]
        shown += [sample.features.get(stream) for stream in streams]
        for axes, picture in zip(cells, shown, strict=True):
            axes.set_axis_off()
            if picture is not None:
                axes.imshow(picture)
        verdict = "" if sample.right else f" taken for {_called(sample.predicted)}"
        title = f"{_called(sample.label)}{verdict}, {percent(sample.score, 0)}"
        cells[0].set_title(shortened(title, _TITLE), loc="left", fontsize=9, color=theme.ink)
    for axes, head in zip(grid[-1], heads, strict=True):
        axes.text(0.5, -0.04, head, transform=axes.transAxes, ha="center", va="top", fontsize=8, color=theme.ink)
    return png(figure, theme)


def _called(name: str) -> str:
    """A class in a sentence: of one whose name is a number, this alone would say nothing."""
    return f"class {name}" if name.isdigit() else name


def code_shares(samples: Sequence[Sample]) -> dict[str, str]:
    """Flow stream -> the shares of its codes that are at the bound and that are zero, in words."""
    found = {}
    for stream in dict.fromkeys(stream for sample in samples for stream in sample.codes):
        parts = [sample.codes[stream] for sample in samples if stream in sample.codes]
        codes, clipped, zero = (sum(counts) for counts in zip(*parts, strict=True))
        found[stream] = (
            f"{100 * clipped / codes:.1f} % of its codes are at the bound (more than 1 %: raise `bound`), "
            f"{100 * zero / codes:.0f} % show no motion"
        )
    return found


class _Made(NamedTuple):
    """The result of a stream for a clip."""

    picture: Picture | None
    """The middle picture; None if the feature does not consist of pictures."""
    caption: str
    codes: Usage | None
    """How flow uses its codes."""


def _made(stream: StreamSpec, clip: Intermediates) -> _Made:
    extractor = registry.create(stream.feature, stream.params)
    extractor.setup()
    feature = extract_with(extractor, clip)
    codes = usage(feature) if isinstance(extractor, SignedExtractor) else None
    try:
        drawn = drawing(feature, registry.layout_of(stream.feature))
    except ConfigError:
        return _Made(None, "", codes)
    return _Made(drawn.pictures[len(drawn.pictures) // 2], drawn.caption, codes)
