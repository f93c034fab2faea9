"""A burst buffer for checkpoints: a fast disk of this node, on which they are complete before they reach the job's
store.

    <folder>/<trainer>-<hash>/lock          locked by the one process that uses this place
    <folder>/<trainer>-<hash>/owner         which process of the training has staged the contents
    <folder>/<trainer>-<hash>/trainers/<trainer>/checkpoints/<step>-<incarnation>/...     as in the job's store

    data ──▶ here, flushed, read back, manifest last: staged ──copy──▶ the job's store, latest: durable ──▶ removed here

A place belongs to one training: the hash is computed from the job's output and the trainer. The kernel releases the
lock of a killed process, so a process that gets the lock knows that the previous one has ended.

**A staged checkpoint does not count yet.** It counts only if the same node resumes the training and no other process
has trained in between, that is, if the last entry of `latest` belongs to the process that staged it (`owner`, compared
with `Entry.process`). Then it is first written to the job's store (`checkpoint_writer.claim`). Otherwise it is removed.
If another node resumes the training, it continues from the job's store.

**At most three are here**: one being copied, the newest, and one being written. When a checkpoint is complete here,
older ones are removed, except the one being copied: the newer one supersedes them.

**Bounds.** A write that would exceed the limit raises `StorageFull`, as on a full disk. The limit applies to each
place, so trainers that share a folder may use a multiple of it. A place to which no process returns keeps its contents.
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
    """A folder on a fast disk, and how much space each training may use in it."""

    folder: str
    limit_bytes: int


def parse_burst(url: str) -> Burst:
    """Parse `file:///nvme/essp?bytes=20GiB`. Raises `ConfigError`."""
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
    """The place of one training. One thread stages, another one copies."""

    def __init__(self, burst: Burst, output: str, trainer: str, spec_digest: str) -> None:
        """`output`: URI of the job's output. `spec_digest`: checkpoints with another digest are not resumed.

        Raises `Conflict` while another process uses the place, and `Unavailable` for an unusable folder.
        """
        named = hashlib.sha256(f"{output}\n{trainer}".encode()).hexdigest()[:16]
        self._root = root = os.path.join(burst.folder, f"{trainer}-{named}")
        self._fast = BoundedDirectory(root, burst.limit_bytes)
        self._trainer = trainer
        self._spec_digest = spec_digest
        self._lock = threading.Lock()
        self._newest: CheckpointName | None = None
        """The newest one staged."""
        self._copied: CheckpointName | None = None
        """The one being copied."""
        try:
            self._descriptor = _locked(root)
        except BlockingIOError as error:
            raise Conflict(f"{root} is used by another process of trainer {trainer}") from error
        except OSError as error:
            raise Unavailable(f"{root}: {error.strerror}; use a folder that this process may write to") from error

    def close(self) -> None:
        """Release the place for the next process. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def left_by(self, process: str, incarnation: int) -> Manifest | None:
        """The newest intact checkpoint, if this process has staged it; every byte of it is read.

        Checkpoints of another incarnation may be here if the disk failed to remove them (`clear`).
        """
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
        """Remove everything here; from now on this process stages. Raises what the disk raises."""
        self.clear()
        self._fast.put(_OWNER, process.encode())

    def clear(self) -> None:
        """Remove everything that was staged here, including leftovers of killed writers, as far as the disk allows."""
        with suppress(EsspError):
            for step, incarnation in {name for name, _ in checkpoint.objects_of(self._fast, self._trainer)}:
                checkpoint_writer.remove(self._fast, layout.checkpoint(self._trainer, step, incarnation))
        self._fast.remove_unfinished()

    def stage(self, manifest: Manifest, data: Data) -> Manifest:
        """Write a checkpoint here; returns it with its files. Raises `StorageFull` if there is no room, and what the
        disk raises; nothing of it remains then."""
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
        """The files of a staged checkpoint, as a function that copies them to the job's store."""

        def copy(store: ObjectStore, prefix: str) -> tuple[StoredFile, ...]:
            for file in manifest.files:
                if (path := self._fast.local_path(manifest.prefix + file.name)) is None:
                    raise BadCheckpoint(
                        f"{self._fast.uri(manifest.prefix + file.name)} is gone; let only ESSP remove what is there"
                    )
                store.put_file(prefix + file.name, path)
            checkpoint_files.read_back(store, prefix, manifest.files)
            return manifest.files

        return copy

    def copy(self, staged: Manifest, save: Callable[[Manifest, Data], Manifest]) -> Manifest | None:
        """Make a staged checkpoint durable with `save`, and remove it here. Returns None if a newer one has replaced
        it.

        Raises what `save` raises. The checkpoint then stays here until a newer one is complete here.
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
        with suppress(EsspError):  # leftovers are removed with the next one
            checkpoint_writer.remove(self._fast, layout.checkpoint(self._trainer, *name))

    def _remove_but(self, kept: Collection[CheckpointName | None]) -> None:
        with suppress(EsspError):
            for name in checkpoint.complete(self._fast, self._trainer):
                if name not in kept:
                    self._remove(name)


def _locked(root: str) -> int:
    """A descriptor that holds the lock of a folder. Raises `BlockingIOError` while another process holds it."""
    os.makedirs(root, exist_ok=True)
    descriptor = os.open(os.path.join(root, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
