"""Checkpoints of trainers in the object store, readable without torch.

    trainers/<trainer>/checkpoints/<step>/model.safetensors ...   1. data, each file read back and hashed
    trainers/<trainer>/checkpoints/<step>/manifest.json           2. names, sizes and SHA-256 of all of it
    trainers/<trainer>/latest                                     3. {"step": ...}
    older checkpoints                                             4. removed, their manifests first

A crash between any two of these leaves the previous checkpoint in force: what has no manifest, or is not reached
from `latest`, is not a checkpoint. Nothing older goes away before the new one was read back and found equal.

A step is the number of clips the trainer had consumed, over all passes; so it grows with the position, and two
runs of one job give equal names. The master reads positions from here, hence no torch.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, ValidationError

from essp_common import layout
from essp_common.errors import Conflict, NotFound, PermanentError
from essp_common.layout import Position
from essp_common.objects.port import ObjectStore

_log = logging.getLogger(__name__)
_MANIFEST = "manifest.json"
_CHUNK = 8 * 2**20

MODEL_FILE = "model.safetensors"
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


class PassRecord(_Document):
    """What came out of one pass."""

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
    """Clips consumed so far, over all passes: the checkpoint's name."""
    updates: int
    """Optimiser steps taken."""
    epoch: int
    """The epoch whose training the weights saw last."""
    position: Position
    """Where training goes on."""
    running: dict[str, float] = {}
    """Sums of the pass that is half done there."""
    fence: int = 0
    """Of the run of the job that it belongs to; one of an earlier run cannot follow one of a later."""
    digest: str = ""
    """Of all clips before `position`, as they were seen; see `digest.py`."""
    spec_digest: str
    """Of all in the job that decides what the weights become; another one cannot be resumed from here."""
    model: ModelDescription
    metrics: dict[str, float] = {}
    """Of the last pass that was over."""
    best: Best | None = None
    history: tuple[PassRecord, ...] = ()
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
    bytes than it was given; the previous checkpoint then stays the latest. Raises `Conflict` when a trainer of a later
    run of the job has saved one: whoever that is goes on, and this one has to leave.
    """
    _refuse_overtaken(store, manifest)
    prefix = layout.checkpoint(manifest.trainer, manifest.step)
    store.delete(prefix + _MANIFEST)  # left by a run that died before `latest` moved here
    for name, data in files.items():
        store.put(prefix + name, data)
    stored = tuple(
        StoredFile(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        for name, data in files.items()
    )
    manifest = manifest.model_copy(update={"files": stored, "created": datetime.now(UTC)})
    verify(store, manifest)
    store.put(manifest.key, manifest.model_dump_json(indent=1).encode())
    if read(store, manifest.trainer, manifest.step) != manifest:
        raise BadCheckpoint(f"{store.uri(manifest.key)} reads back differently; check the store, then start again")
    _refuse_overtaken(store, manifest)  # once more, since writing the data may have taken long
    pointer = {"step": manifest.step, "fence": manifest.fence}
    store.put(layout.latest(manifest.trainer), json.dumps(pointer).encode())
    _prune(store, manifest, keep)
    return manifest


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
    """The newest complete checkpoint, or None if the trainer never completed one.

    Should the latest be incomplete (an object was removed or cut short since), the newest older one whose files
    are all there is taken and a warning says so. Sizes are checked here, hashes when the files are loaded. Raises
    `BadCheckpoint` when there were checkpoints and none is left: going on from scratch would be a silent loss.
    """
    try:
        pointer = store.get(layout.latest(trainer))
    except NotFound:
        return None
    newest = _pointed(store, trainer, pointer)
    candidates = [step for step in reversed(steps(store, trainer)) if step <= newest]
    if newest not in candidates:
        _log.warning("checkpoint %d of trainer %s has no manifest; looking for an older one", newest, trainer)
    for step in candidates:
        try:
            manifest = read(store, trainer, step)
            for file in manifest.files:
                key = layout.checkpoint(trainer, step) + file.name
                _check_size(store, key, file, store.head(key).size_bytes)
        except (BadCheckpoint, NotFound) as error:
            _log.warning("checkpoint %d of trainer %s is left out: %s", step, trainer, error)
        else:
            return manifest
    raise BadCheckpoint(f"{store.uri(layout.latest(trainer))} names checkpoint {newest}, and none is whole; {_REMEDY}")


def steps(store: ObjectStore, trainer: str) -> list[int]:
    """The steps of all checkpoints that have a manifest, ascending."""
    prefix = layout.checkpoint(trainer, 0).rsplit("/", 2)[0] + "/"
    names = (info.key.removeprefix(prefix).split("/") for info in store.list(prefix))
    return sorted(int(parts[0]) for parts in names if len(parts) == 2 and parts[0].isdigit() and parts[1] == _MANIFEST)


_REMEDY = "restore it from a backup, or remove the trainer's folder to train from the start"


def _refuse_overtaken(store: ObjectStore, manifest: Manifest) -> None:
    try:
        pointer = store.get(layout.latest(manifest.trainer))
        fence = int(json.loads(pointer).get("fence", 0))
    except (NotFound, ValueError, AttributeError):  # none, or none that can be read: nothing to protect
        return
    if fence > manifest.fence:
        raise Conflict(
            f"trainer {manifest.trainer} has a checkpoint of a later run of the job (fence {fence}, this one has "
            f"{manifest.fence}): another trainer of this name goes on, and this one is not saved"
        )


def _pointed(store: ObjectStore, trainer: str, pointer: bytes) -> int:
    try:
        return int(json.loads(pointer)["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadCheckpoint(f"{store.uri(layout.latest(trainer))} is not a pointer; {_REMEDY}") from error


def _check_size(store: ObjectStore, key: str, file: StoredFile, size_bytes: int) -> None:
    if size_bytes != file.size_bytes:
        raise BadCheckpoint(f"{store.uri(key)} has {size_bytes} bytes instead of {file.size_bytes}; {_REMEDY}")


def _check_hash(store: ObjectStore, key: str, file: StoredFile, sha256: str) -> None:
    if sha256 != file.sha256:
        raise BadCheckpoint(f"{store.uri(key)} is damaged: its SHA-256 is not that of the manifest; {_REMEDY}")


def _prune(store: ObjectStore, newest: Manifest, keep: int) -> None:
    """Remove older checkpoints, manifest first, so that none ever looks whole while it is being removed."""
    known = steps(store, newest.trainer)
    spared = {newest.step, *[step for step in known if step <= newest.step][-keep:]}
    if newest.best is not None:
        spared.add(newest.best.step)
    for step in known:
        if step in spared:
            continue
        prefix = layout.checkpoint(newest.trainer, step)
        store.delete(prefix + _MANIFEST)
        for info in list(store.list(prefix)):
            store.delete(info.key)
