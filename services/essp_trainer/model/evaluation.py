"""One evaluation phase: the probabilities of every clip, and the metrics computed from them.

Metrics are by clip and by video (from the mean of its clips' probabilities): top-1, top-5 (with more than five
classes), mean class accuracy and mAP (means over the classes that occur), and the cross entropy. With independent
labels, top-1 is the share of clips whose likeliest label is one of their labels, and there is no mean class accuracy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from essp_common.artifacts.figures import Labels, figures, log_losses, top_k
from essp_common.artifacts.scores import ScoreTable, by_video, name_of_clip
from essp_common.errors import PermanentError
from essp_common.pb.v1.messages_pb2 import ClipRef
from essp_engine.intake.ordered import Delivery
from essp_engine.learning.head_inputs import HeadInputs
from essp_engine.learning.models import AnyClassifier, Classifier
from essp_engine.loading.batch import Batch
from essp_engine.loading.device import enough_memory
from essp_trainer.model.step_result import StepResult


class Evaluation:
    """The scores of this rank's clips of one phase, in index order."""

    def __init__(
        self,
        model: AnyClassifier,
        device: torch.device,
        classes: tuple[str, ...],
        embeds: bool = False,
        *,
        each_alone: bool = False,
    ) -> None:
        """`embeds`: keep the features of the clips, too. `each_alone`: clips of one video have separate labels, so each
        counts as a video."""
        self._model = model.to(device)
        self._device = device
        self._classes = classes
        self._head_inputs = HeadInputs(model) if embeds else None
        self._independent = isinstance(model, Classifier) and model.independent
        self._each_alone = each_alone
        self._features: list[NDArray[np.float16]] = []
        self._labels: list[NDArray[np.bool_]] = []
        self._items: list[Delivery] = []
        self._probabilities: list[NDArray[np.floating[Any]]] = []

    def add(self, batch: Batch) -> StepResult:
        """Score this rank's share of a batch."""
        if batch.input is None:
            return StepResult(0.0, 0, 0)
        self._model.eval()
        with torch.inference_mode(), enough_memory(self._device, len(batch.clips)):
            probabilities = self._model(batch.input.here()).on_host()
        if self._head_inputs is not None:
            self._features.append(self._head_inputs.of(len(batch.clips)))
        self._items += batch.clips
        self._probabilities.append(probabilities)
        truth: Labels = batch.labels()
        if self._independent:
            truth = batch.label_sets(len(self._classes))
            self._labels.append(truth)
        correct = round(top_k(truth, probabilities, 1) * len(truth))
        return StepResult(float(log_losses(truth, probabilities).mean()), correct, len(truth))

    def table(self) -> ScoreTable:
        """End the evaluation. Returns the scores of all clips."""
        features = None
        if self._head_inputs is not None:
            self._head_inputs.close()
            features = np.concatenate(self._features) if self._features else np.zeros((0, 0), np.float16)
        none = np.zeros((0, len(self._classes)), dtype=np.float32)
        return ScoreTable(
            video_id=tuple(self._name(item.clip) for item in self._items),
            class_id=np.array([item.clip.class_id for item in self._items], dtype=np.int32),
            clip_index=np.array([item.clip.index for item in self._items], dtype=np.int64),
            probabilities=np.concatenate([none, *self._probabilities]),
            classes=self._classes,
            features=features,
            labels=np.concatenate([none.astype(np.bool_), *self._labels]) if self._independent else None,
        )

    def _name(self, clip: ClipRef) -> str:
        return name_of_clip(clip.video_id, clip.first_frame) if self._each_alone else clip.video_id


def clip_and_video_figures(table: ScoreTable) -> dict[str, float]:
    """Return `loss` and the metrics by clip, and `video_...` by video. Raises `PermanentError` if the table is
    empty."""
    if len(table) == 0:
        raise PermanentError("an evaluation phase has no clips: no video of it could be decoded")
    videos = by_video(table)
    by_clip = _figures(table.truth, table.probabilities)
    return by_clip | {f"video_{name}": value for name, value in _figures(videos.truth, videos.probabilities).items()}


def _figures(labels: Labels, probabilities: NDArray[Any]) -> dict[str, float]:
    """Return the common metrics; the log loss gets the name that it has in training."""
    found = figures(labels, probabilities)
    return {"loss": found.pop("log_loss")} | found
