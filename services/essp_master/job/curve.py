"""The curve of a training within its epochs, in bounded memory: of many reports, every second, fourth, ... is kept."""

from __future__ import annotations

from collections.abc import Sequence

from essp_common.job.status import CurvePoint
from essp_common.pb.v1.messages_pb2 import TRAIN, StepReport

MOST = 512
"""Largest number of points."""


class Curve:
    """Points of one training, evenly spaced over all its reports. Not thread-safe."""

    def __init__(self) -> None:
        self._points: list[CurvePoint] = []
        self._every = 1
        self._seen = 0

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        """The points, in order."""
        return tuple(self._points)

    def recall(self, points: Sequence[CurvePoint]) -> None:
        """Continue after these points."""
        self._points = list(points)[-MOST + 1 :]

    def add(self, step: StepReport) -> None:
        """Add a report. Only reports of a training phase that has begun enter the curve."""
        if step.purpose != TRAIN or not step.clips_done:
            return
        if self._seen % self._every == 0:
            point = CurvePoint(epoch=step.epoch, clips_done=step.clips_done, loss=step.loss, top1=step.top1)
            self._points.append(point)
        self._seen += 1
        if len(self._points) == MOST:
            self._points = self._points[::2]
            self._every *= 2
