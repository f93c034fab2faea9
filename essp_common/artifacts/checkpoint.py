"""Checkpoints of trainers in the object store, readable without torch.

    trainers/<trainer>/checkpoints/<step>/model.safetensors ...   1. data, each file read back and hashed
    trainers/<trainer>/checkpoints/<step>/manifest.json           2. names, sizes and SHA-256 of all of it
    trainers/<trainer>/latest                                     3. {"step": ...}
    older checkpoints                                             4. removed, their manifests first

A crash between any two of these, or within one, leaves the previous checkpoint in force: what has no manifest, or is
newer than `latest` says, is not a checkpoint. Nothing older goes away before the new one, and the pointer to it, were
read back and found equal. What a failed save has written is removed again, as far as the store lets it.

A reader takes the newest checkpoint whose files all match its manifest.

A step is the number of clips the trainer had consumed, over all phases; so it grows with the position, and two
runs of one job give equal names. The master reads positions from here, hence no torch.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, PlainSerializer, ValidationError

from essp_common.artifacts import layout
from essp_common.errors import EsspError, Fenced, NotFound, PermanentError
from essp_common.objects.port import ObjectStore
from essp_common.planning.position import Position
from essp_common.runtime.failpoints import failpoint

_log = logging.getLogger(__name__)
_MANIFEST = "manifest.json"
_CHUNK = 8 * 2**20

MODEL_FILE = "model.safetensors"
"""The weights to evaluate and predict with."""
TRAINED_FILE = "trained.safetensors"
"""The weights to go on training from, where those of `MODEL_FILE` are an average."""
OPTIMIZER_FILE = "optimizer.safetensors"


class BadCheckpoint(PermanentError):
    """A checkpoint that is not what its manifest promises."""

    kind = "damaged"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class StoredFile(_Document):
    """One data file of a checkpoint."""

    name: str
    size_bytes: int
    sha256: str


class ModelDescription(_Document):
    """All that is needed to build the network again, without its weights."""

    name: str
    """See `TrainerSpec.model`."""
    feature: str
    """What it sees: decides how the input is normalised."""
    channels: int
    """Channels of one frame of that feature."""
    classes: tuple[str, ...]
    """Class names by class id."""
    dropout: float
    crop: int
    """Side of the square it sees."""
    views: int = 1
    """How many such squares of each frame are scored; see `AugmentSpec.evaluation_crops`."""


class PhaseRecord(_Document):
    """What came out of one phase."""

    purpose: str
    """train, validation or test."""
    epoch: int
    metrics: dict[str, float]


class Best(_Document):
    """The checkpoint with the best validation so far."""

    step: int
    epoch: int
    metrics: dict[str, float]


class Manifest(_Document):
    """One checkpoint: where the training stood and what belongs to it."""

    job: str
    trainer: str
    step: int
    """Clips consumed so far, over all phases: the checkpoint's name."""
    updates: int
    """Optimiser steps taken."""
    epoch: int
    """The epoch whose training the weights saw last."""
    position: Annotated[Position, PlainSerializer(Position._asdict)]
    """Where training resumes."""
    running: dict[str, float] = {}
    """Sums of the phase that is half done there."""
    fence: int = 0
    """Of the run that it belongs to; a checkpoint of an earlier run cannot follow one of a later run."""
    digest: str = ""
    """Of all clips before `position`, as they were seen; see `digest.py`."""
    spec_digest: str
    """Of everything in the job that decides what the weights become; a job with another digest cannot resume here."""
    model: ModelDescription
    metrics: dict[str, float] = {}
    """Of the last phase that was over."""
    best: Best | None = None
    history: tuple[PhaseRecord, ...] = ()
    scores: dict[str, str] = {}
    """Purpose -> key of the score table these weights gave (final checkpoints)."""
    versions: dict[str, str] = {}
    created: datetime | None = None
    final: bool = False
    """These are the weights to fuse and predict with; nothing follows."""
    files: tuple[StoredFile, ...] = ()

    @property
    def key(self) -> str:
        """Where the manifest lies in the job's store."""
        return layout.checkpoint(self.trainer, self.step) + _MANIFEST


