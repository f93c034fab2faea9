"""What a job of predictors computes from its clips: the classes of videos, or the vectors of clips.

Either is computed in the same way: each stream has a scorer, what it computes is saved part by part, and the result is
written from the parts once all streams are done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch

from essp_common import topics
from essp_common.artifacts import features, layout
from essp_common.artifacts.extraction import Extraction, extraction_of
from essp_common.artifacts.fused_model import FusedModel, open_model
from essp_common.artifacts.partial_scores import PartialScores
from essp_common.artifacts.predictions import write_predictions
from essp_common.artifacts.segments import write_segments
from essp_common.catalog.schema import PLANNED, TIMED
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.spec import JobSpec, PredictorSpec
from essp_common.objects.port import ObjectStore
from essp_common.records.names import name_of, names_by_split
from essp_common.records.rows import open_data
from essp_common.wiring import Stores
from essp_engine.aggregation.fused import fusion_of
from essp_engine.learning.models import starting_weights
from essp_predictor.answers import FusedAnswers
from essp_predictor.feature_output import FeatureOutput, Pieces
from essp_predictor.scoring import StreamScorer
from essp_predictor.stream import Scorer
from essp_predictor.vectors import CLASSES, EmbeddingScorer, FeatureScorer, NetworkScorer


@dataclass(frozen=True, slots=True)
class Answers:
    """The results of a finished job."""

    uri: str
    videos: int
    failed: int
    """Number of videos without a single decoded clip."""


class Task(Protocol):
    """The work of one job."""

    @property
    def model(self) -> FusedModel | Extraction:
        """What computes; saved parts belong to it."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that are scored."""

    def scorer(self, stream: str) -> Scorer:
        """The scorer of one stream. Raises `PermanentError` or `ConfigError` if it cannot be made."""

    def write(self, output: ObjectStore, parts: PartialScores, clips: int) -> Answers:
        """Write the result from the saved parts of `clips` clips. Safe to repeat; equal parts give equal bytes."""


def task_of(
    spec: JobSpec, layouts: Mapping[str, str], stores: Stores, device: torch.device, code: Sequence[str]
) -> Task:
    """The work of a job. `layouts`: stream -> `FeatureLayout` as JSON, from the job's snapshot. `code`: packages whose
    networks may be named by path.

    Raises `PermanentError` or `ConfigError` if its model or its weights cannot be used.
    """
    if spec.predictor is not None:
        return _Classification(spec, spec.predictor, stores, device, code)
    return _Extraction(spec, layouts, stores, device, code)


class _Classification:
    def __init__(
        self, spec: JobSpec, predictor: PredictorSpec, stores: Stores, device: torch.device, code: Sequence[str]
    ) -> None:
        self._spec, self._predictor, self._stores = spec, predictor, stores
        self._device, self._code = device, code
        self._folder, self.model = open_model(stores, predictor.model)
        self._fuse = fusion_of(self._folder, self.model)
        self.classes = self.model.classes

    def scorer(self, stream: str) -> Scorer:
        return StreamScorer(self._folder, self.model, stream, self._device, self._code)

    def write(self, output: ObjectStore, parts: PartialScores, clips: int) -> Answers:
        answers = FusedAnswers(parts, self._spec, self.model, self._fuse, clips)
        names = names_by_split(self._spec, self._stores)
        found = answers.predictions()
        named = ([replace(row, name=name_of(row.video_id, names) or None) for row in part] for part in found)
        write_predictions(output, layout.PREDICTIONS, named, answers.classes)
        if self._predictor.segments:
            write_segments(output, layout.SEGMENTS, answers.segments())
        return Answers(output.uri(layout.PREDICTIONS), answers.videos, answers.failed)


class _Extraction:
    def __init__(
        self, spec: JobSpec, layouts: Mapping[str, str], stores: Stores, device: torch.device, code: Sequence[str]
    ) -> None:
        self._spec, self._layouts, self._stores = spec, layouts, stores
        self._device, self._code = device, code
        if spec.extract is None:
            raise ValueError(f"job {spec.name} neither predicts nor extracts")
        fused = None
        if spec.fused_model is not None:
            self._folder, fused = open_model(stores, spec.fused_model[1])
        self._extract = spec.extract
        self.model = extraction_of(spec.extract, stores, fused)
        self.classes = CLASSES
        self._weights = None
        if spec.extract.network is not None:
            self._weights = starting_weights(stores, spec.extract.weights, code)

    def scorer(self, stream: str) -> Scorer:
        if self.model.model is not None:
            return EmbeddingScorer(self._folder, self.model, stream, self._device, self._code)
        of_stream = FeatureLayout.model_validate_json(self._layouts[stream])
        if self._weights is None:
            return FeatureScorer(self._extract, stream, of_stream)
        return NetworkScorer(self._spec, stream, of_stream, self._weights, self._device, self._code)

    def write(self, output: ObjectStore, parts: PartialScores, clips: int) -> Answers:
        catalog = open_data(self._spec, self._stores, (*PLANNED, *TIMED))
        made = FeatureOutput(output, self._spec, catalog)
        read = partial(_pieces, parts, clips)
        written = made.write(read, parts.identity, parts.plan_digest, self._sources())
        return Answers(output.uri(features.MANIFEST), written.videos, written.failed)

    def _sources(self) -> list[tuple[str, str]]:
        """The name and the stream of each source."""
        if self.model.model is not None:
            return [(member.trainer, member.stream) for member in self.model.model.deciding]
        return [(stream, stream) for stream in self._spec.streams]


def _pieces(parts: PartialScores, clips: int, stream: str) -> Pieces:
    blocks = range(-(-clips // topics.BLOCK_CLIPS))
    with closing(parts.read_blocks(stream, parts.saved(stream), blocks)) as read:
        for block, part in zip(blocks, read, strict=True):
            start = block * topics.BLOCK_CLIPS
            yield start, min(clips, start + topics.BLOCK_CLIPS), part
