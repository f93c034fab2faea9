"""The task of a trainer: one training of one job, from the job's snapshot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from essp_common.artifacts.early_stop import EarlyStop, early_stop
from essp_common.artifacts.manifest import Manifest, ModelDescription, PhaseRecord
from essp_common.catalog.checks import LARGEST_COUNT
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import StreamSpec
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.position import Position, after_epochs
from essp_common.job.spec import JobSpec, stored_spec
from essp_common.job.trainer_spec import TrainerSpec
from essp_common.messages.control import run_of
from essp_common.pb.v1.messages_pb2 import EMBED, TEST, ClipRef, Control, JobSnapshot, PhasePlan, Purpose
from essp_common.runtime import ids
from essp_common.validation import suggested
from essp_engine.features.sampling import seen_at_once


@dataclass(frozen=True)
class Assignment:
    """One training."""

    job: str
    trainer: str
    spec: JobSpec
    training: TrainerSpec
    stream: StreamSpec
    layout: FeatureLayout
    """How to read the stream."""
    classes: tuple[str, ...]
    phases: tuple[PhasePlan, ...]
    versions: dict[str, str]
    fence: int
    since: int = 0
    """The fence with which this run of the job began; 0 if unknown."""
    clips: int = 0
    """Digest of the clips of the first epoch and its validation (`JobSnapshot.training_digest`); 0 if unknown."""
    code: tuple[str, ...] = ()
    """Packages from which the job may name the network and the loss by path."""

    @classmethod
    def of(cls, command: Control, trainer: str, code: tuple[str, ...] = ()) -> Self:
        """Return the training named `trainer` of a job. Raises `ConfigError` if the job has no such trainer."""
        snapshot = command.snapshot
        spec = stored_spec(snapshot.spec_json, f"job {command.job}")
        if trainer not in spec.trainers:
            known = suggested(trainer, spec.trainers, "it has: ")
            raise ConfigError(
                f"job {command.job} has no trainer {trainer!r}; {known}. `essp job set` adds one while the job runs",
                code="unknown",
            )
        training = spec.trainers[trainer]
        return cls(
            job=command.job,
            trainer=trainer,
            spec=spec,
            training=training,
            stream=spec.streams[training.stream],
            layout=_layout(snapshot, training.stream),
            classes=tuple(snapshot.classes),
            phases=tuple(snapshot.phases),
            versions=dict(sorted(snapshot.versions.items())),  # a map has no order, a manifest has
            fence=command.fence,
            since=run_of(command),
            clips=snapshot.training_digest,
            code=code,
        )

    @property
    def consumer(self) -> str:
        """The consumer id with which the trainer acks clips."""
        return ids.trainer_consumer(self.trainer)

    @property
    def seed(self) -> int:
        """The seed of all its random numbers: initial weights, augmentation, dropout.

        It does not depend on the trainer's name, so trainers that differ in one setting differ in nothing else.
        """
        return self.spec.sampling.seed if self.training.seed is None else self.training.seed

    def described(self, channels: int) -> ModelDescription:
        """Return the model to train on frames with this many channels, or on descriptors with this many numbers."""
        return ModelDescription(
            name=self.training.model,
            feature=self.stream.feature,
            layout=self.layout,
            channels=channels,
            frames=seen_at_once(self.stream),
            classes=self.classes,
            dropout=self.training.dropout,
            crop=self.training.augment.crop,
            evaluation_scale=self.training.augment.evaluation_scale,
            views=self.training.augment.evaluation_crops,
            independent=self.learns_labels,
            encoder=self.training.encoder if self.training.is_encoder else None,
        )

    @property
    def learns_labels(self) -> bool:
        """Whether the training learns independent labels, and not the class of a clip."""
        return self.spec.data.targets != "class"

    def fits(self, clip: ClipRef) -> bool:
        """Whether a clip has a class, or labels, that the job has; any client may write to the bus. A training that
        learns labels ignores the class of a clip, which is one of the catalog's and is only checked to be plausible."""
        if not self.learns_labels:
            return clip.class_id < len(self.classes)
        return clip.class_id < LARGEST_COUNT and all(label < len(self.classes) for label in clip.labels)

    @property
    def end(self) -> Position:
        """The position after the last phase."""
        return Position(len(self.phases), 0)

    @property
    def rest(self) -> Position:
        """The position after all epochs."""
        return after_epochs(self.phases)

    def begins_at(self, manifest: Manifest) -> Position:
        """Return where the training continues from a checkpoint: after all epochs if it has stopped early."""
        return manifest.position if self.stop_at(manifest) is None else self.rest

    def stop_at(self, manifest: Manifest) -> EarlyStop | None:
        """Return the early stop of a training at this checkpoint; None if the training continues there."""
        return self.stop_of(manifest.history) if manifest.position < self.rest else None

    def stop_of(self, history: Iterable[PhaseRecord]) -> EarlyStop | None:
        """Return the early stop that follows from this history; None if the training continues."""
        return early_stop(history, self.training, self.spec.epochs)

    def embeds(self, plan: PhasePlan) -> bool:
        """Whether the features of a phase's clips are needed in addition to their scores."""
        return self.spec.aggregation.features and plan.purpose in (EMBED, TEST)

    def clips_before(self, position: Position) -> int:
        """Return the number of clips in all phases before a position."""
        return sum(plan.clips for plan in self.phases[: position.phase_index]) + position.index

    def position_after(self, clips: int) -> Position:
        """The inverse of `clips_before`; at the end of a phase it returns the beginning of the next."""
        for number, plan in enumerate(self.phases):
            if clips < plan.clips:
                return Position(number, clips)
            clips -= plan.clips
        return self.end

    def digest(self) -> str:
        """Return the SHA-256 of everything in the job that determines the weights.

        A larger budget, another trainer, another device, another patience or more epochs do not change it, so such a
        job can be resumed. Fields with their default value are left out, so a field that a later version of ESSP adds
        changes no digest.
        """
        free = {"device", "threads", "checkpoint", "stop"}
        document: dict[str, object] = {
            "spec": self.spec.model_dump(mode="json", include={"data", "clip", "sampling"}, exclude_defaults=True),
            "stream": self.stream.model_dump(mode="json", exclude_defaults=True),
            "training": self.training.model_dump(mode="json", exclude=free, exclude_defaults=True),
        }
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _layout(snapshot: JobSnapshot, stream: str) -> FeatureLayout:
    if stream not in snapshot.layouts:
        raise ConfigError(
            f"the snapshot of the job does not say how to read stream {stream!r}; start the job again",
            code="unreadable",
        )
    return FeatureLayout.model_validate_json(snapshot.layouts[stream])


def purpose_name(purpose: Purpose) -> str:
    """Return `train`, `validation`, `embed`, `test` or `predict`: the name in files and histories."""
    return Purpose.Name(purpose).lower()
