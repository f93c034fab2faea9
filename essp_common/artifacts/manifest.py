"""The manifest of a checkpoint: where the training stood, and which files belong to it.

It is written as `manifest.json` next to the files it names, sealed, and read without torch. Missing fields have
defaults and unknown ones are ignored, so checkpoints of other versions of ESSP can be read.
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
"""The weights for evaluation and prediction."""
TRAINED_FILE = "trained.tensors"
"""The weights to continue training from, if those in `MODEL_FILE` are an average."""
OPTIMIZER_FILE = "optimizer.tensors"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class ModelDescription(_Document):
    """Everything needed to build the network again, except its weights."""

    name: str
    """See `TrainerSpec.model`."""
    feature: str
    """The input feature."""
    layout: FeatureLayout
    """How to interpret that feature: determines how the input is normalised and mirrored."""
    channels: int
    """Channels of one frame of that feature."""
    frames: int = Field(1, ge=1)
    """Frames that a network of clips sees at once. Networks of single frames accept any number."""
    classes: tuple[str, ...]
    """Class names by class id."""
    dropout: float
    crop: int
    """Side of the square input in pixels."""
    evaluation_scale: float
    """Side of the square cut from a frame, as a fraction of the frame's short side; see `AugmentSpec`."""
    views: int = 1
    """Number of crops of each frame that are scored; see `AugmentSpec.evaluation_crops`."""
    independent: bool = Field(False, exclude_if=lambda independent: not independent)
    """Whether its classes are labels, each learned independently: any number of them may apply."""
    encoder: EncoderSpec | None = Field(None, exclude_if=lambda encoder: encoder is None)
    """Set for an encoder of descriptors, which has no network and does not cut its input to squares."""


def _in_range(position: Position) -> Position:
    if not (0 <= position.phase_index < 2**31 and 0 <= position.index < 2**63):
        raise ValueError("is outside of every plan")
    return position


class PhaseRecord(_Document):
    """The results of one phase."""

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
    """A change of the running job that the training has applied; see `essp_common/job/changes.py`."""

    number: Number
    """Number among all changes of the job, counted from 1."""
    epoch: Number
    """The epoch, counted from 0, in which it starts to apply."""
    clip: Number
    """The clip of that epoch from which it applies."""
    fields: dict[str, Any]
    """Dotted field of the job -> its new value."""

    @property
    def place(self) -> Place:
        """The place from which the training uses the change."""
        return Place(self.epoch, self.clip)

    def message(self, trainer: str) -> ChangeTaken:
        """As a message."""
        return ChangeTaken(trainer=trainer, number=self.number, place=self.place.message())


class Rounding(_Document):
    """What a checkpoint does not store exactly."""

    bits: Annotated[int, Field(ge=2, le=16)]
    """Bits of each rounded number."""
    scope: str
    """What shares one range of levels; see `CheckpointSpec.scope`."""
    files: tuple[str, ...]
    """The files that contain rounded numbers."""


class Origin(_Document):
    """The file with the initial weights of a training."""

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
    """The incarnation that wrote it, as numbered in `latest`."""
    updates: Number
    """Optimizer steps taken."""
    epoch: Number
    """The epoch whose training last changed the weights."""
    epochs: Number = 0
    """The job's number of epochs when it was written."""
    position: Annotated[Position, AfterValidator(_in_range), PlainSerializer(Position._asdict)]
    """Where training resumes."""
    running: dict[str, float] = {}
    """Running sums of the phase that is partly done at that position."""
    fence: Number = 0
    """Fencing number of the run that it belongs to."""
    digest: str = ""
    """Digest of all clips before `position`, in the order consumed; see `digest.py`."""
    spec_digest: str
    """Digest of everything in the job that affects the weights; a job with another digest cannot resume here."""
    clips: Number = 0
    """Digest of the planned clips of the first epoch and its validation. If a catalog gives another one, it has
    changed. 0: not known."""
    origin: Origin | None = None
    """The initial weights of the training; null: random. A resumed training does not read that file again."""
    model: ModelDescription
    metrics: dict[str, float] = {}
    """Metrics of the last completed phase."""
    best: Best | None = None
    history: tuple[PhaseRecord, ...] = ()
    scores: dict[str, str] = {}
    """Purpose -> key of the score table from these weights (final checkpoints)."""
    rounding: Rounding | None = None
    """Null: it is exact, and a training resumed from it equals an uninterrupted one."""
    approximate: tuple[Number, ...] = ()
    """Steps of the rounded checkpoints from which the training has resumed so far; empty: all of it was exact."""
    changes: tuple[TakenChange, ...] = ()
    """Changes of the running job that affect this trainer, in order."""
    versions: dict[str, str] = {}
    created: datetime | None = None
    final: bool = False
    """Whether these are the weights to fuse and predict with; nothing follows, unless the job gets more epochs."""
    files: tuple[StoredFile, ...] = ()

    @property
    def checkpoint(self) -> CheckpointName:
        """The name of the checkpoint."""
        return CheckpointName(self.step, self.incarnation)

    @property
    def prefix(self) -> str:
        """The prefix of its objects in the job's store."""
        return layout.checkpoint(self.trainer, self.step, self.incarnation)

    @property
    def key(self) -> str:
        """The key of the manifest in the job's store."""
        return self.prefix + layout.CHECKPOINT_MANIFEST

    def message(self, store: ObjectStore) -> CheckpointReady:
        """The message that announces the complete checkpoint. `store`: of the job's output."""
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
