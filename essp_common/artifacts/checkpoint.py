"""Reads the checkpoints of trainers in the object store, without torch; the master uses it to read positions.

`checkpoint_writer.py` writes them, and defines what counts as a checkpoint. A reader takes the newest checkpoint whose
files all match its manifest; if a file is a difference to a file of an earlier checkpoint, both are read. If `latest`
is lost or damaged, the newest intact checkpoint is used.

A step is the number of clips the trainer had consumed, over all phases. So it grows with the position, and two runs of
one job give equal steps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from pydantic import ValidationError

from essp_common.artifacts import checkpoint_files, layout
from essp_common.artifacts.checkpoint_files import REMEDY, BadCheckpoint, StoredBase, StoredFile
from essp_common.artifacts.manifest import Manifest
from essp_common.artifacts.ownership import CheckpointName, LatestLog
from essp_common.artifacts.sealed import unsealed
from essp_common.errors import NotFound
from essp_common.objects.port import ObjectStore
from essp_common.tensors.packed import Array, Base, DamagedTensors, unpack
from essp_common.validation import problems

_log = logging.getLogger(__name__)


class Found(NamedTuple):
    """Where a training stands."""

    manifest: Manifest | None
    """The newest intact checkpoint; None if no checkpoint was ever completed."""
    lost_until: int
    """The step of a later checkpoint that was recorded as complete but is damaged; 0 if there is none."""


def verify(store: ObjectStore, manifest: Manifest) -> None:
    """Read back every file that a checkpoint needs. Raises `BadCheckpoint` naming the first damaged one."""
    checkpoint_files.verify(store, manifest.prefix, manifest.files)
    for file in manifest.files:
        if file.base is not None:
            prefix, stored = base_file(manifest, file, file.base)
            checkpoint_files.verify(store, prefix, [stored])


def load_files(store: ObjectStore, manifest: Manifest, names: Iterable[str] | None = None) -> dict[str, bytes]:
    """The files of a checkpoint (all, or those named), each checked against its hash. Raises `BadCheckpoint`."""
    described = {file.name: file for file in manifest.files}
    loaded: dict[str, bytes] = {}
    for name in described if names is None else names:
        if name not in described:
            raise BadCheckpoint(f"{store.uri(manifest.key)} names no {name}; {REMEDY}")
        loaded[name] = checkpoint_files.load(store, manifest.prefix, described[name])
    return loaded


def load_arrays(
    store: ObjectStore, manifest: Manifest, names: Iterable[str] | None = None, most_bytes: int | None = None
) -> dict[str, dict[str, Array]]:
    """The arrays of the files of a checkpoint (all, or those named), with differences resolved.

    `most_bytes`: the limit for the arrays of each file (`tensors/packed.py`). Raises `BadCheckpoint`.
    """
    described = {file.name: file for file in manifest.files}
    loaded = {}
    for name, data in load_files(store, manifest, names).items():
        file, base = described[name], None
        try:
            if file.base is not None:
                needed = checkpoint_files.load(store, *base_file(manifest, file, file.base))
                base = Base(file.base.name, unpack(needed, None, most_bytes))
            loaded[name] = unpack(data, base, most_bytes)
        except DamagedTensors as error:
            raise BadCheckpoint(f"{store.uri(manifest.prefix + name)} cannot be read: {error}; {REMEDY}") from error
    return loaded


def read(store: ObjectStore, trainer: str, step: int) -> Manifest:
    """The manifest of one checkpoint. Raises `BadCheckpoint` if it is missing or unreadable."""
    named = [name for name in completed(objects_of(store, trainer)) if name.step == step]
    if not named:
        where = store.uri(layout.checkpoints(trainer))
        raise BadCheckpoint(f"{where}: checkpoint {step} is missing, or was never completed; {REMEDY}")
    return _read(store, trainer, named[-1])


def read_named(store: ObjectStore, trainer: str, name: CheckpointName) -> Manifest:
    """The manifest of a checkpoint of a given incarnation. Raises `BadCheckpoint` as `read` does."""
    return _read(store, trainer, name)


def is_short(manifest: Manifest, epochs: int) -> bool:
    """Whether it ends a training of fewer epochs than `epochs`."""
    return manifest.final and manifest.epochs < epochs


def read_latest(store: ObjectStore, trainer: str, epochs: int = 0, verified: Manifest | None = None) -> Manifest | None:
    """The newest intact checkpoint, or None if the trainer never completed one. Every byte of it is read.

    `epochs`: how many the training is to have. If it ended with fewer, the checkpoint from which it continues is
    returned. `verified`: a checkpoint that was read before; it is not read again if it is still the newest.

    If the latest checkpoint is damaged or incomplete, the newest older intact one is used; if `latest` itself is
    damaged or lost, the newest intact one. A warning says so. Raises `BadCheckpoint` if there were checkpoints but none
    is intact: training from scratch would silently lose work.
    """
    if verified is not None and latest_name(store, trainer) == verified.checkpoint:
        return verified
    manifest = find(store, trainer).manifest
    return before_end(store, manifest) if manifest is not None and is_short(manifest, epochs) else manifest


def find(store: ObjectStore, trainer: str) -> Found:
    """`read_latest`, together with what was lost."""
    latest = LatestLog(store, trainer)
    while True:
        last = latest.last()
        newest = None if last.entry is None else last.entry.checkpoint
        if last.entry is not None and newest is None:
            return Found(None, 0)  # existing files were never recorded as complete
        if newest is not None:
            try:
                return Found(_whole(store, trainer, newest), 0)
            except BadCheckpoint as error:
                problem = f"checkpoint {newest.step} of trainer {trainer} is left out: {error}"
        else:
            problem = f"{latest.uri} {'is damaged' if last.number else 'is lost'}"
        objects = objects_of(store, trainer)
        # otherwise it was superseded and removed while being read: try again
        if latest.entries.newest() == last.number:
            break
    if newest is None and not completed(objects):
        return Found(None, 0)
    _log.warning("%s; looking for the newest whole checkpoint", problem)
    before = [name for name in completed(objects) if newest is None or (name.step <= newest.step and name != newest)]
    for name in reversed(before):
        try:
            manifest = _whole(store, trainer, name)
        except BadCheckpoint as error:
            _log.warning("checkpoint %d of trainer %s is left out: %s", name.step, trainer, error)
        else:
            _log.warning("trainer %s stands at checkpoint %d, the newest whole one", trainer, name.step)
            said = max(name.step for name, _ in objects) if newest is None else newest.step
            return Found(manifest, said if said > name.step else 0)
    raise BadCheckpoint(f"{latest.uri}: of the checkpoints none is whole; {REMEDY}")


def before_end(store: ObjectStore, end: Manifest) -> Manifest:
    """The newest intact checkpoint from which a training that has ended can continue."""
    for name in reversed(completed(objects_of(store, end.trainer))):
        try:
            if not (manifest := _read(store, end.trainer, name)).final:
                verify(store, manifest)
                return manifest
        except BadCheckpoint as error:
            _log.warning("checkpoint %d of trainer %s is left out: %s", name.step, end.trainer, error)
    raise BadCheckpoint(
        f"trainer {end.trainer} has ended after {end.epochs} epochs, and no whole checkpoint is left to continue "
        "from; start with --fresh, or train more epochs in another output"
    )


def latest_name(store: ObjectStore, trainer: str) -> CheckpointName | None:
    """The checkpoint last recorded as complete, intact or not; None if that is unknown."""
    entry = LatestLog(store, trainer).last().entry
    return None if entry is None else entry.checkpoint


def complete(store: ObjectStore, trainer: str) -> list[CheckpointName]:
    """All checkpoints that have a manifest, ascending."""
    return completed(objects_of(store, trainer))


def steps(store: ObjectStore, trainer: str) -> list[int]:
    """The steps of all checkpoints that have a manifest, ascending."""
    return sorted({name.step for name in complete(store, trainer)})


def base_file(manifest: Manifest, file: StoredFile, base: StoredBase) -> tuple[str, StoredFile]:
    """The location and description of the base file to which this one is a difference."""
    stored = StoredFile(name=file.name, size_bytes=base.size_bytes, sha256=base.sha256)
    return layout.checkpoint(manifest.trainer, *base.checkpoint), stored


def objects_of(store: ObjectStore, trainer: str) -> list[tuple[CheckpointName, str]]:
    """Checkpoint and name of every object of a checkpoint, complete or not. Other objects in the folder are ignored."""
    keys = (layout.checkpoint_object(info.key) for info in store.list(layout.checkpoints(trainer)))
    return [(CheckpointName(step, incarnation), name) for step, incarnation, name in filter(None, keys)]


def completed(objects: Iterable[tuple[CheckpointName, str]]) -> list[CheckpointName]:
    """The checkpoints that have a manifest, ascending."""
    return sorted(checkpoint for checkpoint, name in objects if name == layout.CHECKPOINT_MANIFEST)


def _read(store: ObjectStore, trainer: str, name: CheckpointName) -> Manifest:
    key = layout.checkpoint(trainer, *name) + layout.CHECKPOINT_MANIFEST
    try:
        manifest = unsealed(store.get(key), Manifest)
    except NotFound as error:
        raise BadCheckpoint(f"{store.uri(key)} is missing: that checkpoint was never completed; {REMEDY}") from error
    except ValueError as error:
        reason = problems(error, Manifest)[0] if isinstance(error, ValidationError) else error
        raise BadCheckpoint(f"{store.uri(key)} is not a manifest: {reason}; {REMEDY}") from error
    if (manifest.trainer, manifest.checkpoint) != (trainer, name):
        raise BadCheckpoint(f"{store.uri(key)} belongs to another checkpoint, {manifest.key}; {REMEDY}")
    return manifest


def _whole(store: ObjectStore, trainer: str, name: CheckpointName) -> Manifest:
    """A checkpoint after reading every byte of it. Raises `BadCheckpoint`."""
    manifest = _read(store, trainer, name)
    verify(store, manifest)
    return manifest
