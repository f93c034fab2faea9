"""One evaluation phase: class probabilities of every clip, and the figures computed from them.

Figures are by clip and by video (the mean of its clips' probabilities): top-1, top-5 (or top-K for fewer classes), mean
class accuracy and mAP (means over the classes that occur), all by torchmetrics; and the cross entropy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from essp_common.artifacts.scores import ScoreTable, by_video
from essp_common.errors import PermanentError
from essp_common.learning.models import Classifier
from essp_common.learning.torchvision_compat import torchmetrics
from essp_common.messages.ordered import Delivery
from essp_trainer.data.device import enough_memory
from essp_trainer.data.prefetch import Batch
from essp_trainer.model.training import StepResult

_MIN_PROBABILITY = 1e-12
"""Smaller probabilities count as this, so that the cross entropy stays finite."""


class Evaluation:
    """The scores of this rank's clips of one phase, in index order."""

    def __init__(self, model: Classifier, device: torch.device, classes: tuple[str, ...]) -> None:
        self._model = model.to(device)
        self._device = device
        self._classes = classes
        self._items: list[Delivery] = []
        self._probabilities: list[NDArray[np.float32]] = []

    def add(self, batch: Batch) -> StepResult:
        """Score this rank's share of a batch."""
        if batch.input is None:
            return StepResult(0.0, 0, 0)
        self._model.eval()
        with torch.inference_mode(), enough_memory(self._device, len(batch.clips)):
            probabilities = self._model(batch.input.here()).logits.softmax(dim=1).cpu().numpy()
        self._items += batch.clips
        self._probabilities.append(probabilities)
        labels = batch.labels()
        given = np.maximum(probabilities[np.arange(len(labels)), labels], _MIN_PROBABILITY)
        correct = int((probabilities.argmax(axis=1) == labels).sum())
        return StepResult(float(-np.log(given).mean()), correct, len(labels))

    def table(self) -> ScoreTable:
        """The scores of all clips so far."""
        none = np.zeros((0, len(self._classes)), dtype=np.float32)
        return ScoreTable(
            video_id=tuple(item.clip.video_id for item in self._items),
            class_id=np.array([item.clip.class_id for item in self._items], dtype=np.int32),
            clip_index=np.array([item.clip.index for item in self._items], dtype=np.int64),
            probabilities=np.concatenate([none, *self._probabilities]),
            classes=self._classes,
        )


def figures(table: ScoreTable) -> dict[str, float]:
    """`loss`, `top1`, `top5`, `mean_class`, `mAP` by clip, `video_...` by video. Raises `PermanentError` if empty."""
    if len(table) == 0:
        raise PermanentError("an evaluation phase has no clips: none of its videos could be decoded")
    videos = by_video(table)
    clip = _of(table.probabilities, table.class_id)
    video = _of(videos.probabilities, videos.class_id)
    return clip | {f"video_{name}": value for name, value in video.items()}


def _of(probabilities: NDArray[Any], class_id: NDArray[np.int32]) -> dict[str, float]:
    scores = torch.from_numpy(np.ascontiguousarray(probabilities, dtype=np.float64))
    target = torch.from_numpy(class_id.astype(np.int64))
    given = scores[torch.arange(len(target)), target].clamp_min(_MIN_PROBABILITY)
    return {
        "loss": float(-given.log().mean()),
        "top1": _accuracy(scores, target, 1),
        "top5": _accuracy(scores, target, min(5, scores.shape[1])),
        "mean_class": _mean_class_accuracy(scores, target),
        "mAP": _mean_average_precision(scores, target),
    }


def _accuracy(scores: Tensor, target: Tensor, k: int) -> float:
    metric = torchmetrics.functional.classification.multiclass_accuracy
    return float(metric(scores, target, num_classes=scores.shape[1], top_k=k, average="micro"))


def _mean_class_accuracy(scores: Tensor, target: Tensor) -> float:
    metric = torchmetrics.functional.classification.multiclass_accuracy
    return _mean_over_present(metric(scores, target, num_classes=scores.shape[1], average="none"), target)


def _mean_average_precision(scores: Tensor, target: Tensor) -> float:
    metric = torchmetrics.functional.classification.multiclass_average_precision
    return _mean_over_present(metric(scores, target, num_classes=scores.shape[1], average="none"), target)


def _mean_over_present(by_class: Tensor, target: Tensor) -> float:
    return float(by_class[torch.bincount(target, minlength=len(by_class)) > 0].mean())
