"""Tracks dense points through a clip along its flow, on several spatial scales, and describes their surroundings.

Wang, Kläser, Schmid and Liu, "Action Recognition by Dense Trajectories" (CVPR 2011), section 2; values missing from the
paper come from the authors' code. Each scale is smaller than the previous one by the square root of 2. On each scale,
points are placed `spacing` pixels apart wherever the picture has structure in two directions and no point is near.

Each point follows the median of the flow around it for exactly `length` steps; a point that leaves the picture is
dropped. Points are placed in every frame from which a track can still be completed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp_extractor.motion.fields import Field, Grey
from essp_extractor.motion.orientation import Planes, boundary_planes, cell_sums, cells_at, flow_planes, gradient_planes
from essp_extractor.motion.volumes import Volume

QUALITY = 0.001
"""Minimum structure of a point (smaller eigenvalue of the auto-correlation matrix), relative to the maximum."""
_MEDIAN_PX = 3
_BLOCK_PX = 3
_Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to track points, and what to describe."""

    volume: Volume
    """The volume around a track, which moves with it. Its length is the track length."""
    spacing: int
    """W: distance between newly placed points, in pixels."""
    scales: int
    """Maximum number of spatial scales. A small picture has fewer, since no scale may be smaller than a volume."""
    bins: int
    still_px: float


@dataclass(frozen=True, slots=True)
class Step:
    """A frame and its motion to the next frame, on one scale."""

    grey: Grey
    """The frame."""
    flow: Field
    """Flow to the next frame, which moves the points."""
    motion: Field
    """The motion to describe: `flow`, with or without the camera's motion."""


@dataclass(slots=True)
class Tracks:
    """n points placed in one frame of one scale; those that left the picture are not `alive`."""

    start: int
    """The frame in which they were placed."""
    scale: float
    """Pixels of the picture per pixel of this scale."""
    points: _Floats
    """`(length + 1, n, 2)`: x, y at each frame, in pixels of the scale."""
    motions: _Floats
    """`(length, n, 2)`: dx, dy of the described motion at each step, in pixels of the scale."""
    alive: NDArray[np.bool_]
    histograms: dict[str, _Floats] = field(default_factory=dict)
    """Sums for hog, hof, mbhx and mbhy: `(n, time_cells, cells, cells, bins)`."""


class _Live:
    """The unfinished tracks of all start frames, combined so that their points are looked up at once."""

    def __init__(self, tracks: Sequence[Tracks], frame: int) -> None:
        self._tracks = tracks
        self._frame = frame
        self.points = np.concatenate([each.points[frame - each.start] for each in tracks])
        """`(n, 2)`: positions of all points in this frame."""

    def each(self) -> Iterator[tuple[Tracks, int, slice]]:
        """Yield each group of tracks with its age in frames and its slice of the points."""
        begin = 0
        for tracks in self._tracks:
            end = begin + tracks.points.shape[1]
            yield tracks, self._frame - tracks.start, slice(begin, end)
            begin = end


