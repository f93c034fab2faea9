"""A burst buffer for checkpoints: a fast disk of this node, on which they are whole before they reach the job's store.

    <folder>/<trainer>-<hash>/lock          locked by the one process that uses this place
    <folder>/<trainer>-<hash>/owner         which process of the training has staged what lies here
    <folder>/<trainer>-<hash>/trainers/<trainer>/checkpoints/<step>-<incarnation>/...     as in the job's store

    data ──▶ here, flushed, read back, manifest last: staged ──copy──▶ the job's store, latest: durable ──▶ gone here

A place belongs to one training: the hash is that of the job's output and the trainer. The kernel takes the lock back
from a process that is killed, so whoever has the lock knows that whoever staged here has ended.

**A staged checkpoint does not count yet.** It does where the same node takes the training up again, and nobody has
trained in between: that is, while the last entry of `latest` is of the process that staged it (`owner`, compared with
`Entry.process`). Then it is written to the job's store first (`checkpoint_writer.claim`). Otherwise it is removed.
Where another node takes the training up, it goes on from what the job's store has.

**Three are here at most**: one that is copied, the newest, and one that is being written. When a checkpoint is whole
here, older ones go, except that which is copied just then: the newer one says all that they say.

**Bounds.** A write that would make it more than the limit raises `StorageFull`, as that of a full disk does. The limit
is that of each place, so trainers that share a folder have as many times the room. A place that nobody comes back to
keeps what lies in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import parse_qs

from essp_common.artifacts import checkpoint, checkpoint_files, checkpoint_writer, layout
from essp_common.artifacts.checkpoint_files import BadCheckpoint, Data, StoredFile
from essp_common.artifacts.manifest import Manifest
from essp_common.artifacts.ownership import CheckpointName
from essp_common.errors import ConfigError, Conflict, EsspError, NotFound, Unavailable
from essp_common.objects.bounded import BoundedDirectory
from essp_common.objects.port import ObjectStore
from essp_common.objects.uris import place_of
from essp_common.quantities import parse_bytes
from essp_common.runtime.addresses import shown_address
from essp_common.runtime.failpoints import failpoint

_log = logging.getLogger(__name__)
_LOCK, _OWNER = "lock", "owner"


class Burst(NamedTuple):
    """A folder on a fast disk, and how much each training may have in it."""

    folder: str
    limit_bytes: int


def parse_burst(url: str) -> Burst:
    """`file:///nvme/essp?bytes=20GiB`. Raises `ConfigError`."""
    path, _, query = url.partition("?")
    options = parse_qs(query, keep_blank_values=True)
    try:
        place = place_of(path)
        limit_bytes = parse_bytes(options.pop("bytes", [""])[-1])
    except (ConfigError, ValueError):
        limit_bytes = 0
    if not isinstance(limit_bytes, int) or limit_bytes < 1 or options or place.scheme != "file":
        raise ConfigError(
            f"burst buffer {shown_address(url)!r}: write a folder of this machine and a size, as in file:///nvme/essp?bytes=20GiB"
        )
    return Burst(f"/{'/'.join(place.parts)}", limit_bytes)


class Staging:
    """The place of one training. One thread stages, another copies."""

    def __init__(self, burst: Burst, output: str, trainer: str, spec_digest: str) -> None:
        """`output`: URI of the job's. `spec_digest`: checkpoints of another one are not taken up.

        Raises `Conflict` while another process has the place, and `Unavailable` for a folder that cannot be used.
        """
        named = hashlib.sha256(f"{output}\n{trainer}".encode()).hexdigest()[:16]
        self._root = root = os.path.join(burst.folder, f"{trainer}-{named}")
        self._fast = BoundedDirectory(root, burst.limit_bytes)
        self._trainer = trainer
        self._spec_digest = spec_digest
        self._lock = threading.Lock()
        self._newest: CheckpointName | None = None
        """The newest one that was staged."""
        self._copied: CheckpointName | None = None
        """The one that is being copied."""
        try:
            self._descriptor = _locked(root)
        except BlockingIOError as error:
            raise Conflict(f"{root} is used by another process of trainer {trainer}") from error
        except OSError as error:
            raise Unavailable(f"{root}: {error.strerror}; use a folder that this process may write to") from error

    def close(self) -> None:
        """Let the next process have the place. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def left_by(self, process: str, incarnation: int) -> Manifest | None:
        """The newest whole checkpoint, if this process has staged it; every byte of it is read. Those of another
        incarnation lie here if the disk did not let them be removed (`clear`)."""
        try:
            if self._fast.get(_OWNER).decode() != process:
                return None
            complete = checkpoint.complete(self._fast, self._trainer)
        except NotFound:
            return None
        except (EsspError, ValueError) as error:
            _log.warning("%s: what is staged cannot be read: %s", self._fast.uri(_OWNER), error)
            return None
        for name in reversed([name for name in complete if name.incarnation == incarnation]):
            try:
                manifest = checkpoint.read_named(self._fast, self._trainer, name)
                checkpoint.verify(self._fast, manifest)
            except EsspError as error:
                _log.warning("the staged checkpoint %d of trainer %s is left out: %s", name.step, self._trainer, error)
            else:
                return manifest if manifest.spec_digest == self._spec_digest else None
        return None

    def begin(self, process: str) -> None:
        """Remove all that lies here: from now on this process stages. Raises what the disk raises."""
        self.clear()
        self._fast.put(_OWNER, process.encode())

    def clear(self) -> None:
        """Remove all that was staged here, with what killed writers have left, as far as the disk lets it."""
        with suppress(EsspError):
            for step, incarnation in {name for name, _ in checkpoint.objects_of(self._fast, self._trainer)}:
                checkpoint_writer.remove(self._fast, layout.checkpoint(self._trainer, step, incarnation))
        self._fast.remove_unfinished()

    def stage(self, manifest: Manifest, data: Data) -> Manifest:
        """Write a checkpoint here; returns it with its files. Raises `StorageFull` where it has no room, and what the
        disk raises; nothing of it stays then."""
        try:
            staged = checkpoint_writer.write(self._fast, manifest, data)
        except EsspError:
            self._remove(manifest.checkpoint)
            raise
        failpoint("checkpoint.staged")
        with self._lock:
            self._newest = staged.checkpoint
            kept = (staged.checkpoint, self._copied)
        self._remove_but(kept)
        return staged

    def data(self, manifest: Manifest) -> Data:
        """The files of a staged checkpoint, to be copied to the job's store."""

        def copy(store: ObjectStore, prefix: str) -> tuple[StoredFile, ...]:
            for file in manifest.files:
                if (path := self._fast.local_path(manifest.prefix + file.name)) is None:
                    raise BadCheckpoint(
                        f"{self._fast.uri(manifest.prefix + file.name)} is gone; leave it to ESSP what lies there"
                    )
                store.put_file(prefix + file.name, path)
            checkpoint_files.read_back(store, prefix, manifest.files)
            return manifest.files

        return copy

    def copy(self, staged: Manifest, save: Callable[[Manifest, Data], Manifest]) -> Manifest | None:
        """Make a staged checkpoint durable by `save`, and remove it here; None: a newer one has taken its place.

        Raises what `save` raises. The checkpoint stays here then, until a newer one is whole here.
        """
        with self._lock:
            if self._newest != staged.checkpoint:
                return None
            self._copied = staged.checkpoint
        try:
            saved = save(staged, self.data(staged))
            failpoint("checkpoint.copied")
        finally:
            with self._lock:
                self._copied = None
        self._remove(staged.checkpoint)
        return saved

    def _remove(self, name: CheckpointName) -> None:
        with suppress(EsspError):  # what stays is removed with the next one
            checkpoint_writer.remove(self._fast, layout.checkpoint(self._trainer, *name))

    def _remove_but(self, kept: Collection[CheckpointName | None]) -> None:
        with suppress(EsspError):
            for name in checkpoint.complete(self._fast, self._trainer):
                if name not in kept:
                    self._remove(name)


def _locked(root: str) -> int:
    """The descriptor that has the lock of a place. Raises `BlockingIOError` while another one has it."""
    os.makedirs(root, exist_ok=True)
    descriptor = os.open(os.path.join(root, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
