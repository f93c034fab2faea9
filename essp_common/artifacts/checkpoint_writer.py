"""Writes the checkpoints of a training, in the one process that owns it.

    trainers/<trainer>/checkpoints/<step>-<incarnation>/model.tensors ...       1. data, each file read back and hashed
    trainers/<trainer>/checkpoints/<step>-<incarnation>/manifest.json           2. sizes and SHA-256 of all, and its own
    trainers/<trainer>/latest/<number>                                          3. names it (`ownership.py`)
    older checkpoints                                                           4. removed, their manifests first

A crash between or within these steps leaves the previous checkpoint in force: a folder without a manifest, or newer
than `latest` says, is not a checkpoint. Nothing older is removed before the new checkpoint, and the entry that names
it, were read back and found equal. Files of a failed save are removed, as far as the store allows.

One process writes at a time. It removes checkpoints before its own latest one, never later ones, and it never writes to
a folder of another incarnation. After the final checkpoint nothing is saved or removed, unless a later run of the job
asks for more epochs than the final checkpoint has. That run continues from the newest checkpoint before the final one,
which is kept until there is a final one with more epochs.

Files are packed tensors (`essp_common/tensors/packed.py`), and some are differences to a file of an earlier checkpoint.
That checkpoint is kept as long as another one needs it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol

from essp_common.artifacts import layout
from essp_common.artifacts.checkpoint import (
    Found,
    before_end,
    complete,
    completed,
    find,
    is_short,
    objects_of,
    read_named,
)
from essp_common.artifacts.checkpoint_files import BadCheckpoint, Data
from essp_common.artifacts.manifest import Manifest
from essp_common.artifacts.ownership import CheckpointName, Entry, LatestLog, Ownership
from essp_common.artifacts.removal import lies_within
from essp_common.artifacts.sealed import sealed
from essp_common.errors import EsspError, Fenced, PermanentError, StorageFull, TransientError
from essp_common.objects.port import ObjectStore
from essp_common.runtime.failpoints import failpoint

_log = logging.getLogger(__name__)


class Staged(Protocol):
    """Checkpoints that a process of this node has left on their way to the store; see `staging.py`."""

    def left_by(self, process: str, incarnation: int) -> Manifest | None:
        """The newest intact checkpoint staged here by this process, if it was the one that staged here."""

    def data(self, manifest: Manifest) -> Data:
        """The files of a staged checkpoint."""


class CheckpointWriter:
    """Saves the checkpoints of one training, as its present owner; see `claim`."""

    def __init__(
        self,
        store: ObjectStore,
        trainer: str,
        found: Found,
        ownership: Ownership | None,
        ends: Collection[CheckpointName] = (),
    ) -> None:
        """`ownership`: None for a finished training, which accepts no more checkpoints. `ends`: final checkpoints of
        fewer epochs, kept until there is one of all epochs."""
        self.found = found
        """Where the training stood when this process took it over."""
        self._store = store
        self._trainer = trainer
        self._ownership = ownership
        self._newest = found.manifest
        self._ends = frozenset(ends)

    @property
    def incarnation(self) -> int:
        """The number of this process among all owners of the training so far; 0 if it is finished."""
        return 0 if self._ownership is None else self._ownership.incarnation

    @property
    def process(self) -> str:
        """The random name of this process in `latest`; empty if the training is finished."""
        return "" if self._ownership is None else self._ownership.process

    def named(self, manifest: Manifest) -> Manifest:
        """The manifest with this process's incarnation and the current time. Raises as `save` does for a checkpoint
        that it does not permit."""
        incarnation = self._permitted(manifest).incarnation
        return manifest.model_copy(update={"created": datetime.now(UTC), "incarnation": incarnation})

    def check(self) -> None:
        """Raises `Fenced` if another process owns the training now."""
        if self._ownership is not None:
            self._ownership.check()

    def save(self, manifest: Manifest, data: Data, keep: int) -> Manifest:
        """Store a checkpoint, make it the latest, and remove older ones except the newest `keep`, the best, and bases.

        The newest one before a final checkpoint is also kept, because training continues from there if it gets more
        epochs. Returns the manifest with its files, incarnation and time filled in. Raises `BadCheckpoint` if the store
        returns other bytes than it was given, `Fenced` if this process no longer owns the training, and what the store
        raises; the previous checkpoint then remains the latest. Failing to remove older ones is not an error.
        """
        owner = self._permitted(manifest)
        manifest = self.named(manifest)
        owner.check()
        if owner.pointed == manifest.checkpoint:  # the last save succeeded, but its answer was lost
            self._newest = read_named(self._store, self._trainer, manifest.checkpoint)
            return self._newest
        try:
            manifest = write(self._store, manifest, data)
        except EsspError:
            with suppress(EsspError):
                remove(self._store, manifest.prefix)
            raise
        try:
            owner.point(manifest.checkpoint)
        except Fenced:
            if owner.pointed != manifest.checkpoint:  # otherwise the next owner has already read it as the latest
                with suppress(EsspError):
                    remove(self._store, manifest.prefix)
            raise
        self._newest = manifest
        failpoint("checkpoint.latest")
        try:
            _prune(self._store, manifest, keep, self._ends)
            owner.tidy()
        except EsspError as error:
            _log.warning("older checkpoints of trainer %s could not be removed: %s", manifest.trainer, error)
        failpoint("checkpoint.pruned")
        return manifest

    def _permitted(self, manifest: Manifest) -> Ownership:
        newest = self._newest
        if self._ownership is None or (newest is not None and newest.final):
            raise Fenced(f"trainer {self._trainer} is finished: its final checkpoint stays, and nothing follows it")
        if newest is not None and manifest.step < newest.step:
            raise PermanentError(
                f"trainer {self._trainer}: checkpoint {manifest.step} is not saved, as the latest one, {newest.step}, "
                f"is ahead of it"
            )
        return self._ownership


def claim(
    store: ObjectStore,
    trainer: str,
    fence: int = 0,
    writer: str = "",
    epochs: int = 0,
    staged: Staged | None = None,
) -> CheckpointWriter:
    """Take ownership of a training with all its checkpoints. The previous owner is refused at its next save.

    A finished training is not taken over: it is returned read-only. Only a process of a later run that is to train more
    `epochs` takes it over. `fence`: from the command on which this process trains. `writer`: its name, for display.
    Raises `Fenced` while a process of a later run owns it, and what `read_latest` raises.

    `staged`: checkpoints on this node. If they are from the previous owner and ahead of the latest checkpoint, the
    newest is written to the store; the entry that makes this process the owner also makes it the latest.
    """
    latest = LatestLog(store, trainer)
    while True:
        last = latest.last()
        found = find(store, trainer)
        end = found.manifest
        if end is not None and end.final:
            if not is_short(end, epochs) or fence <= end.fence:
                return CheckpointWriter(store, trainer, found, None)
            found = Found(before_end(store, end), found.lost_until)
        resumed = None if end is None else end.checkpoint
        newer = None
        if staged is not None and last.entry is not None and last.entry.fence <= fence:
            newer = _taken_along(store, found, staged, last.entry)
        name = None if newer is None else newer.checkpoint
        ownership = Ownership.take(latest, last, resumed, fence, writer, name)
        if ownership is None:
            if newer is not None:  # another process was first, and trains from an older one
                remove(store, newer.prefix)
        elif ownership.is_last:
            if newer is not None:
                found = Found(newer, found.lost_until if found.lost_until > newer.step else 0)
            return CheckpointWriter(store, trainer, found, ownership, _ends(store, trainer))


def _taken_along(store: ObjectStore, found: Found, staged: Staged, owner: Entry) -> Manifest | None:
    """Write the staged checkpoint to the store if it is newer than `found`, and return it.

    Return None if nothing newer is staged, or if the store has no room for it. Raises `TransientError` if the store
    does not answer: the next try may take it.

    It may use the folder of the process that staged it, because that process has ended; otherwise `staged` would not be
    accessible.
    """
    newest = staged.left_by(owner.process, owner.owner)
    if newest is None or (found.manifest is not None and newest.step <= found.manifest.step):
        return None
    try:
        return write(store, newest, staged.data(newest))
    except EsspError as error:
        if isinstance(error, TransientError) and not isinstance(error, StorageFull):
            raise
        _log.warning("the staged checkpoint %d of trainer %s is left out: %s", newest.step, newest.trainer, error)
        with suppress(EsspError):
            remove(store, newest.prefix)
        return None


def write(store: ObjectStore, manifest: Manifest, data: Data) -> Manifest:
    """Write data, then the manifest, and read each back. Does not make the checkpoint the latest. Returns the manifest
    with its files."""
    store.delete(manifest.key)  # left by a failed save of this process
    manifest = manifest.model_copy(update={"files": data(store, manifest.prefix)})
    failpoint("checkpoint.data")
    store.put(manifest.key, sealed(manifest))
    if read_named(store, manifest.trainer, manifest.checkpoint) != manifest:
        raise BadCheckpoint(f"{store.uri(manifest.key)} reads back differently; check the store, then start again")
    failpoint("checkpoint.manifest")
    return manifest


def _ends(store: ObjectStore, trainer: str) -> list[CheckpointName]:
    """All final checkpoints."""
    found = []
    for name in complete(store, trainer):
        with suppress(BadCheckpoint):
            if read_named(store, trainer, name).final:
                found.append(name)
    return found


def _prune(store: ObjectStore, newest: Manifest, keep: int, ends: Collection[CheckpointName]) -> None:
    """Remove what `newest` has superseded: older checkpoints, and incomplete ones before it.

    `ends`: final checkpoints of fewer epochs, superseded only by a final one.
    """
    found = objects_of(store, newest.trainer)
    complete = [name for name in completed(found) if name <= newest.checkpoint]
    own = [name for name in complete if name not in ends]
    spared = set(own[-keep:])
    if newest.final:
        spared.update([name for name in own if name < newest.checkpoint][-1:])
    else:
        spared.update(ends)
    if newest.best is not None:
        spared.update(name for name in complete if name.step == newest.best.step)
    spared |= {base for name in spared for base in _bases(store, newest, name)}
    superseded = {name for name, _ in found if name < newest.checkpoint}
    # newest first, so that bases are removed after the files that need them
    for name in sorted(superseded - spared, reverse=True):
        remove(store, layout.checkpoint(newest.trainer, *name))


def _bases(store: ObjectStore, newest: Manifest, name: CheckpointName) -> set[CheckpointName]:
    """The checkpoints that one checkpoint needs. They do not need others."""
    try:
        manifest = newest if name == newest.checkpoint else read_named(store, newest.trainer, name)
    except BadCheckpoint:  # it cannot be used anyway
        return set()
    return {file.base.checkpoint for file in manifest.files if file.base is not None}


def remove(store: ObjectStore, prefix: str) -> None:
    """Remove a checkpoint, its manifest first, so that it never looks complete during removal. Foreign objects next to
    its own are kept.

    `prefix`: of its objects.
    """
    manifest = prefix + layout.CHECKPOINT_MANIFEST
    for key in (manifest, *[info.key for info in store.list(prefix) if info.key != manifest]):
        if layout.is_own(key) and lies_within(store, key):
            store.delete(key)