class Tracker:
    """Tracks points on one scale; `advance` takes the steps of a clip in order."""

    def __init__(self, cv2: Any, settings: Settings, scale: float, steps: int) -> None:
        """`steps`: total number of `advance` calls to come."""
        self._cv2 = cv2
        self._settings = settings
        self._scale = scale
        self._steps = steps
        self._done = 0
        self._live: list[Tracks] = []
        self.finished: list[Tracks] = []

    def advance(self, step: Step) -> None:
        """Place new points where there are none, describe the surroundings of all points, and move them."""
        length = self._settings.volume.length
        if self._done + length <= self._steps:
            self._live.append(self._set(step.grey))
        if any(tracks.alive.any() for tracks in self._live):
            live = _Live(self._live, self._done)
            self._describe(step, live)
            self._move(step, live)
        self._done += 1
        self.finished += [tracks for tracks in self._live if self._done - tracks.start == length]
        self._live = [tracks for tracks in self._live if self._done - tracks.start < length]

    def _set(self, grey: Grey) -> Tracks:
        """Create points at the centres of the squares of `spacing` pixels that contain no live point."""
        spacing = self._settings.spacing
        rows, columns = grey.shape[0] // spacing, grey.shape[1] // spacing
        structure = self._cv2.cornerMinEigenVal(grey, _BLOCK_PX, ksize=3)
        wanted = structure > QUALITY * structure.max()
        free = wanted[spacing // 2 :: spacing, spacing // 2 :: spacing][:rows, :columns].copy()
        for tracks in self._live:
            x, y = (tracks.points[self._done - tracks.start, tracks.alive] // spacing).astype(np.intp).T
            held = (x < columns) & (y < rows)
            free[y[held], x[held]] = False
        y, x = np.nonzero(free)
        volume, count = self._settings.volume, len(x)
        points = np.zeros((volume.length + 1, count, 2), np.float32)
        points[0] = np.stack([x, y], axis=1) * spacing + spacing // 2
        cells = (count, volume.time_cells, volume.cells, volume.cells)
        bins = {name: self._settings.bins + (name == "hof") for name in ("hog", "hof", "mbhx", "mbhy")}
        return Tracks(
            start=self._done,
            scale=self._scale,
            points=points,
            motions=np.zeros((volume.length, count, 2), np.float32),
            alive=np.ones(count, np.bool_),
            histograms={name: np.zeros((*cells, each), np.float32) for name, each in bins.items()},
        )

    def _describe(self, step: Step, live: _Live) -> None:
        volume = self._settings.volume
        height, width = step.grey.shape
        x, y = _pixels(live.points, height, width)
        # At the border the volume is shifted to lie inside the picture.
        tops = np.clip(y - volume.side // 2, 0, max(0, height - volume.side))
        lefts = np.clip(x - volume.side // 2, 0, max(0, width - volume.side))
        for name, planes in self._planes(step):
            sums = cell_sums(self._cv2, planes, volume.cell_side)
            around = cells_at(sums, tops, lefts, volume.cells, volume.cell_side)
            for tracks, age, own in live.each():
                tracks.histograms[name][:, age // volume.cell_length] += around[own]

    def _planes(self, step: Step) -> Iterable[tuple[str, Planes]]:
        bins, still_px = self._settings.bins, self._settings.still_px
        yield "hog", gradient_planes(self._cv2, step.grey, bins)
        yield "hof", flow_planes(self._cv2, step.motion, bins, still_px)
        yield "mbhx", boundary_planes(self._cv2, step.motion, 0, bins)
        yield "mbhy", boundary_planes(self._cv2, step.motion, 1, bins)

    def _move(self, step: Step, live: _Live) -> None:
        height, width = step.grey.shape
        flow = self._median(step.flow)
        motion = flow if step.motion is step.flow else self._median(step.motion)
        x, y = _pixels(live.points, height, width)
        moved, described = live.points + flow[y, x], motion[y, x]
        inside = np.all((moved >= 0) & (moved <= (width - 1, height - 1)), axis=1)
        for tracks, age, own in live.each():
            tracks.motions[age] = described[own]
            tracks.alive &= inside[own]
            tracks.points[age + 1] = moved[own]

    def _median(self, flow: Field) -> Field:
        planes = [self._cv2.medianBlur(plane, _MEDIAN_PX) for plane in self._cv2.split(flow)]
        median: Field = self._cv2.merge(planes)
        return median


def scale_sizes(settings: Settings, height: int, width: int) -> list[tuple[float, int, int]]:
    """The scales of a picture as (pixels of the picture per pixel of the scale, height, width)."""
    sizes = [(1.0, height, width)]
    for number in range(1, settings.scales):
        scale = math.sqrt(2) ** number
        smaller = (round(height / scale), round(width / scale))
        if min(smaller) < settings.volume.side:
            break
        sizes.append((scale, *smaller))
    return sizes


def _pixels(points: _Floats, height: int, width: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Round points to pixels, x and y. Lost points are clipped to some pixel of the picture."""
    pixels = np.rint(points).astype(np.intp)
    return np.clip(pixels[:, 0], 0, width - 1), np.clip(pixels[:, 1], 0, height - 1)
