"""The checkpoints that are on their way to the job's store, on rank 0.

    snapshot ──essp-save──▶ burst buffer: staged ──essp-copy──▶ the store, latest: durable
    snapshot ──essp-save──▶ no buffer, or no room ──essp-copy──▶ the same, from memory

The memory of a snapshot is in use until the snapshot is staged, or durable if it is not staged. Then the next one may
be taken. One thread writes to the store, so checkpoints become durable in order. If several staged checkpoints wait for
the copy, only the newest is copied: it supersedes the others.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from essp_common.artifacts.manifest import Manifest
from essp_common.errors import EsspError, Fenced
from essp_trainer.checkpoints.checkpoint_store import CheckpointStore, Snapshot


class Saved(NamedTuple):
    """The outcome of saves."""

    manifest: Manifest | None
    """The newest checkpoint that became durable."""
    error: EsspError | None
    """The error of the last save, if it failed."""


class Saves:
    """Used from one thread."""

    def __init__(self, checkpoint_store: CheckpointStore) -> None:
        self._checkpoint_store = checkpoint_store
        self._under_way: deque[Future[Future[Manifest | None]]] = deque()
        """For each save: the end of its use of memory, and with it the end of its copy."""
        self._writer = ThreadPoolExecutor(1, "essp-save")
        self._copier = ThreadPoolExecutor(1, "essp-copy")

    @property
    def under_way(self) -> bool:
        """Whether there are saves that `take` has not returned yet."""
        return bool(self._under_way)

    @property
    def over(self) -> bool:
        """Whether a save is over, so that `take` has something to return."""
        return bool(self._under_way) and _is_over(self._under_way[0])

    def begin(self, snapshot: Snapshot) -> None:
        """Begin to save. The memory of the previous snapshot must be free (`wait_for_memory`)."""
        self._under_way.append(self._writer.submit(self._stage, snapshot))

    def fail(self, error: EsspError) -> None:
        """Record a save that could not begin."""
        failed: Future[Future[Manifest | None]] = Future()
        failed.set_exception(error)
        self._under_way.append(failed)

    def wait_for_memory(self) -> None:
        """Wait until no snapshot is in use any more."""
        if self._under_way:
            self._under_way[-1].exception()

    def wait(self) -> None:
        """Wait until every save is over."""
        for save in self._under_way:
            if save.exception() is None:
                save.result().exception()

    def take(self) -> Saved:
        """Return the outcome of finished saves. Raises `Fenced`, and errors that are not ESSP's."""
        manifest: Manifest | None = None
        error: EsspError | None = None
        while self.over:
            try:
                durable = self._under_way.popleft().result().result()
            except Fenced:
                raise
            except EsspError as reason:
                error = reason
            else:
                manifest, error = durable or manifest, None if durable else error
        return Saved(manifest, error)

    def close(self) -> None:
        """Wait for the saves under way. Idempotent."""
        self._writer.shutdown()
        self._copier.shutdown()

    def _stage(self, snapshot: Snapshot) -> Future[Manifest | None]:
        staged = self._checkpoint_store.stage(snapshot)
        if staged is not None:
            return self._copier.submit(self._checkpoint_store.copy, staged)
        saving: Future[Manifest | None] = self._copier.submit(self._checkpoint_store.save, snapshot)
        saving.exception()  # until then, the snapshot is in use
        return saving


def _is_over(save: Future[Future[Manifest | None]]) -> bool:
    return save.done() and (save.exception() is not None or save.result().done())
