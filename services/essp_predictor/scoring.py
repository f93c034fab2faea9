"""The models of one stream: from the frames of a clip to class probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from essp_common.artifacts.fused_model import FusedModel, Member
from essp_common.errors import ConfigError, DeviceLost, OutOfMemory
from essp_common.job.feature_layout import FeatureLayout
from essp_common.objects.port import ObjectStore
from essp_engine.intake.wanted import Decoded
from essp_engine.learning.augment import Evaluated, evaluation_view
from essp_engine.learning.head_inputs import HeadInputs
from essp_engine.learning.models import AnyClassifier, built, load_member
from essp_engine.video.colour import pictures

Frames = NDArray[Any]
View = tuple[Evaluated, FeatureLayout]
"""How a member crops a clip, and the layout in which it reads it."""


class StreamScorer:
    """The members of a fused model that read one stream and have a nonzero weight. They score on one thread."""

    def __init__(
        self, store: ObjectStore, model: FusedModel, stream: str, device: torch.device, code: Sequence[str] = ()
    ) -> None:
        """Load the members from the model's folder.

        `code`: packages whose networks may be named by path. Raises `PermanentError` if the weights belong to another
        model, and `ConfigError` if a network is not installed here or not allowed.
        """
        self._device = device
        self._code = code
        self._members = [member for member in model.deciding if member.stream == stream]
        self._classifiers = {member.trainer: self._load(store, member) for member in self._members}
        self._head_inputs = {
            member.trainer: HeadInputs(self._classifiers[member.trainer])
            for member in (self._members if model.features else ())
        }

    @property
    def distinct_views(self) -> list[View]:
        """The distinct views that the members have of a clip."""
        return list(dict.fromkeys(_view(member) for member in self._members))

    def views(self, decoded: Decoded) -> dict[View, Frames]:
        """What the members see of a clip, `(T, crop, crop, C)` for each view. Thread-safe."""
        clip = pictures(decoded.frames, decoded.colour)
        return {view: evaluation_view(clip, *view) for view in self.distinct_views}

    def features(self, clips: int) -> dict[str, NDArray[np.float16]]:
        """Trainer -> `(N, D)` features of the N clips scored last; empty if the model does not use features."""
        return {name: inputs.of(clips) for name, inputs in self._head_inputs.items()}

    def score(self, clips: Sequence[Mapping[View, Frames]]) -> dict[str, NDArray[np.floating[Any]]]:
        """Trainer -> `(N, C)` probabilities of N clips. Raises `OutOfMemory`, `DeviceLost`."""
        with device_errors(self._device, len(clips)):
            return self._probabilities(clips)

    def _probabilities(self, clips: Sequence[Mapping[View, Frames]]) -> dict[str, NDArray[np.floating[Any]]]:
        batches = {
            view: torch.from_numpy(np.stack([clip[view] for clip in clips])).to(self._device)
            for view in self.distinct_views
        }
        with torch.inference_mode():
            return {
                member.trainer: self._classifiers[member.trainer](batches[_view(member)]).on_host()
                for member in self._members
            }

    def _load(self, store: ObjectStore, member: Member) -> AnyClassifier:
        try:
            classifier = built(member.model, self._code)
        except ConfigError as error:
            raise ConfigError(
                f"the predictor cannot make the network of trainer {member.trainer}: {error}", code="unreadable"
            ) from error
        load_member(classifier, store, member)
        return classifier.to(self._device).eval()


@contextmanager
def device_errors(device: torch.device, clips: int) -> Iterator[None]:
    """Turn the errors of a device that computes for this many clips into ours: `OutOfMemory`, `DeviceLost`."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"{device} has too little memory for {clips} clips at once; lower ESSP_BATCH_CLIPS"
        ) from error
    except torch.AcceleratorError as error:
        raise DeviceLost(f"the GPU failed ({error}); start the predictor again, and it resumes its jobs") from error


def _view(member: Member) -> View:
    return Evaluated.by(member.model), member.model.layout


def cores_used(choice: str) -> int:
    """How many cores the networks use on the device that a setting names: on a GPU, one that feeds it."""
    return torch.get_num_threads() if device_of(choice).type == "cpu" else 1


def device_of(choice: str) -> torch.device:
    """The device that a setting names; `auto`: a GPU if there is one, else the CPU. Raises `ConfigError` for a GPU that
    is not there."""
    if choice == "auto":
        choice = "cuda" if torch.cuda.is_available() else "cpu"
    elif choice == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "cuda is not available here; use auto or cpu, or install torch for CUDA",
            field="ESSP_DEVICE",
            code="unsupported",
        )
    return torch.device(choice)