def save(store: ObjectStore, manifest: Manifest, files: Mapping[str, bytes], keep: int) -> Manifest:
    """Store a checkpoint, make it the latest, and remove all but the newest `keep` and the best.

    Returns the manifest with its files and time filled in. Raises `BadCheckpoint` when the store gives back other
    bytes than it was given, `Fenced` for a trainer that should not be there any more, and what the store raises; the
    previous checkpoint then stays the latest. That older ones could not be removed is no failure.
    """
    _refuse_overtaken(store, manifest)
    stored = tuple(
        StoredFile(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        for name, data in files.items()
    )
    manifest = manifest.model_copy(update={"files": stored, "created": datetime.now(UTC)})
    try:
        _store(store, manifest, files)
        _refuse_overtaken(store, manifest)  # once more, since writing the data may have taken long
    except EsspError:
        with suppress(EsspError):
            _remove(store, manifest.trainer, manifest.step)
        raise
    _point(store, manifest)
    try:
        _prune(store, manifest, keep)
    except EsspError as error:
        _log.warning("older checkpoints of trainer %s could not be removed: %s", manifest.trainer, error)
    failpoint("checkpoint.pruned")
    return manifest


def _store(store: ObjectStore, manifest: Manifest, files: Mapping[str, bytes]) -> None:
    """Data, then the manifest, each read back."""
    prefix = layout.checkpoint(manifest.trainer, manifest.step)
    store.delete(manifest.key)  # left by a run that died before `latest` moved here
    for name, data in files.items():
        store.put(prefix + name, data)
    failpoint("checkpoint.data")
    verify(store, manifest)
    store.put(manifest.key, manifest.model_dump_json(indent=1).encode())
    if read(store, manifest.trainer, manifest.step) != manifest:
        raise BadCheckpoint(f"{store.uri(manifest.key)} reads back differently; check the store, then start again")
    failpoint("checkpoint.manifest")


def _point(store: ObjectStore, manifest: Manifest) -> None:
    """Make it the latest."""
    key, pointer = (
        layout.latest(manifest.trainer),
        json.dumps({"step": manifest.step, "fence": manifest.fence}).encode(),
    )
    store.put(key, pointer)
    if store.get(key) != pointer:
        raise BadCheckpoint(f"{store.uri(key)} reads back differently; check the store, then start again")
    failpoint("checkpoint.latest")


def verify(store: ObjectStore, manifest: Manifest) -> None:
    """Read every file of a checkpoint back. Raises `BadCheckpoint` naming the first that is missing or differs."""
    for file in manifest.files:
        key = layout.checkpoint(manifest.trainer, manifest.step) + file.name
        digest = hashlib.sha256()
        try:
            _check_size(store, key, file, store.head(key).size_bytes)
            with store.open(key) as source:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
        except NotFound as error:
            raise BadCheckpoint(f"{store.uri(key)} is missing; {_REMEDY}") from error
        _check_hash(store, key, file, digest.hexdigest())


def load_files(store: ObjectStore, manifest: Manifest, names: Iterable[str] | None = None) -> dict[str, bytes]:
    """The files of a checkpoint (all, or those named), each checked against its hash. Raises `BadCheckpoint`."""
    described = {file.name: file for file in manifest.files}
    loaded: dict[str, bytes] = {}
    for name in described if names is None else names:
        key = layout.checkpoint(manifest.trainer, manifest.step) + name
        if name not in described:
            raise BadCheckpoint(f"{store.uri(manifest.key)} names no {name}; {_REMEDY}")
        try:
            data = store.get(key)
        except NotFound as error:
            raise BadCheckpoint(f"{store.uri(key)} is missing; {_REMEDY}") from error
        _check_size(store, key, described[name], len(data))
        _check_hash(store, key, described[name], hashlib.sha256(data).hexdigest())
        loaded[name] = data
    return loaded


def read(store: ObjectStore, trainer: str, step: int) -> Manifest:
    """The manifest of one checkpoint. Raises `BadCheckpoint` when it is missing or cannot be read."""
    key = layout.checkpoint(trainer, step) + _MANIFEST
    try:
        return Manifest.model_validate_json(store.get(key))
    except NotFound as error:
        raise BadCheckpoint(f"{store.uri(key)} is missing: that checkpoint was never completed; {_REMEDY}") from error
    except ValidationError as error:
        raise BadCheckpoint(f"{store.uri(key)} is not a manifest: {error.error_count()} error(s); {_REMEDY}") from error


def read_latest(store: ObjectStore, trainer: str) -> Manifest | None:
    """The newest whole checkpoint, or None if the trainer never completed one. Every byte of it is read.

    Should the latest, or the pointer to it, be damaged or incomplete, the newest older one that is whole is taken and
    a warning says so. Raises `BadCheckpoint` when there were checkpoints and none is whole: training from scratch would
    lose work unnoticed.
    """
    try:
        pointer = store.get(layout.latest(trainer))
    except NotFound:
        return None
    known = steps(store, trainer)
    newest = _pointed(pointer)
    if newest is None:
        _log.warning("%s is damaged; looking for the newest checkpoint", store.uri(layout.latest(trainer)))
    elif newest not in known:
        _log.warning("checkpoint %d of trainer %s has no manifest; looking for an older one", newest, trainer)
    for step in reversed([step for step in known if newest is None or step <= newest]):
        try:
            manifest = read(store, trainer, step)
            verify(store, manifest)
        except BadCheckpoint as error:
            _log.warning("checkpoint %d of trainer %s is left out: %s", step, trainer, error)
        else:
            return manifest
    raise BadCheckpoint(f"{store.uri(layout.latest(trainer))}: of the checkpoints none is whole; {_REMEDY}")


def latest_step(store: ObjectStore, trainer: str) -> int | None:
    """The step that was last said to be complete, whole or not; None when that cannot be known."""
    try:
        return _pointed(store.get(layout.latest(trainer)))
    except NotFound:
        return None


def steps(store: ObjectStore, trainer: str) -> list[int]:
    """The steps of all checkpoints that have a manifest, ascending."""
    return sorted(step for step, name in _objects(store, trainer) if name == _MANIFEST)


_REMEDY = "restore it from a backup, or remove the trainer's folder to train from the start"


def _refuse_overtaken(store: ObjectStore, manifest: Manifest) -> None:
    try:
        pointer = store.get(layout.latest(manifest.trainer))
        fence = int(json.loads(pointer).get("fence", 0))
    except (NotFound, ValueError, AttributeError):  # none, or none that can be read: nothing to protect
        return
    if fence > manifest.fence:
        raise Fenced(
            f"trainer {manifest.trainer} has a checkpoint of a later run of the job (fence {fence}, this one has "
            f"{manifest.fence}): another trainer of this name continues, and this checkpoint is not saved"
        )


def _objects(store: ObjectStore, trainer: str) -> list[tuple[int, str]]:
    """Step and name of every object of a checkpoint, whole or not."""
    prefix = layout.checkpoint(trainer, 0).rsplit("/", 2)[0] + "/"
    paths = (info.key.removeprefix(prefix).partition("/") for info in store.list(prefix))
    return [(int(step), name) for step, _, name in paths if step.isdigit()]


def _pointed(pointer: bytes) -> int | None:
    """The step that `latest` names; None when it is damaged."""
    try:
        return int(json.loads(pointer)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def _check_size(store: ObjectStore, key: str, file: StoredFile, size_bytes: int) -> None:
    if size_bytes != file.size_bytes:
        raise BadCheckpoint(f"{store.uri(key)} has {size_bytes} bytes instead of {file.size_bytes}; {_REMEDY}")


def _check_hash(store: ObjectStore, key: str, file: StoredFile, sha256: str) -> None:
    if sha256 != file.sha256:
        raise BadCheckpoint(f"{store.uri(key)} is damaged: its SHA-256 is not that of the manifest; {_REMEDY}")


def _prune(store: ObjectStore, newest: Manifest, keep: int) -> None:
    """Remove older checkpoints, what an abandoned run left ahead, and what was never completed."""
    found = _objects(store, newest.trainer)
    complete = sorted(step for step, name in found if name == _MANIFEST)
    spared = {newest.step, *[step for step in complete if step <= newest.step][-keep:]}
    if newest.best is not None:
        spared.add(newest.best.step)
    for step in sorted({step for step, _ in found} - spared):
        _remove(store, newest.trainer, step)


def _remove(store: ObjectStore, trainer: str, step: int) -> None:
    """Remove a checkpoint, its manifest first, so that it never looks whole while it is being removed."""
    prefix = layout.checkpoint(trainer, step)
    store.delete(prefix + _MANIFEST)
    for info in list(store.list(prefix)):
        store.delete(info.key)
