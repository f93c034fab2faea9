"""The vectors of the clips of one stream of an extract job: embeddings of networks, or the values of a feature.

A vector takes the way of a score (`stream.py`): the sources of a stream are what the members of a model are to a
prediction. As there are no classes, each clip has the score 0 in one class without a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from essp_common.artifacts.extraction import Extraction
from essp_common.artifacts.manifest import ModelDescription
from essp_common.errors import ConfigError
from essp_common.job.extract_spec import ExtractSpec
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.spec import JobSpec
from essp_common.objects.port import ObjectStore
from essp_engine.encoders.rows import descriptors_of
from essp_engine.features.quantization import ZERO
from essp_engine.intake.wanted import Decoded
from essp_engine.learning.augment import Evaluated, evaluation_view
from essp_engine.learning.head_inputs import HeadInputs
from essp_engine.learning.models import Classifier, StartingWeights, build
from essp_engine.video.colour import pictures
from essp_predictor.scoring import Frames, StreamScorer, View, device_errors

CLASSES = ("",)
"""The classes of a part of an extract job."""
_HALF_RANGE = 127
_MOST = {np.dtype(kind): float(np.finfo(kind).max) for kind in (np.float16, np.float32)}


class EmbeddingScorer(StreamScorer):
    """The networks of a fused model that read one stream."""

    def __init__(
        self,
        store: ObjectStore,
        extraction: Extraction,
        stream: str,
        device: torch.device,
        code: Sequence[str] = (),
    ) -> None:
        """`store`: the model's folder. Raises as `StreamScorer`."""
        if extraction.model is None:
            raise ValueError("the job names no fused model")
        super().__init__(store, extraction.model, stream, device, code)
        self._inputs = {name: HeadInputs(classifier) for name, classifier in self._classifiers.items()}
        self._dtype = np.dtype(extraction.extract.dtype)

    def score(self, clips: Sequence[Mapping[View, Frames]]) -> dict[str, NDArray[np.floating[Any]]]:
        """Source -> a score that says nothing, for each clip. Raises as `StreamScorer.score`."""
        return {name: no_scores(len(rows)) for name, rows in super().score(clips).items()}

    def features(self, clips: int) -> dict[str, NDArray[np.floating[Any]]]:
        """Source -> `(N, D)` vectors of the N clips scored last."""
        return {name: _stored(inputs.means(clips).cpu().numpy(), self._dtype) for name, inputs in self._inputs.items()}


