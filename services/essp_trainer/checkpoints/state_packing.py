"""Turns the copy of a training into the files of a checkpoint, in the saving thread or in a child process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from essp_common.artifacts import checkpoint_files
from essp_common.artifacts.checkpoint_files import Data, StoredBase, StoredFile
from essp_common.artifacts.ownership import CheckpointName
from essp_common.job.trainer_spec import CheckpointSpec
from essp_common.objects.port import ObjectStore
from essp_common.tensors.packed import Packing
from essp_trainer.checkpoints.delta_packer import BaseFile, Packer
from essp_trainer.checkpoints.state_memory import Moving, StateMemory, Tensors


class StatePacking(Protocol):
    """Packs one training, save by save."""

    def prepare(self, size: int, pinned: bool) -> None:
        """Allocate what the first save of a state of `size` bytes needs. `pinned`: the state is on a GPU.

        Raises `TransientError` if something is lacking; the save tries again.
        """

    def take(self, files: Mapping[str, Tensors], moving: Moving) -> None:
        """Begin to copy the state. Tensors that are `moving` may change when this returns, all others after
        `wait_for_copy`. Raises `Unavailable` if there is not enough memory.
        """

    def wait_for_copy(self) -> None:
        """Wait until the state that was taken last may change."""

    def data(self, checkpoint: CheckpointName, packings: Mapping[str, Packing], alone: bool) -> Data:
        """Return a function that writes the files of the state copied last. `alone`: without differences from or to
        other checkpoints."""

    def settle(self, completed: bool) -> None:
        """Note whether what was written last has become a checkpoint."""

    def close(self) -> None:
        """Free all resources. Idempotent."""


class PackingThread(StatePacking):
    """Packs in the thread that writes."""

    def __init__(self, asked: CheckpointSpec) -> None:
        self._memory = StateMemory()
        self._packer = Packer(asked.delta, asked.exact_every)

    def prepare(self, size: int, pinned: bool) -> None:
        self._memory.reserve(size, pinned)

    def take(self, files: Mapping[str, Tensors], moving: Moving) -> None:
        self._memory.take(files, moving)

    def wait_for_copy(self) -> None:
        self._memory.wait_for_copy()

    def data(self, checkpoint: CheckpointName, packings: Mapping[str, Packing], alone: bool) -> Data:
        def write(store: ObjectStore, prefix: str) -> tuple[StoredFile, ...]:
            self._memory.wait()
            packed = self._packer.pack(str_of(checkpoint), self._memory.arrays(), packings, alone)
            for file in packed:
                store.put(prefix + file.name, file.data)
            stored = tuple(described(file.name, len(file.data), file.sha256, file.base) for file in packed)
            checkpoint_files.read_back(store, prefix, stored)
            return stored

        return write

    def settle(self, completed: bool) -> None:
        self._packer.settle(completed)

    def close(self) -> None:
        self._memory.close()


def str_of(checkpoint: CheckpointName) -> str:
    """Return the name of a checkpoint in files that are differences to it (`StoredBase.name`)."""
    return f"{checkpoint.step}-{checkpoint.incarnation}"


def described(name: str, size_bytes: int, sha256: str, base: BaseFile | None) -> StoredFile:
    """Return the manifest's entry for a packed file."""
    needed = None
    if base is not None:
        step, _, incarnation = base.checkpoint.partition("-")
        needed = StoredBase(
            step=int(step), incarnation=int(incarnation), size_bytes=base.size_bytes, sha256=base.sha256
        )
    return StoredFile(name=name, size_bytes=size_bytes, sha256=sha256, base=needed)
