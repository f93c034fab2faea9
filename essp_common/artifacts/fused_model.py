"""The fused model in the object store: everything needed to classify a video with it.

    model/manifest.json                     this document; written last, so a readable model is complete
    model/<trainer>-<digest>.safetensors    the weights of each member
    model/aggregation-<digest>.tensors      (format 2) the learned state of the strategy

File names contain part of their digest, so a job that is fused again does not overwrite files that the previous
manifest names. Files that only the previous manifest names are removed afterwards. The folder refers to nothing outside
itself. It contains no date, so equal training runs write equal manifests.

**Format 1** fuses by a rule: the weighted mean or product of the members' mean scores. **Format 2** fuses by a strategy
that considers each clip (`essp_engine.aggregation`), with parameters and a state. A reader that only knows format 1
would average the clips, so it refuses the other number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from essp_common.artifacts import layout
from essp_common.artifacts.figures import Figures
from essp_common.artifacts.manifest import ModelDescription
from essp_common.artifacts.removal import lies_within
from essp_common.artifacts.scores import Rule
from essp_common.artifacts.sealed import sealed, unsealed
from essp_common.errors import NotFound, PermanentError
from essp_common.job.clip_spec import ClipSpec, StreamSpec
from essp_common.job.fields import ParamValue
from essp_common.objects.port import ObjectStore
from essp_common.tensors.packed import DamagedTensors, pack, unpack
from essp_common.validation import problems
from essp_common.wiring import Stores

MANIFEST = "manifest.json"
_MOST_STATE_BYTES = 2**30
"""The largest learned state of a strategy: some numbers for each class and feature."""
FEW_VIDEOS = 30
"""With fewer validation videos, the standard error of an accuracy is at least 9 points."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Member(_Section):
    """One trained model of the ensemble."""

    trainer: str
    stream: str
    weight: float
    """Its share of the fused score; the weights of a model sum to 1."""
    model: ModelDescription
    """The network and its input."""
    file: str
    """The file of its weights, next to the manifest: safetensors, or packed (`essp_common/tensors/packed.py`)."""
    bits: int = 0
    """Bits to which its weights were rounded; 0: they are exactly as trained."""
    sha256: str
    checkpoint: str
    """URI of the checkpoint (its manifest) that the weights come from, for the record."""
    epoch: int


def label(name: str, params: Mapping[str, ParamValue]) -> str:
    """The display name of a strategy with its parameters."""
    return " ".join([name, *(f"{key}={value}" for key, value in params.items())])


class Strategy(_Section):
    """One way of fusing, with its results on the validation split."""

    name: str
    params: dict[str, ParamValue] = {}
    """The parameters set by the job; the others have their defaults."""
    rule: Rule | None
    """Null if it is not a rule on the members' mean scores."""
    weights: dict[str, float]
    """Trainer -> its share of the fused score."""
    validation: Figures
    """Metrics of the validation videos, to which the weights were fitted."""
    held_out_log_loss: float | None = None
    """Log loss under cross-validation, on videos that the weights were not fitted to; the strategy with the lowest is
    chosen. Null if there is only one video."""
    uncertainty: float | None = None
    """Standard error of its difference from the log loss of the chosen strategy."""

    @property
    def label(self) -> str:
        """The display name with parameters."""
        return label(self.name, self.params)


class StateFile(_Section):
    """The file with the state of a strategy: arrays, as `essp_common.tensors.packed` writes them."""

    file: str
    """Name of the file next to the manifest."""
    sha256: str


class Evaluation(_Section):
    """Metrics by video on one split: of each trainer alone, and fused."""

    videos: int = Field(ge=1)
    """Videos that every trainer has scored; only these are counted."""
    left_out: int
    """Videos that at least one trainer has not scored."""
    members: dict[str, Figures]
    fused: Figures


