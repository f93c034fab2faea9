"""The fused model as it lies in the object store: all that is needed to classify a video with it.

    model/manifest.json            this document; written last, so a model that can be read is complete
    model/<trainer>.safetensors    the weights of each member

The folder refers to nothing outside itself. It holds no date, so equal training runs write equal manifests.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from essp_common.artifacts import layout
from essp_common.artifacts.checkpoint import ModelDescription
from essp_common.artifacts.figures import Figures
from essp_common.artifacts.scores import Rule
from essp_common.artifacts.sealed import sealed, unsealed
from essp_common.errors import NotFound, PermanentError
from essp_common.job.spec import ClipSpec, StreamSpec
from essp_common.objects.port import ObjectStore
from essp_common.validation import problems
from essp_common.wiring import Stores

MANIFEST = "manifest.json"
FEW_VIDEOS = 30
"""With fewer validation videos, the standard error of an accuracy is 9 points."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Member(_Section):
    """One trained model of the ensemble."""

    trainer: str
    stream: str
    weight: float
    """Its share of the fused score; the weights of a model sum to 1."""
    model: ModelDescription
    """Which network, and what it sees."""
    file: str
    """Its weights, beside the manifest: safetensors, or packed (`essp_common/tensors/packed.py`)."""
    bits: int = 0
    """To how many bits its weights were rounded; 0: they are as they were trained."""
    sha256: str
    checkpoint: str
    """URI of the checkpoint (its manifest) that the weights were taken from, for the record."""
    epoch: int


class Strategy(_Section):
    """One way of fusing, as it did on the validation split."""

    name: str
    rule: Rule
    weights: dict[str, float]
    validation: Figures
    """With weights fitted to these very videos."""
    held_out_log_loss: float | None = None
    """On videos that the weights were not fitted to, by cross-validation; the lowest is chosen. Null: one video."""
    uncertainty: float | None = None
    """Standard error of its difference from that of the chosen one."""


class Evaluation(_Section):
    """Figures by video on one split: each trainer alone, and fused."""

    videos: int
    """Videos that every trainer has scored; only these are counted."""
    left_out: int
    """Videos that some trainer has not scored."""
    members: dict[str, Figures]
    fused: Figures


class FusedModel(_Section):
    """A fused classifier."""

    format: Literal[1] = 1
    job: str
    classes: tuple[str, ...]
    clip: ClipSpec
    clips_per_video: int
    streams: dict[str, StreamSpec]
    """The streams its members need; the extractors' own parameters go with them."""
    members: tuple[Member, ...]
    strategy: str
    """The strategy that was chosen; `strategies` has the evidence."""
    rule: Rule
    """How it makes one score of the members' (`essp_common.artifacts.scores.mix`)."""
    strategies: tuple[Strategy, ...]
    validation: Evaluation | None
    """Null: the job had no validation split; the streams then count the same."""
    test: Evaluation | None
    """Null: the job had no test split."""
    versions: dict[str, str]

    @property
    def doubt(self) -> str:
        """Why the choice of the strategy may be chance; empty if there were videos enough."""
        if self.validation is None or len(self.members) < 2 or self.validation.videos >= FEW_VIDEOS:
            return ""
        return (
            f"only {self.validation.videos} validation videos chose the strategy and its weights, which may be chance; "
            f"with {FEW_VIDEOS} or more it is less so"
        )

    @property
    def weights(self) -> dict[str, float]:
        """Trainer -> weight."""
        return {member.trainer: member.weight for member in self.members}

    @property
    def deciding(self) -> tuple[Member, ...]:
        """The members that have a say: those of weight > 0."""
        return tuple(member for member in self.members if member.weight > 0)


def write_model(output: ObjectStore, model: FusedModel) -> None:
    """Store the manifest in a job's output. The members' files have to be there already."""
    output.put(layout.MODEL_MANIFEST, sealed(model))


def read_model(store: ObjectStore, key: str = MANIFEST) -> FusedModel:
    """Load a manifest: of the model whose folder `store` is, or at another key. Raises `NotFound`, `PermanentError`."""
    data = store.get(key)
    try:
        return unsealed(data, FusedModel)
    except ValueError as error:
        reason = problems(error, FusedModel)[0] if isinstance(error, ValidationError) else error
        raise PermanentError(f"{store.uri(key)} is not a fused model of this version: {reason}") from error


def open_model(stores: Stores, uri: str) -> tuple[ObjectStore, FusedModel]:
    """The model at `uri`: its folder, its manifest, or the output of the job that made it."""
    folder = uri.rstrip("/").removesuffix(f"/{MANIFEST}")
    for candidate in (folder, f"{folder}/model"):
        store = stores.under(candidate)
        try:
            return store, read_model(store)
        except NotFound:
            continue
    raise NotFound(f"there is no model at {uri}; a training job writes one to <output>/model when it completes")


def member_weights(store: ObjectStore, member: Member) -> bytes:
    """A member's weights as they are stored, verified. Raises `PermanentError` when they are not what was fused."""
    data = store.get(member.file)
    if hashlib.sha256(data).hexdigest() != member.sha256:
        raise PermanentError(f"{store.uri(member.file)} was changed since the model was made; fuse it again")
    return data
