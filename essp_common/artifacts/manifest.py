"""What a checkpoint says of itself: where the training stood, and what belongs to it.

It is written as `manifest.json` beside the files it names, sealed, and read without torch. What it lacks has a default,
and what it has beyond that is passed over, so checkpoints of other versions of ESSP can be read.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

from essp_common.artifacts import layout
from essp_common.artifacts.checkpoint_files import StoredFile
from essp_common.artifacts.ownership import CheckpointName, Number
from essp_common.job.changes import Place
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.position import Position
from essp_common.job.trainer_spec import EncoderSpec
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import ChangeTaken, CheckpointReady

MODEL_FILE = "model.tensors"
"""The weights to evaluate and predict with."""
TRAINED_FILE = "trained.tensors"
"""The weights to go on training from, where those of `MODEL_FILE` are an average."""
OPTIMIZER_FILE = "optimizer.tensors"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class ModelDescription(_Document):
    """All that is needed to build the network again, without its weights."""

    name: str
    """See `TrainerSpec.model`."""
    feature: str
    """What it sees."""
    layout: FeatureLayout
    """How that feature is read: decides how the input is normalised and mirrored."""
    channels: int
    """Channels of one frame of that feature."""
    frames: int = Field(1, ge=1)
    """Frames that a network of clips sees at once. Networks of single frames take any number."""
    classes: tuple[str, ...]
    """Class names by class id."""
    dropout: float
    crop: int
    """Side of the square it sees."""
    evaluation_scale: float
    """Side of the square that is cut for it, share of the frame's short side; see `AugmentSpec`."""
    views: int = 1
    """How many such squares of each frame are scored; see `AugmentSpec.evaluation_crops`."""
    independent: bool = Field(False, exclude_if=lambda independent: not independent)
    """Its classes are labels, each learned by itself: any number of them may hold."""
    encoder: EncoderSpec | None = Field(None, exclude_if=lambda encoder: encoder is None)
    """Not None: it is no network, but an encoder of descriptors, which are not cut to squares."""


def _in_range(position: Position) -> Position:
    if not (0 <= position.phase_index < 2**31 and 0 <= position.index < 2**63):
        raise ValueError("is outside of every plan")
    return position


class PhaseRecord(_Document):
    """What came out of one phase."""

    purpose: str
    """train, validation or test."""
    epoch: Number
    metrics: dict[str, float]


class Best(_Document):
    """The checkpoint with the best validation so far."""

    step: Number
    epoch: Number
    metrics: dict[str, float]


class TakenChange(_Document):
    """A change of the running job that the training took up; see `essp_common/job/changes.py`."""

    number: Number
    """Among all changes of the job, from 1 on."""
    epoch: Number
    """It trains with it from this epoch on, counted from 0,"""
    clip: Number
    """and from this clip of that epoch on."""
    fields: dict[str, Any]
    """Dotted field of the job -> its value."""

    @property
    def place(self) -> Place:
        """The place from which on the training has the change."""
        return Place(self.epoch, self.clip)

    def message(self, trainer: str) -> ChangeTaken:
        """As a message."""
        return ChangeTaken(trainer=trainer, number=self.number, place=self.place.message())


class Rounding(_Document):
    """What a checkpoint does not hold to the last bit."""

    bits: Annotated[int, Field(ge=2, le=16)]
    """Bits of each number that is rounded."""
    scope: str
    """What has a range of its own; see `CheckpointSpec.scope`."""
    files: tuple[str, ...]
    """Those that have such numbers."""


class Origin(_Document):
    """The file of weights that a training began with."""

    uri: str
    """See `TrainerSpec.weights`."""
    sha256: str
    """SHA-256 of all its bytes, in hexadecimal."""


class Manifest(_Document):
    """One checkpoint: where the training stood and what belongs to it."""

    job: str
    trainer: str
    step: Number
    """Clips consumed so far, over all phases."""
    incarnation: Number = 0
    """The process that wrote it, as `latest` numbers them."""
    updates: Number
    """Optimiser steps taken."""
    epoch: Number
    """The epoch whose training the weights saw last."""
    epochs: Number = 0
    """How many the job had when it was written."""
    position: Annotated[Position, AfterValidator(_in_range), PlainSerializer(Position._asdict)]
    """Where training resumes."""
    running: dict[str, float] = {}
    """Sums of the phase that is half done there."""
    fence: Number = 0
    """Fencing number of the run that it belongs to."""
    digest: str = ""
    """Digest of all clips before `position`, as they were seen; see `digest.py`."""
    spec_digest: str
    """Of everything in the job that decides what the weights become; a job with another digest cannot resume here."""
    clips: Number = 0
    """Digest of the clips of the first epoch and its validation, as planned: a catalog that gives others has changed.
    0: not known."""
    origin: Origin | None = None
    """What the training began with; null: from scratch. A training that resumes does not read that file again."""
    model: ModelDescription
    metrics: dict[str, float] = {}
    """Figures of the last phase that has ended."""
    best: Best | None = None
    history: tuple[PhaseRecord, ...] = ()
    scores: dict[str, str] = {}
    """Purpose -> key of the score table these weights gave (final checkpoints)."""
    rounding: Rounding | None = None
    """Null: it is exact, and a training that resumes from it equals one that went on."""
    approximate: tuple[Number, ...] = ()
    """Steps of the rounded checkpoints that the training resumed from until here; empty: all of it was exact."""
    changes: tuple[TakenChange, ...] = ()
    """Changes of the running job that concern this trainer, in order."""
    versions: dict[str, str] = {}
    created: datetime | None = None
    final: bool = False
    """These are the weights to fuse and predict with; nothing follows, unless the job is given more epochs."""
    files: tuple[StoredFile, ...] = ()

    @property
    def checkpoint(self) -> CheckpointName:
        """Which checkpoint it is."""
        return CheckpointName(self.step, self.incarnation)

    @property
    def prefix(self) -> str:
        """Where its objects lie in the job's store."""
        return layout.checkpoint(self.trainer, self.step, self.incarnation)

    @property
    def key(self) -> str:
        """Where the manifest lies in the job's store."""
        return self.prefix + layout.CHECKPOINT_MANIFEST

    def message(self, store: ObjectStore) -> CheckpointReady:
        """The message that announces the checkpoint once it is complete. `store`: that of the job's output."""
        scores = self.scores.get("validation") or self.scores.get("test")
        return CheckpointReady(
            job=self.job,
            trainer=self.trainer,
            uri=store.uri(self.key),
            epoch=self.epoch,
            final=self.final,
            scores_uri=store.uri(scores) if scores else "",
            position=self.position.message(),
            step=self.step,
            digest=self.digest,
            approximate=self.approximate,
            changes=[change.message(self.trainer) for change in self.changes],
        )