class FusedModel(_Section):
    """A fused classifier."""

    format: Literal[1, 2] = 1
    """2 if a strategy with a state fuses."""
    job: str
    classes: tuple[str, ...]
    background: str | None = None
    """The class of videos without any other class; it is never returned as an answer. Null: the model has no
    background class."""
    independent: bool = False
    """Whether the classes are labels, each learned independently: a video may show any number of them, and scores need
    not sum to 1."""
    clip: ClipSpec
    clips_per_video: int
    streams: dict[str, StreamSpec]
    """The streams that its members need, including the extractors' parameters."""
    members: tuple[Member, ...]
    strategy: str
    """The chosen strategy; `strategies` has the evidence."""
    params: dict[str, ParamValue] = {}
    """The parameters of the strategy set by the job."""
    rule: Rule | None
    """Format 1: how the members' scores are combined (`essp_common.artifacts.scores.mix`). Format 2: null."""
    state: StateFile | None = None
    """Format 2: the learned state of the strategy. Format 1: null."""
    features: bool = False
    """Whether the strategy uses the features of clips in addition to their scores."""
    strategies: tuple[Strategy, ...]
    validation: Evaluation | None
    """Null: the job had no validation split; all streams then have the same weight."""
    test: Evaluation | None
    """Null: the job had no test split."""
    versions: dict[str, str]

    @model_validator(mode="after")
    def _fuses_in_one_way(self) -> FusedModel:
        if (self.format == 1, self.format == 2) != (self.rule is not None, self.state is not None):
            raise ValueError("format 1 has a rule and no state, format 2 a state and no rule")
        return self

    @model_validator(mode="after")
    def _has_classes_to_answer_with(self) -> FusedModel:
        if self.background is not None and (self.background not in self.classes or len(self.classes) < 2):
            raise ValueError(f"background: {self.background!r} is not one of several classes")
        return self

    @property
    def label(self) -> str:
        """The display name of the strategy with its parameters."""
        return label(self.strategy, self.params)

    @property
    def doubt(self) -> str:
        """Why the choice of the strategy may be chance; empty if there were enough videos."""
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
    def files(self) -> frozenset[str]:
        """The names of its files, without the manifest."""
        return frozenset(member.file for member in self.members) | ({self.state.file} if self.state else set())

    @property
    def deciding(self) -> tuple[Member, ...]:
        """The members with a weight above 0."""
        return tuple(member for member in self.members if member.weight > 0)


def write_model(output: ObjectStore, model: FusedModel) -> None:
    """Store the manifest in a job's output, and remove files that only the previous one names. The members' files must
    already be there."""
    try:
        before = read_model(output, layout.MODEL_MANIFEST).files
    except PermanentError:  # the model does not exist or is damaged
        before = frozenset()
    output.put(layout.MODEL_MANIFEST, sealed(model))
    for key in (f"{layout.MODEL}/{file}" for file in before - model.files):
        if layout.is_own(key) and lies_within(output, key):
            output.delete(key)


def write_state(output: ObjectStore, state: Mapping[str, NDArray[Any]]) -> StateFile:
    """Store the learned state of a strategy in a job's output. Equal states give equal bytes."""
    data = pack(state)
    sha256 = hashlib.sha256(data).hexdigest()
    key = layout.model_state(sha256)
    output.put(key, data)
    return StateFile(file=key.rpartition("/")[2], sha256=sha256)


def strategy_state(folder: ObjectStore, model: FusedModel) -> dict[str, NDArray[Any]]:
    """The learned state of the strategy of a model in format 2. Raises `PermanentError` if the file was changed."""
    if model.state is None:
        raise ValueError("a model of format 1 has no state")
    data = folder.get(model.state.file)
    where = folder.uri(model.state.file)
    if hashlib.sha256(data).hexdigest() != model.state.sha256:
        raise PermanentError(f"{where} was changed since the model was made; fuse it again")
    try:
        return unpack(data, most_bytes=_MOST_STATE_BYTES)
    except DamagedTensors as error:
        raise PermanentError(f"{where} is not a state of a strategy: {error}") from error


def read_model(store: ObjectStore, key: str = MANIFEST) -> FusedModel:
    """Load a manifest: of the model in the folder `store`, or at another key. Raises `NotFound`, `PermanentError`."""
    data = store.get(key)
    try:
        return unsealed(data, FusedModel)
    except ValueError as error:
        reason = problems(error, FusedModel)[0] if isinstance(error, ValidationError) else error
        raise PermanentError(f"{store.uri(key)} is not a fused model of this version: {reason}") from error


def open_model(stores: Stores, uri: str) -> tuple[ObjectStore, FusedModel]:
    """The model at `uri`, which is its folder, its manifest, or the output of its job."""
    folder = uri.rstrip("/").removesuffix(f"/{MANIFEST}")
    for candidate in (folder, f"{folder}/model"):
        store = stores.under(candidate)
        try:
            return store, read_model(store)
        except NotFound:
            continue
    if next(iter(stores.under(folder).list(layout.TRAINERS)), None) is not None:
        raise NotFound(
            f"{uri} is the output of a job that has not completed, so it has no model yet; `essp run` with the job's "
            "file trains on where it stopped"
        )
    raise NotFound(f"there is no model at {uri}; a training job writes one to <output>/model when it completes")


def member_weights(store: ObjectStore, member: Member) -> bytes:
    """A member's weights as they are stored, verified. Raises `PermanentError` if the file was changed."""
    data = store.get(member.file)
    if hashlib.sha256(data).hexdigest() != member.sha256:
        raise PermanentError(f"{store.uri(member.file)} was changed since the model was made; fuse it again")
    return data
