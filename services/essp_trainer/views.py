"""What a training sees of its clips: a random crop while it trains, unless it is a probe; otherwise fixed crops.

The host makes the crops, or leaves the pixels to the device (`essp_engine/loading/device_views.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from essp_common.errors import ConfigError
from essp_common.pb.v1.messages_pb2 import TRAIN, ClipRef
from essp_engine.learning.augment import Evaluated, evaluation_cuts, evaluation_view, training_cut, training_view
from essp_engine.learning.cut import Cut
from essp_engine.loading.batch import Frames, View, on_host
from essp_engine.loading.device_views import DeviceViews, left_to_host, on_device
from essp_engine.loading.settings import ViewPlace
from essp_trainer.assignment import Assignment


def views(assignment: Assignment, place: ViewPlace, device: torch.device) -> tuple[View, DeviceViews | None]:
    """Return what is done with a clip on the host, and what is left to the device (None: nothing).

    Raises `ConfigError` if everything must be left to a device that cannot do it.
    """
    seen = _Seen(assignment)
    if place == "host" or (place == "auto" and device.type == "cpu"):
        return on_host(seen.view), None
    augment, layout = assignment.training.augment, assignment.layout
    obstacle = left_to_host(assignment.spec.clip, augment, layout)
    if not obstacle:
        return on_device(seen.cuts), DeviceViews(augment.crop, layout)
    if place == "device":
        raise ConfigError(
            f"ESSP_VIEWS=device: not for trainer {assignment.trainer}: {obstacle}; use ESSP_VIEWS=auto",
            code="unsupported",
        )
    return on_host(seen.view), None


class _Seen:
    """What the model sees of each clip: as pixels, or as cuts."""

    def __init__(self, assignment: Assignment) -> None:
        probe, augment = assignment.training.probe, assignment.training.augment
        self._augment, self._layout, self._seed = augment, assignment.layout, assignment.seed
        self._varied = probe is None or probe.augment
        self._evaluated = Evaluated(augment.crop, augment.evaluation_scale, augment.evaluation_crops)

    def view(self, clip: ClipRef, frames: Frames) -> Frames:
        if self._is_varied(clip):
            return training_view(frames, self._augment, self._layout, self._seed, clip.epoch, clip.index)
        return evaluation_view(frames, self._evaluated, self._layout)

    def cuts(self, clip: ClipRef, height: int, width: int) -> Sequence[Cut]:
        if self._is_varied(clip):
            return [training_cut(height, width, self._augment, self._seed, clip.epoch, clip.index)]
        return evaluation_cuts(height, width, self._evaluated)

    def _is_varied(self, clip: ClipRef) -> bool:
        return clip.purpose == TRAIN and self._varied