class NetworkScorer:
    """One network, which is made when the first clips show the number of their channels. Used on one thread, except
    `views`."""

    def __init__(
        self,
        spec: JobSpec,
        stream: str,
        layout: FeatureLayout,
        weights: StartingWeights,
        device: torch.device,
        code: Sequence[str] = (),
    ) -> None:
        """`weights`: of the network. `layout`: of the stream's values. `code`: as for `StreamScorer`."""
        if spec.extract is None or spec.extract.network is None:
            raise ValueError("the job names no network")
        self._extract: ExtractSpec = spec.extract
        self._network: str = spec.extract.network
        self._snippets = spec.clip.snippets
        self._stream, self._feature, self._layout = stream, spec.streams[stream].feature, layout
        self._weights: StartingWeights | None = weights
        self._device = device
        self._code = code
        self._view = Evaluated(self._extract.crop, self._extract.evaluation_scale, self._extract.evaluation_crops)
        self._classifier: Classifier | None = None
        self._inputs: HeadInputs | None = None

    def views(self, decoded: Decoded) -> dict[View, Frames]:
        """What the network sees of a clip, `(T, crop, crop, C)`. Thread-safe."""
        clip = pictures(decoded.frames, decoded.colour)
        return {(self._view, self._layout): evaluation_view(clip, self._view, self._layout)}

    def score(self, clips: Sequence[Mapping[View, Frames]]) -> dict[str, NDArray[np.floating[Any]]]:
        """Compute the vectors, which `features` then returns. Raises `OutOfMemory`, `DeviceLost`, `ConfigError`."""
        batch = np.stack([clip[self._view, self._layout] for clip in clips])
        classifier = self._classifier or self._made(batch.shape[-1], batch.shape[1])
        with device_errors(self._device, len(clips)), torch.inference_mode():
            classifier(torch.from_numpy(batch).to(self._device))
        return {self._stream: no_scores(len(clips))}

    def features(self, clips: int) -> dict[str, NDArray[np.floating[Any]]]:
        """Stream -> `(N, D)` vectors of the N clips scored last."""
        if self._inputs is None:
            raise ValueError("nothing has been scored")
        return {self._stream: _stored(self._inputs.means(clips).cpu().numpy(), np.dtype(self._extract.dtype))}

    def _made(self, channels: int, frames: int) -> Classifier:
        description = ModelDescription(
            name=self._network,
            feature=self._feature,
            layout=self._layout,
            channels=channels,
            frames=max(1, frames // self._extract.evaluation_crops // self._snippets),
            classes=CLASSES,
            dropout=0.0,
            crop=self._extract.crop,
            evaluation_scale=self._extract.evaluation_scale,
            views=self._extract.evaluation_crops,
        )
        try:
            tensors = None if self._weights is None else self._weights.tensors
            made = build(description, 0, tensors, self._code).to(self._device).eval()
        except ConfigError as error:
            raise error.within("extract.network") from error
        self._weights = None
        self._classifier, self._inputs = made, HeadInputs(made)
        return made


class FeatureScorer:
    """No network: the values of the stream's feature."""

    def __init__(self, extract: ExtractSpec, stream: str, layout: FeatureLayout) -> None:
        self._extract, self._stream, self._layout = extract, stream, layout
        self._view: View = (Evaluated(0, 1.0, 1), layout)
        self._rows: list[NDArray[np.floating[Any]]] = []

    def views(self, decoded: Decoded) -> dict[View, Frames]:
        """The vector of a clip, `(D,)`. Thread-safe."""
        clip = pictures(decoded.frames, decoded.colour)
        return {self._view: feature_vector(clip, self._layout, self._extract.reduce == "mean")}

    def score(self, clips: Sequence[Mapping[View, Frames]]) -> dict[str, NDArray[np.floating[Any]]]:
        """Keep the vectors, which `features` then returns."""
        self._rows = [clip[self._view] for clip in clips]
        return {self._stream: no_scores(len(clips))}

    def features(self, clips: int) -> dict[str, NDArray[np.floating[Any]]]:
        """Stream -> `(N, D)` vectors of the N clips scored last."""
        rows, self._rows = self._rows, []
        if len(rows) != clips:
            raise ValueError(f"{len(rows)} clips were scored, not {clips}")
        return {self._stream: _stored(np.stack(rows), np.dtype(self._extract.dtype))}


def feature_vector(values: NDArray[Any], layout: FeatureLayout, mean: bool) -> NDArray[np.float32]:
    """`(D,)` numbers of the values of a clip: with `mean`, one for each channel, without the location of descriptors.

    Signed values that are stored as bytes become -1 to 1, where 1 is the bound of the feature.
    """
    if layout.values == "descriptor":
        rows = descriptors_of(values, layout.facts) if mean else values
        exact = rows.astype(np.float32)
        if mean and not len(exact):
            return np.zeros(values.shape[-1] - layout.facts, np.float32)
    elif layout.values == "signed" and values.dtype == np.uint8:
        exact = values.astype(np.float32)
        exact -= ZERO
        exact /= _HALF_RANGE
    else:
        exact = values.astype(np.float32)
    if not mean:
        return exact.reshape(-1)
    means: NDArray[np.float32] = exact.reshape(-1, exact.shape[-1]).mean(axis=0, dtype=np.float64).astype(np.float32)
    return means


def no_scores(clips: int) -> NDArray[np.float32]:
    """The scores of clips in the class without a name."""
    return np.zeros((clips, len(CLASSES)), np.float32)


def _stored(rows: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[np.floating[Any]]:
    """In the type in which they are stored, within its range."""
    stored: NDArray[np.floating[Any]] = np.clip(rows, -_MOST[dtype], _MOST[dtype]).astype(dtype)
    return stored
