"""Saves a plain loop by what saves a trainer: its kept memory, and its child process or thread that packs."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from essp_common.artifacts.ownership import CheckpointName
from essp_common.job.trainer_spec import CheckpointSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.tensors.packed import EXACT, Packing
from essp_trainer.checkpoints.packing_process import PackingProcess
from essp_trainer.checkpoints.state_memory import Moving
from essp_trainer.checkpoints.state_packing import PackingThread, StatePacking

Tensors = Mapping[str, Mapping[str, Tensor]]


class Background:
    """One checkpoint at a time is written in the background."""

    _writing: Future[Any] | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    def finish(self) -> None:
        """Wait for the one that is being written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


class Saver(Background):
    """Writes each checkpoint in place of the last; every file is flushed to the disk, and read back."""

    def __init__(self, folder: Path, parallel: bool, packing: Packing = EXACT, delta: bool = False) -> None:
        asked = CheckpointSpec(delta=delta)
        self._packing: StatePacking = PackingProcess(asked) if parallel else PackingThread(asked)
        self._how = packing
        self._store = DirectoryStore(str(folder))
        self._pool = ThreadPoolExecutor(1, "essp-save") if parallel else None
        self._saves = 0
        self.ended_s = 0.0
        """When the last one was on the disk (`time.perf_counter`)."""
        self.sizes: list[int] = []
        """Bytes of each checkpoint so far."""

    def save(self, tensors: Tensors, moving: Moving = ()) -> None:
        """Begin; what is not `moving` may change only after `wait_for_copy`. Waits for the save before."""
        self.finish()
        self._saves += 1
        self._packing.take(tensors, moving)
        if self._pool is None:
            self._packing.wait_for_copy()
            self._write(tuple(tensors))
        else:
            self._writing = self._pool.submit(self._write, tuple(tensors))

    def wait_for_copy(self) -> None:
        """Until everything may change."""
        self._packing.wait_for_copy()

    def close(self) -> None:
        """End the child."""
        if self._pool is not None:
            self._pool.shutdown()
        self._packing.close()

    def _write(self, files: tuple[str, ...]) -> None:
        name = CheckpointName(self._saves, 1)
        stored = self._packing.data(name, dict.fromkeys(files, self._how), False)(self._store, "")
        self._packing.settle(True)
        self.ended_s = time.perf_counter()
        self.sizes.append(sum(file.size_bytes for file in stored))


def torch_save(tensors: Tensors, folder: Path) -> None:
    """The same by `torch.save`: a file each, flushed to the disk."""
    for file, named in tensors.items():
        with open(folder / f"{file}.new", "wb") as target:
            torch.save(dict(named), target)
            target.flush()
            os.fsync(target.fileno())
        (folder / f"{file}.new").replace(folder / file)


class AsyncDcp(Background):
    """The same by PyTorch's distributed checkpoints, in the background (`torch.distributed.checkpoint.async_save`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)

    def save(self, tensors: Tensors) -> None:
        """Returns when the training may go on: the state was copied. Waits for the save before."""
        # Here, since half a second goes by until they are loaded.
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        self.finish()
        state = {file: dict(named) for file, named in tensors.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected an existing checkpoint")
            saving = async_save(state, storage_writer=FileSystemWriter(self._folder / "dcp", overwrite=True))
        assert isinstance(saving, Future)
        self._writing = saving

    def close(self) -> None:
        """End the process group."""
        self.finish()
        distributed.destroy_process_group()
