"""Packs checkpoints in a long-lived child process, so that the training's interpreter stays free meanwhile.

    the training          copies its state into shared memory (`state_memory.py`)
    the child             packs it into more shared memory: rounds, computes differences, compresses, hashes
    the thread that saves waits for that, hands the files to the store, and reads them back

The child knows nothing about stores: this process sends the files to the store, as if they had been packed here, with
the same credentials, errors and retries, and through the same layers. The kernel, and libraries that release the
interpreter lock, do that work.

A child that dies (killed, or out of memory) fails that save, as a store that does not answer would: the failure is
reported, the save is tried again with a new child, and the training continues. The new child has no base, so its first
checkpoint stands alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from essp_common.artifacts import checkpoint_files
from essp_common.artifacts.checkpoint_files import Data, StoredFile
from essp_common.artifacts.ownership import CheckpointName
from essp_common.errors import PermanentError, TransientError
from essp_common.job.trainer_spec import CheckpointSpec
from essp_common.objects.port import ObjectStore
from essp_common.runtime.child_process import ChildProcess, one_thread
from essp_common.tensors.packed import Packing
from essp_trainer.checkpoints.delta_packer import BaseFile
from essp_trainer.checkpoints.state_memory import Moving, StateMemory, Tensors
from essp_trainer.checkpoints.state_packing import StatePacking, described, str_of

_MODULE = "essp_trainer.checkpoints.packing_child"
_TASK = "packs checkpoints"
_MOST_FILES = 3
"""Files of a checkpoint: the weights to evaluate, the weights being trained, and the optimizer's state."""
_END_S = 10.0
_RETRY_S = 1.0


class PackingProcess(StatePacking):
    """Packs in a child process, which starts with `prepare` or else with the first save. Linux only."""

    def __init__(self, asked: CheckpointSpec) -> None:
        self._asked = asked
        self._memory = StateMemory()
        self._outputs: list[int] = []
        """Memory for the packed files, one each."""
        self._child: _Child | None = None

    def prepare(self, size: int, pinned: bool) -> None:
        self._memory.reserve(size, pinned)
        self._child = self._child or self._begin_child()

    def take(self, files: Mapping[str, Tensors], moving: Moving) -> None:
        self._memory.take(files, moving)

    def wait_for_copy(self) -> None:
        self._memory.wait_for_copy()

    def data(self, checkpoint: CheckpointName, packings: Mapping[str, Packing], alone: bool) -> Data:
        def write(store: ObjectStore, prefix: str) -> tuple[StoredFile, ...]:
            self._memory.wait()
            stored = self._packed(checkpoint, packings, alone)
            for file, output in zip(stored, self._outputs, strict=False):
                store.put_file(prefix + file.name, f"/proc/self/fd/{output}")
            checkpoint_files.read_back(store, prefix, stored)
            return stored

        return write

    def settle(self, completed: bool) -> None:
        for output in self._outputs:
            os.ftruncate(output, 0)  # frees the memory until the next save
        if self._child is not None:
            self._child.tell(json.dumps({"completed": completed}).encode())

    def close(self) -> None:
        self._end_child()
        for output in self._outputs:
            os.close(output)
        self._outputs = []
        self._memory.close()

    def _packed(
        self, checkpoint: CheckpointName, packings: Mapping[str, Packing], alone: bool
    ) -> tuple[StoredFile, ...]:
        child = self._child = self._child or self._begin_child()
        try:
            files = child.pack(str_of(checkpoint), packings, alone, self._memory)
        except TransientError:
            self._end_child()
            raise
        return tuple(
            described(name, size_bytes, sha256, None if base is None else BaseFile(*base))
            for name, (size_bytes, sha256, base) in zip(packings, files, strict=True)
        )

    def _begin_child(self) -> _Child:
        try:
            while len(self._outputs) < _MOST_FILES:
                self._outputs.append(os.memfd_create("essp-packed", os.MFD_CLOEXEC))
        except OSError as error:
            raise TransientError(f"the process that {_TASK} cannot be started: {error}", _RETRY_S) from error
        return _Child(self._asked, self._memory.fd, self._outputs)

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end(_END_S)


class _Child(ChildProcess):
    """The parent's end of the child. See `packing_child.py` for the messages."""

    def __init__(self, asked: CheckpointSpec, state: int, outputs: Sequence[int]) -> None:
        words = int(asked.delta), asked.exact_every
        super().__init__(_MODULE, _TASK, *words, files=[state, *outputs], environment=one_thread())

    def pack(
        self, checkpoint: str, packings: Mapping[str, Packing], alone: bool, memory: StateMemory
    ) -> list[tuple[int, str, Sequence[Any] | None]]:
        """Return size, SHA-256 and base of each file, in the order of `packings`.

        Raises `PermanentError` for state that cannot be packed, and `TransientError` if the child cannot continue.
        """
        request = {
            "checkpoint": checkpoint,
            "packings": {name: asdict(packing) for name, packing in packings.items()},
            "alone": alone,
            "size": memory.size,
            "places": memory.places,
        }
        self.tell(json.dumps(request).encode())
        try:
            answer = json.loads(self.channel.receive())
        except (EOFError, OSError) as error:
            raise TransientError(f"the process that {_TASK} {self.end(_END_S)}", _RETRY_S) from error
        if "error" in answer:
            raise (TransientError if answer["transient"] else PermanentError)(answer["error"])
        files: list[tuple[int, str, Sequence[Any] | None]] = answer["files"]
        return files
