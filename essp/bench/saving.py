"""Ways to save a checkpoint while a training goes on, or has to wait.

    none          nothing is saved
    direct        the training waits until the store has everything
    background    the training waits for a copy in memory; a thread writes it
    burst         the training waits until a fast folder has everything; a thread copies it to the store

All but the first save by what saves a trainer (`essp_common/artifacts/checkpoint_writer.py`, `staging.py`), so that
what is measured is what a training gets: each file is read back, the manifest is written last, and then `latest` names
it. The newest `KEPT` checkpoints stay.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, Protocol

from essp_common.artifacts import checkpoint_writer, staging
from essp_common.artifacts.checkpoint_files import Data, in_memory
from essp_common.artifacts.checkpoint_writer import CheckpointWriter
from essp_common.artifacts.manifest import Manifest, ModelDescription
from essp_common.errors import StorageFull
from essp_common.job.feature_layout import COLOURS
from essp_common.job.position import Position
from essp_common.objects.port import ObjectStore

Mode = Literal["none", "direct", "background", "burst"]
MODES: tuple[Mode, ...] = ("none", "direct", "background", "burst")
KEPT = 2
STAGED = 3
"""Checkpoints that a burst buffer holds at most."""
TRAINER = "bench"
"""Whose checkpoints they are."""

Files = Mapping[str, bytes]

_MODEL = ModelDescription(
    name="made-up", feature="rgb", layout=COLOURS, channels=3, classes=(), dropout=0.0, crop=224, evaluation_scale=1.0
)


class Saver(Protocol):
    """Saves checkpoints in the order of the calls. Errors are raised from the call after which they are known."""

    @abstractmethod
    def save(self, step: int, files: Files) -> None:
        """Returns as soon as the training may go on."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until everything is in the store. Raises what has kept it from getting there."""

    @abstractmethod
    def abandon(self) -> None:
        """End all threads; only the checkpoint in hand is finished. Idempotent."""

    @property
    def passed_by(self) -> int:
        """Checkpoints that went to the store directly, as a buffer had no room for them."""
        return 0


class Nothing(Saver):
    """Saves nothing."""

    def save(self, step: int, files: Files) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """Nothing to wait for."""

    def abandon(self) -> None:
        """Nothing to end."""


class Direct(Saver):
    """Writes where the training waits."""

    def __init__(self, store: ObjectStore) -> None:
        self._writer = checkpoint_writer.claim(store, TRAINER)

    def save(self, step: int, files: Files) -> None:
        """Write everything."""
        self._writer.save(_manifest(step), in_memory(files), KEPT)

    def finish(self) -> None:
        """Nothing is under way."""

    def abandon(self) -> None:
        """Nothing to end."""


class Background(Saver):
    """Writes in a thread, one checkpoint at a time: the next one waits for the one before."""

    def __init__(self, store: ObjectStore) -> None:
        self._writer = checkpoint_writer.claim(store, TRAINER)
        self._pool = ThreadPoolExecutor(1, "essp-bench-save")
        self._writing: Future[Manifest] | None = None

    def save(self, step: int, files: Files) -> None:
        """`files` are not changed by anybody any more: they are the copy."""
        self.finish()
        self._writing = self._pool.submit(self._writer.save, _manifest(step), in_memory(files), KEPT)

    def finish(self) -> None:
        """Finish the checkpoint that is being written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def abandon(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class Burst(Saver):
    """Stages in a fast folder, from which a thread copies. The newest that is staged takes the place of those before
    it that are not being copied yet."""

    def __init__(self, store: ObjectStore, folder: str, most_bytes: int) -> None:
        self._staging = staging.Staging(staging.Burst(folder, most_bytes), store.uri(TRAINER), TRAINER, "")
        self._writer: CheckpointWriter = checkpoint_writer.claim(store, TRAINER)
        self._staging.begin(self._writer.process)
        self._pool = ThreadPoolExecutor(1, "essp-bench-copy")
        self._copies: deque[Future[Manifest | None]] = deque()
        self._passed_by = 0

    def save(self, step: int, files: Files) -> None:
        """Where the folder has no room, the training waits for the store."""
        self._raise_known()
        manifest, data = self._writer.named(_manifest(step)), in_memory(files)
        try:
            staged = self._staging.stage(manifest, data)
        except StorageFull:
            self._passed_by += 1
            self._pool.submit(self._write, manifest, data).result()
        else:
            self._copies.append(self._pool.submit(self._staging.copy, staged, self._write))

    def finish(self) -> None:
        """What is staged is in the store then."""
        while self._copies:
            self._copies.popleft().result()

    def abandon(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._staging.close()

    @property
    def passed_by(self) -> int:
        return self._passed_by

    def _raise_known(self) -> None:
        while self._copies and self._copies[0].done():
            self._copies.popleft().result()

    def _write(self, manifest: Manifest, data: Data) -> Manifest:
        return self._writer.save(manifest, data, KEPT)


def room_for(checkpoint_bytes: int) -> int:
    """What a burst buffer needs for checkpoints of this size, with their manifests."""
    return STAGED * (checkpoint_bytes + 2**16)


def _manifest(step: int) -> Manifest:
    return Manifest(
        job=TRAINER,
        trainer=TRAINER,
        step=step,
        updates=step,
        epoch=0,
        position=Position(0, step),
        spec_digest="",
        model=_MODEL,
    )
