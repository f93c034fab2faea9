"""Targets of clips: the labels, spans and series of the catalog for the frames of each clip.

Frame t of a clip is frame `first_frame + t * stride` of the file, unless frames are chosen by time; past the end, it is
the last frame of the video or segment, as in the clip itself. Its labels are those of the spans that contain it, and
its values are those of each series at that frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from essp_common.catalog.columns import Blobs
from essp_common.catalog.rows import Rows
from essp_common.catalog.targets import Targets as VideoTargets
from essp_common.catalog.targets import unpack
from essp_common.catalog.timed import TimedFrames
from essp_common.catalog.timing import Clock
from essp_common.errors import ConfigError
from essp_common.validation import suggested

_TOLERANCE_S = 1e-4
_LEAST_FPS = 1e-6
_KEPT = 64
"""Videos whose unpacked targets are cached: clips of one video often follow each other."""


class Stretch(NamedTuple):
    """A labelled span of frames of the file; both ends are included.

    For example:

        [(s.first_frame, s.last_frame, s.name) for s in batch.targets.stretches[0]]
    """

    first_frame: int
    last_frame: int
    name: str


@dataclass(frozen=True, slots=True)
class BatchTargets:
    """The targets of the clips of a batch other than their classes: labels, spans and series.

    B: clips of the batch. T: frames of a clip. K: the names of `Loader.target_names`. D: the times of a series in
    `Targets.series`.

    frame_numbers: `(B, T)` int64: the number of each frame in its file, from 0.
    labels: `(B, K)` bool: the labels of each video; for a video without labels, its class.
    frame_labels: `(B, T, K)` bool: the names of the spans that contain each frame.
    stretches: for each clip, all spans of its video or segment, sorted by first frame.
    values: name -> `(B, T, ...)` at the frames of the clip, or `(B, D, ...)` at the times in `Targets.series`: each
        series of the split's videos. NaN for a video without this series.
    is_pad: name -> `(B, D)` bool, for series in `Targets.series`: the values whose time lies before or after the
        video or segment; they repeat its first or last value.

    For example:

        targets = batch.targets
        loss = binary_cross_entropy_with_logits(model(batch.frames), targets.labels.float())
        targets.frame_labels  # (B, T, K): the names of the spans that contain each frame
        targets.values["gaze"]  # (B, T, 2): a series of the catalog, at these frames
    """

    frame_numbers: Tensor
    labels: Tensor
    frame_labels: Tensor
    stretches: list[list[Stretch]]
    values: dict[str, Tensor]
    is_pad: dict[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device | str, **options: Any) -> BatchTargets:
        """The targets with their tensors on `device`."""
        return replace(
            self,
            frame_numbers=self.frame_numbers.to(device, **options),
            labels=self.labels.to(device, **options),
            frame_labels=self.frame_labels.to(device, **options),
            values={name: values.to(device, **options) for name, values in self.values.items()},
            is_pad={name: pad.to(device, **options) for name, pad in self.is_pad.items()},
        )


class TargetReader:
    """Reads the targets of clips from the rows of a catalog."""

    def __init__(
        self,
        rows: Rows,
        frames: int,
        stride: int,
        deltas: Mapping[str, Sequence[float]],
        timed: TimedFrames | None = None,
    ) -> None:
        """`rows`: of the split. `frames`, `stride`: of a clip. `deltas`: series -> times at which its values are taken,
        in seconds from a clip's last frame. `timed`: the frames of clips, if they are chosen by time."""
        self._timed = timed
        self._rows = rows
        self._deltas = deltas
        self._steps = np.arange(frames, dtype=np.int64) * stride
        self._video = lru_cache(maxsize=_KEPT)(self._read)
        self._clock = lru_cache(maxsize=_KEPT)(partial(Clock, rows))

    def check(self) -> None:
        """Raises `ConfigError` for a series in `Targets.series` that no video of the split has."""
        if self._deltas and (unknown := sorted(self._deltas.keys() - self._series.keys())):
            raise ConfigError(
                f"there is no series {unknown[0]!r}; {suggested(unknown[0], sorted(self._series), 'series: ')}",
                field="targets.series",
                code="unknown",
            )

    @cached_property
    def any(self) -> bool:
        """Whether any video of the catalog has targets."""
        return bool((self._packed.lengths > 0).any())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all videos of the catalog, also of other splits and of unusable videos."""
        found = {name for name in Rows(self._rows.columns, np.arange(len(self._packed))).names("class_name") if name}
        for place in np.flatnonzero(self._packed.lengths).tolist():
            found |= unpack(self._packed.encoded(place), names_only=True).names
        return tuple(sorted(found))

    @cached_property
    def _series(self) -> dict[str, NDArray[Any]]:
        """Name -> each series of the split's videos, with the type and shape of its first video, without frames."""
        found: dict[str, NDArray[Any]] = {}
        for place in np.flatnonzero(self._rows.lengths("targets")).tolist():
            found = {**unpack(self._rows.blob("targets", place), names_only=True).series, **found}
        return found

    def of(self, places: Sequence[int], first_frames: Sequence[int]) -> BatchTargets:
        """The targets of the clips that begin at `first_frames` of the videos with the indices `places` among the rows.

        Raises `ConfigError` for a series whose shape differs between videos.
        """
        last = self._rows.where(np.array(places)).numbers("last_frame").astype(np.int64)
        steps = self._steps
        if self._timed is not None:
            steps = np.array([self._timed.offsets(*each) for each in zip(places, first_frames, strict=True)], np.int64)
        numbers = np.minimum(np.array(first_frames, np.int64)[:, None] + steps, last[:, None])
        videos = [self._video(place) for place in places]
        labels = np.zeros((len(places), len(self.names)), np.bool_)
        frame_labels = np.zeros((*numbers.shape, len(self.names)), np.bool_)
        for clip, (place, video) in enumerate(zip(places, videos, strict=True)):
            shown = video.labels or (self._class_name(place),)
            labels[clip, [self._code[name] for name in shown if name]] = True
            for span in video.spans:
                inside = (numbers[clip] >= span.first_frame) & (numbers[clip] <= span.last_frame)
                frame_labels[clip, inside, self._code[span.name]] = True
        values, is_pad = self._values(places, videos, numbers)
        return BatchTargets(
            torch.from_numpy(numbers),
            torch.from_numpy(labels),
            torch.from_numpy(frame_labels),
            [[Stretch(*span) for span in video.spans] for video in videos],
            values,
            is_pad,
        )

    def _values(
        self, places: Sequence[int], videos: Sequence[VideoTargets], numbers: NDArray[np.int64]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The values of each series, and for series in `Targets.series` those outside the video."""
        found, is_pad = {}, {}
        for name in sorted(self._series):
            at = self._places(places, numbers, name)
            lengths = self._lengths(places)[:, None]
            inside = np.clip(at, 0, lengths - 1)
            if name in self._deltas:
                is_pad[name] = torch.from_numpy(at != inside)
            found[name] = torch.from_numpy(self._at(name, places, videos, inside))
        return found, is_pad

    def _places(self, places: Sequence[int], numbers: NDArray[np.int64], name: str) -> NDArray[np.int64]:
        """The frames at which a series is read, counted from the first frame of the video or segment."""
        rows = self._rows.where(np.array(places))
        at: NDArray[np.int64] = numbers - rows.numbers("first_frame").astype(np.int64)[:, None]
        if name not in self._deltas:
            return at
        deltas, fps = np.array(self._deltas[name], np.float64), rows.numbers("fps")
        whole = np.rint(fps[:, None] * deltas)
        varying = rows.lengths("timestamps") > 0
        off_s = np.abs(deltas - whole / np.maximum(fps, _LEAST_FPS)[:, None])
        if wrong := np.flatnonzero((off_s > _TOLERANCE_S).any(1) & ~varying).tolist():
            raise ConfigError(
                f"must be multiples of 1/{fps[wrong[0]]:g} seconds, the time between two frames",
                field=f"targets.series.{name}",
                code="invalid",
            )
        found = at[:, -1:] + whole.astype(np.int64)
        for clip in np.flatnonzero(varying).tolist():
            clock, first = self._clock(places[clip]), int(rows.number("first_frame", clip))
            now_s = clock.appears_s(first + int(at[clip, -1]))
            found[clip] = np.array(clock.nearest((now_s + deltas).tolist())) - first
        return found

    def _at(
        self, name: str, places: Sequence[int], videos: Sequence[VideoTargets], at: NDArray[np.int64]
    ) -> NDArray[Any]:
        known = self._series[name]
        found = []
        for clip, (place, video) in enumerate(zip(places, videos, strict=True)):
            values = video.series.get(name)
            if values is None and known.dtype.kind == "f":
                found.append(np.full((at.shape[1], *known.shape[1:]), np.nan, known.dtype))
            elif values is None or values.shape[1:] != known.shape[1:]:
                raise ConfigError(
                    f"series {name!r} of {self._rows.text('id', place)} is missing or has another shape than in other "
                    "videos; build the catalog with this series for every video",
                    field="catalog",
                    code="conflict",
                )
            else:
                found.append(values[at[clip]])
        return np.stack(found)

    def _lengths(self, places: Sequence[int]) -> NDArray[np.int64]:
        rows = self._rows.where(np.array(places))
        first, last = (rows.numbers(name).astype(np.int64) for name in ("first_frame", "last_frame"))
        lengths: NDArray[np.int64] = last - first + 1
        return lengths

    def _read(self, place: int) -> VideoTargets:
        return unpack(self._rows.blob("targets", place))

    def _class_name(self, place: int) -> str:
        codes, words = self._rows.where(np.array([place])).words("class_name")
        return words.value(int(codes[0]))

    @cached_property
    def _code(self) -> dict[str, int]:
        return {name: code for code, name in enumerate(self.names)}

    @cached_property
    def _packed(self) -> Blobs:
        column = self._rows.columns["targets"]
        if not isinstance(column, Blobs):
            raise TypeError("targets is not a column of bytes")
        return column
