"""Strategies that learn from features: each stream's clips become one vector of a video, which a linear classifier
scores. The streams are then fused as in `Pooled` strategies.

    features of all clips ─▶ subsample ─▶ PCA ─▶ codebook or mixture              (learned once)
    features of a video's clips ─▶ mean | Fisher vector | VLAD | bag of words | sketch ─▶ power, L2 ─▶ classifier

`essp_engine.encoders` cites the papers. A classifier would trust the features of the network's training videos too
much, so strategies learn only from validation videos.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_common.artifacts.scores import ClipScores
from essp_engine.aggregation.pooling import FusionParams, Pooled
from essp_engine.aggregation.port import Needs, State
from essp_engine.encoders.bilinear import TensorSketch, tensor_sketch
from essp_engine.encoders.classifier import LinearClassifier, fitted_classifier
from essp_engine.encoders.kmeans import Codebook, fitted_codebook
from essp_engine.encoders.mixture import Mixture, fitted_mixture
from essp_engine.encoders.pca import Pca, fitted_pca
from essp_engine.encoders.rows import Subsample
from essp_engine.encoders.vectors import bag_of_words, fisher_vector, l2, power, vlad

Floats = NDArray[np.float64]
T = TypeVar("T")

_MOST_ROWS = 100_000
"""Features for learning a codebook: a bounded sample, which depends on the names of the videos."""


class FeatureParams(FusionParams):
    """The parameters of the classifier."""

    penalty: float = Field(1e-3, gt=0, le=1e3)
    """Penalty on the squares of the classifier's weights. Try several values, as in `[0.0001, 0.001, 0.01]`."""


class CodebookParams(FeatureParams):
    """The parameters of the codebook."""

    pca: int = Field(64, ge=1, le=4096)
    """Principal components to which features are reduced; fewer, if there are fewer clips or numbers."""
    centres: int = Field(16, ge=1, le=4096)
    """Centres of the codebook, or Gaussians; fewer, if there are fewer clips."""


class SketchParams(FeatureParams):
    """The parameters of a sketch."""

    size: int = Field(1024, ge=1, le=2**16)
    """Numbers that represent the products of all pairs of features."""


class _Encoded(Pooled):
    needs: ClassVar[Needs] = "features"

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._params = params

    def fit_part(self, part: ClipScores) -> State:
        learned = self.learn(part)
        vectors = self._vectors(part, learned)
        classifier = fitted_classifier(
            vectors, part.means.class_id, part.means.probabilities.shape[1], self._params.penalty
        )
        return {**learned, **named("classifier", classifier)}

    def pool(self, part: ClipScores, state: State) -> Floats:
        """The classifier's scores."""
        return restored("classifier", LinearClassifier, state)(self._vectors(part, state))

    def learn(self, part: ClipScores) -> dict[str, NDArray[Any]]:
        """What the encoding needs; empty, if there is nothing to learn."""
        return {}

    @abstractmethod
    def encode(self, rows: Floats, state: State) -> Floats:
        """The vector of a video with `(T, D)` features."""

    def _vectors(self, part: ClipScores, state: State) -> Floats:
        return l2(np.stack([self.encode(rows, state) for rows in features_of(part)]))


class FeatureLinear(_Encoded):
    """A linear classifier of the mean feature of a video's clips. It is the simplest strategy that learns from
    features, and hard to beat with few videos."""

    name = "feature_linear"
    summary = "A linear classifier of the mean feature."
    Params: ClassVar[type[FeatureParams]] = FeatureParams

    def encode(self, rows: Floats, state: State) -> Floats:
        """The mean."""
        mean: Floats = rows.mean(axis=0)
        return mean


class CompactBilinear(_Encoded):
    """A linear classifier of the products of all pairs of features, summed over the clips, in a compact sketch."""

    name = "compact_bilinear"
    summary = "A linear classifier of products of features, in a sketch."
    Params: ClassVar[type[SketchParams]] = SketchParams

    def learn(self, part: ClipScores) -> dict[str, NDArray[Any]]:
        """The random numbers of the sketch."""
        return named("sketch", tensor_sketch(_features(part).shape[1], self._params.size))

    def encode(self, rows: Floats, state: State) -> Floats:
        """The sum of the sketches."""
        return power(restored("sketch", TensorSketch, state).pooled(rows))


class _WithCodebook(_Encoded):
    Params: ClassVar[type[CodebookParams]] = CodebookParams
    book: ClassVar[type[Any]] = Codebook

    def learn(self, part: ClipScores) -> dict[str, NDArray[Any]]:
        rows = sampled(part)
        pca = fitted_pca(rows, min(self._params.pca, *rows.shape))
        fit = fitted_mixture if self.book is Mixture else fitted_codebook
        book = fit(pca(rows), min(self._params.centres, len(rows)))
        return {**named("pca", pca), **named("book", book)}

    def encode(self, rows: Floats, state: State) -> Floats:
        book = restored("book", self.book, state)
        return power(self.encoded(restored("pca", Pca, state)(rows), book))

    @abstractmethod
    def encoded(self, rows: Floats, book: Any) -> Floats:
        """The vector of reduced features."""


class FisherVector(_WithCodebook):
    """A linear classifier of the Fisher vector of a video's clips: how their features differ from a mixture of
    Gaussians, in mean and spread."""

    name = "fisher_vector"
    summary = "A linear classifier of Fisher vectors of features."
    book = Mixture

    def encoded(self, rows: Floats, book: Mixture) -> Floats:
        """The Fisher vector."""
        return fisher_vector(rows, book)


class Vlad(_WithCodebook):
    """A linear classifier of VLAD: for each centre, the sum of the differences between its nearest features and the
    centre."""

    name = "vlad"
    summary = "A linear classifier of VLAD of features."

    def encoded(self, rows: Floats, book: Codebook) -> Floats:
        """The VLAD vector."""
        return vlad(rows, book)


class BagOfWords(_WithCodebook):
    """A linear classifier of how many clips have each centre as the nearest one."""

    name = "bag_of_words"
    summary = "A linear classifier of bags of words of features."

    def encoded(self, rows: Floats, book: Codebook) -> Floats:
        """The bag of words."""
        return bag_of_words(rows, book)


def features_of(part: ClipScores) -> Iterator[Floats]:
    """`(T, D)` for one video after the other: all of them in double precision would need much memory."""
    features = _features(part)
    return (features[a:b].astype(np.float64) for a, b in zip(part.first[:-1], part.first[1:], strict=True))


def sampled(part: ClipScores) -> NDArray[np.float16]:
    """`(n, D)` features of clips of all videos, at most as many as a projection or a codebook needs."""
    sample = Subsample(_MOST_ROWS)
    features = _features(part)
    for video, a, b in zip(part.means.video_id, part.first[:-1], part.first[1:], strict=True):
        sample.add(video, features[a:b])
    return sample.rows()


def _features(part: ClipScores) -> NDArray[np.float16]:
    if part.features is None:
        raise ValueError("a strategy that learns from features received only scores")
    return part.features


def named(prefix: str, learned: Any) -> dict[str, NDArray[Any]]:
    """The arrays of a dataclass, in the form of a strategy's state."""
    return {f"{prefix}.{name}": array for name, array in vars(learned).items()}


def restored(prefix: str, kind: type[T], state: State) -> T:
    """The dataclass of these arrays."""
    arrays = {n.removeprefix(f"{prefix}."): a for n, a in state.items() if n.startswith(f"{prefix}.")}
    return kind(**arrays)
