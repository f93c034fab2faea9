"""`trajectories` and `improved_trajectories`: points tracked through the clip, with descriptors along their paths.

Wang et al., "Action Recognition by Dense Trajectories" (CVPR 2011), and Wang and Schmid, "Action Recognition with
Improved Trajectories" (ICCV 2013). `essp_extractor.motion.tracking` tracks the points, `essp_extractor.motion.camera`
estimates the camera's motion.

Both give `(1, count, 1, columns) float32`: one row per track, 436 columns by default, in the order of the authors'
programs:

    0        the clip's frame in which the track ends
    1, 2     mean x, y of its points, px
    3, 4     standard deviation of x, y, px
    5        length of its path, px
    6        scale: 1, 1.41, 2, ...; a row holds a track if this is above 0
    7, 8, 9  mean x / width, mean y / height, end / frames of the clip; 0 to 1
    10 ...   shape: dx, dy of each step, divided by the sum of the steps' lengths (2 * length columns)
    ...      hog, hof, mbhx, mbhy, each normalised separately; ordered by time cell, cell row, cell column and bin
             (hof has one more bin)

The rows are the `count` tracks with the most motion (the sum of the steps' lengths), most motion first. Ties are
ordered by finer scale, then earlier start, then top to bottom and left to right. Rows without a track are zeros. Pixel
values refer to the clip's full resolution. Nothing is quantised.

As in the authors' code, tracks are dropped if they hardly move (both standard deviations below the square root of 3
px), wander (one above 50 px), or jump (a step over 20 px that makes up more than 0.7 of the path).
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_common.job.feature_layout import FeatureLayout
from essp_engine.features.intermediates import Intermediates
from essp_engine.features.opencv import load_opencv
from essp_engine.features.port import ArraySpec, FeatureParams, Needs
from essp_engine.features.sampling import centre_window
from essp_extractor.motion.camera import CameraMotion
from essp_extractor.motion.fields import Field as FlowField
from essp_extractor.motion.fields import FlowFields, FlowMethod, Grey, MethodParams
from essp_extractor.motion.orientation import EPSILON, root, unit_length
from essp_extractor.motion.tracking import Settings, Step, Tracker, Tracks, scale_sizes
from essp_extractor.motion.volumes import Volume

FACTS = 10
"""Number of columns before the shape."""
DESCRIPTORS = ("hog", "hof", "mbhx", "mbhy")
ROWS = FeatureLayout(values="descriptor", facts=FACTS)
STILL_PX = 3**0.5
WANDERING_PX = 50
JUMP_PX = 20
JUMP_PART = 0.7
CAMERA_PX = 1
"""Improved trajectories: a track whose steps are all at most this long after removing camera motion is background."""

Size = tuple[int, int]
"""Height, width."""
_Floats = NDArray[np.float32]


class TrajectoryParams(MethodParams):
    """The tracks, the descriptors around them, and how to compute flow."""

    count: int = Field(1000, ge=1, le=100_000)
    """Rows of the result."""
    length: int = Field(15, ge=2, le=64)
    """Steps of a track; needs one more frame."""
    spacing: int = Field(5, ge=1, le=64)
    """Distance between newly placed points, in pixels."""
    scales: int = Field(8, ge=1, le=8)
    """Maximum number of spatial scales; a small picture has fewer."""
    side: int = Field(32, ge=4, le=512)
    """Side of the volume along a track, in pixels."""
    cells: int = Field(2, ge=1, le=8)
    """Cells of the volume along each image axis."""
    time_cells: int = Field(3, ge=1, le=8)
    """Cells of the volume along the time axis."""
    bins: int = Field(8, ge=2, le=36)
    """Orientation bins of a histogram."""
    still_px: float = Field(0.4, ge=0, le=100)
    """HOF: displacement in pixels up to which a pixel counts as still."""


class Trajectories:
    """Dense trajectories of the whole clip, with descriptors of norm 1."""

    name: ClassVar[str] = "trajectories"
    summary: ClassVar[str] = "Dense trajectories with shape, HOG, HOF and MBH (local motion)."
    layout: ClassVar[FeatureLayout] = ROWS
    needs: ClassVar[Needs] = "luma"

    Params: ClassVar[type[FeatureParams]] = TrajectoryParams

    def __init__(self, params: TrajectoryParams) -> None:
        volume = Volume(self.name, params.side, params.length, params.cells, params.time_cells)
        self._settings = Settings(volume, params.spacing, params.scales, params.bins, params.still_px)
        self._method = FlowMethod(self.name, params.method, params.preset)
        self._count = params.count

    def frames_needed(self) -> int:
        return self._settings.volume.length + 1

    def output(self, clip: ArraySpec) -> ArraySpec:
        volume, bins = self._settings.volume, self._settings.bins
        columns = FACTS + 2 * volume.length + 3 * volume.dimensions(bins) + volume.dimensions(bins + 1)
        return ArraySpec((1, self._count, 1, columns), "float32")

    def setup(self) -> None:
        self._cv2 = load_opencv()
        self._fields = FlowFields(self._method)

    def extract(self, clip: NDArray[np.uint8]) -> _Floats:
        return self.extract_from(Intermediates(clip))

    def extract_from(self, shared: Intermediates) -> _Floats:
        frames, (height, width) = shared.frames, shared.size
        centre_window(frames, self.frames_needed())  # raises for a clip that is too short
        found: list[tuple[_Floats, _Floats]] = []
        for scale, *size in scale_sizes(self._settings, height, width):
            tracker = Tracker(self._cv2, self._settings, scale, frames - 1)
            for frame in range(frames - 1):
                tracker.advance(self._step(shared, frame, (size[0], size[1])))
            found += [self._rows(tracks, (frames, height, width)) for tracks in tracker.finished]
        rows, motion = (np.concatenate(parts) for parts in zip(*found, strict=True))
        most = np.argsort(-motion, kind="stable")[: self._count]
        result = np.zeros((1, self._count, 1, rows.shape[1]), np.float32)
        result[0, : len(most), 0] = rows[most]
        return result

    def paths(self, feature: _Floats) -> list[_Floats]:
        """Convert the tracks of a result to points: x and y in px, `(length + 1, 2)` per track.

        The shape of an improved trajectory excludes the camera's motion, so its path is a path in the scene.
        """
        rows = feature.reshape(-1, feature.shape[-1])
        rows = rows[rows[:, 6] > 0]
        steps = rows[:, FACTS : FACTS + 2 * self._settings.volume.length].reshape(len(rows), -1, 2)
        points = np.cumsum(np.pad(steps * rows[:, 5, None, None], ((0, 0), (1, 0), (0, 0))), axis=1)
        return list(points - points.mean(axis=1, keepdims=True) + rows[:, None, 1:3])

    def _step(self, shared: Intermediates, frame: int, size: Size) -> Step:
        grey = self._grey(shared, frame, size)
        if size == shared.size:
            flow = self._fields.between(shared, frame, frame + 1)
        else:
            flow = self._fields.of(grey, self._grey(shared, frame + 1, size))
        return Step(grey, flow, self._motion(shared, frame, flow))

    def _motion(self, shared: Intermediates, frame: int, flow: FlowField) -> FlowField:
        """The motion to describe from a frame to the next, on the scale of `flow`."""
        return flow

    def _grey(self, shared: Intermediates, frame: int, size: Size) -> Grey:
        grey = self._fields.grey(shared, frame)
        return shared.get(("grey", frame, size), lambda: self._resized(grey, size))

    def _resized(self, grey: Grey, size: Size) -> Grey:
        if grey.shape == size:
            return grey
        smaller: Grey = self._cv2.resize(grey, size[::-1], interpolation=self._cv2.INTER_AREA)
        return smaller

    def _rows(self, tracks: Tracks, clip: tuple[int, int, int]) -> tuple[_Floats, _Floats]:
        """The rows of the tracks to keep, and the amount of motion of each."""
        points, motions = tracks.points * np.float32(tracks.scale), tracks.motions * np.float32(tracks.scale)
        kept = tracks.alive & sound(points) & self._of_the_scene(motions)
        path = np.linalg.norm(np.diff(points, axis=0), axis=2).sum(axis=0)
        frames, height, width = clip
        mean, end = points.mean(axis=0), tracks.start + self._settings.volume.length
        facts = np.column_stack(
            [
                np.full(len(path), end),
                mean,
                points.std(axis=0),
                path,
                np.full(len(path), tracks.scale),
                mean / (width, height),
                np.full(len(path), end / frames),
            ]
        )
        motion = np.linalg.norm(motions, axis=2).sum(axis=0)
        shape = _flat(np.moveaxis(motions, 0, 1)) / (motion + EPSILON)[:, None]
        described = [self._normalised(_flat(tracks.histograms[name])) for name in DESCRIPTORS]
        return np.hstack([facts, shape, *described]).astype(np.float32)[kept], motion[kept]

    def _of_the_scene(self, motions: _Floats) -> NDArray[np.bool_]:
        """Which of the tracks with these motions, `(length, n, 2)` px, to keep."""
        return np.ones(motions.shape[1], np.bool_)

    def _normalised(self, histograms: _Floats) -> _Floats:
        return unit_length(histograms)


class ImprovedTrajectories(Trajectories):
    """Trajectories of moving scene points, with the camera's motion removed and RootSIFT-normalised descriptors.

     Points follow the uncorrected flow. Shape, HOF and MBH come from flow without the camera's motion; tracks that do
    not move without it are dropped.
    """

    name: ClassVar[str] = "improved_trajectories"
    summary: ClassVar[str] = "Dense trajectories with the camera's motion removed (local motion)."
    layout: ClassVar[FeatureLayout] = ROWS

    def setup(self) -> None:
        super().setup()
        self._camera = CameraMotion(self._method)

    def _motion(self, shared: Intermediates, frame: int, flow: FlowField) -> FlowField:
        if self._camera.between(shared, frame) is None:
            return flow
        if flow.shape[:2] == shared.size:
            return self._camera.warped_field(shared, frame)
        height, width, _ = flow.shape
        still = self._resized(self._camera.still(shared, frame), (height, width))
        return self._fields.of(self._grey(shared, frame, (height, width)), still)

    def _of_the_scene(self, motions: _Floats) -> NDArray[np.bool_]:
        moving: NDArray[np.bool_] = np.linalg.norm(motions, axis=2).max(axis=0) > CAMERA_PX
        return moving

    def _normalised(self, histograms: _Floats) -> _Floats:
        return root(histograms)


def sound(points: _Floats) -> NDArray[np.bool_]:
    """Which of the tracks through these points, `(length + 1, n, 2)` px, neither stand still, wander nor jump."""
    steps = np.linalg.norm(np.diff(points, axis=0), axis=2)
    deviation = points.std(axis=0)
    jumping = (steps.max(axis=0) > JUMP_PX) & (steps.max(axis=0) > JUMP_PART * steps.sum(axis=0))
    found: NDArray[np.bool_] = (deviation >= STILL_PX).any(axis=1) & (deviation <= WANDERING_PX).all(axis=1) & ~jumping
    return found


def _flat(values: _Floats) -> _Floats:
    """Flatten all axes but the first."""
    return values.reshape(len(values), math.prod(values.shape[1:]))
