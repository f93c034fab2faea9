"""Ways to save checkpoints, during which the training continues or waits.

    none          nothing is saved
    raw           the training waits until the store has the bytes, which are not read back: a bound
    direct        the training waits until the store has everything
    background    the training waits for a copy in memory; a thread writes it
    burst         the training waits until a fast folder has everything; a thread copies it to the store

All but the first two use the code with which a trainer saves (`essp_common/artifacts/checkpoint_writer.py`,
`staging.py`), so a benchmark measures what a training gets: each file is read back, the manifest is written last, and
then `latest` points to it. The newest `KEPT` checkpoints are kept.
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

Mode = Literal["none", "raw", "direct", "background", "burst"]
MODES: tuple[Mode, ...] = ("none", "raw", "direct", "background", "burst")
KEPT = 2
STAGED = 3
"""Maximum number of checkpoints in a burst buffer."""
TRAINER = "bench"
"""The trainer name under which the checkpoints are saved."""

Files = Mapping[str, bytes]

_MODEL = ModelDescription(
    name="made-up", feature="rgb", layout=COLOURS, channels=3, classes=(), dropout=0.0, crop=224, evaluation_scale=1.0
)


class Saver(Protocol):
    """Saves checkpoints in call order. An error is raised by the first call after it is known."""

    @abstractmethod
    def save(self, step: int, files: Files) -> None:
        """Returns as soon as the training may continue."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until everything is in the store. Raises the error that prevented it."""

    @abstractmethod
    def abandon(self) -> None:
        """End all threads after finishing only the checkpoint in progress. Idempotent."""

    @property
    def passed_by(self) -> int:
        """Number of checkpoints written directly to the store because a buffer had no room."""
        return 0


class Nothing(Saver):
    """Saves nothing."""

    def save(self, step: int, files: Files) -> None:
        """Does nothing."""

    def finish(self) -> None:
        """Returns at once, since nothing is pending."""

    def abandon(self) -> None:
        """Does nothing, since there are no threads."""


class Raw(Saver):
    """Writes the bytes synchronously over the last ones, and does nothing else."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def save(self, step: int, files: Files) -> None:
        """Write everything."""
        for name, data in files.items():
            self._store.put(f"raw/{name}", data)

    def finish(self) -> None:
        """Returns at once, since nothing is pending."""

    def abandon(self) -> None:
        """Does nothing, since there are no threads."""


class Direct(Saver):
    """Writes synchronously, while the training waits."""

    def __init__(self, store: ObjectStore) -> None:
        self._writer = checkpoint_writer.claim(store, TRAINER)

    def save(self, step: int, files: Files) -> None:
        """Write everything."""
        self._writer.save(_manifest(step), in_memory(files), KEPT)

    def finish(self) -> None:
        """Returns at once, since nothing is pending."""

    def abandon(self) -> None:
        """Does nothing, since there are no threads."""


class Background(Saver):
    """Writes in a thread, one checkpoint at a time. Saving the next one waits for the previous one."""

    def __init__(self, store: ObjectStore) -> None:
        self._writer = checkpoint_writer.claim(store, TRAINER)
        self._pool = ThreadPoolExecutor(1, "essp-bench-save")
        self._writing: Future[Manifest] | None = None

    def save(self, step: int, files: Files) -> None:
        """`files` is the copy and must not be changed afterwards."""
        self.finish()
        self._writing = self._pool.submit(self._writer.save, _manifest(step), in_memory(files), KEPT)

    def finish(self) -> None:
        """Wait for the checkpoint that is being written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def abandon(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class Burst(Saver):
    """Stages checkpoints in a fast folder, from which a thread copies them to the store.

    The newest staged checkpoint replaces older ones whose copying has not started.
    """

    def __init__(self, store: ObjectStore, folder: str, most_bytes: int) -> None:
        self._staging = staging.Staging(staging.Burst(folder, most_bytes), store.uri(TRAINER), TRAINER, "")
        self._writer: CheckpointWriter = checkpoint_writer.claim(store, TRAINER)
        self._staging.begin(self._writer.process)
        self._pool = ThreadPoolExecutor(1, "essp-bench-copy")
        self._copies: deque[Future[Manifest | None]] = deque()
        self._passed_by = 0

    def save(self, step: int, files: Files) -> None:
        """If the folder has no room, the training waits for the store."""
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
        """Wait until everything that was staged is in the store."""
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
    """Bytes that a burst buffer needs for checkpoints of this size, including their manifests."""
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
