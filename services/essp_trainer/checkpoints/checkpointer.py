"""When a training is saved, what becomes of a save that fails, and which messages a checkpoint makes superfluous.

    between two batches:  begin ──copy of all state, in host memory──▶ a thread writes, reads back, points, tidies
    training goes on      ...                                                      │
    between two batches:  settle ◀── every rank learns of it, messages are committed

Rank 0 writes; every rank then lets go of the messages of its clips that the checkpoint holds. Until then they are held
uncommitted, so whatever happens before is delivered again. One checkpoint is written at a time: what begins a second
waits for the first.

A store that is full, refuses or does not answer stops no training: the failure is logged, counted and told to the
master, the weights train on, and the checkpoint is tried again soon (`save_retry_s`) and at each occasion. Only the
final one is insisted on: when it cannot be saved for `final_save_timeout_s`, the training fails and says why.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from essp_common.artifacts.checkpoint import Manifest
from essp_common.errors import EsspError, Fenced, PermanentError, TransientError
from essp_common.messages.ordered import Delivery, OrderedIntake
from essp_common.planning.digest import as_text, from_text, joined
from essp_common.planning.position import Position
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.metrics import CHECKPOINTS
from essp_common.runtime.retry import retry_transient
from essp_trainer.checkpoints.checkpoint_store import CheckpointStore, TrainingState
from essp_trainer.distributed.ranks import Ranks
from essp_trainer.model.meter import Clock
from essp_trainer.model.training import Training
from essp_trainer.reporter import Reporter

log = logging.getLogger(__name__)

_INSIST_S = 1.0


class Unsaved(TransientError):
    """A training leaves without a checkpoint; it goes on from the last one."""


class CannotSave(PermanentError):
    """The final checkpoint could not be written."""

    kind = "storage"


@dataclass(frozen=True, slots=True)
class SavePolicy:
    """How failing saves are dealt with."""

    retry_s: float
    patience_s: float


class Checkpointer:
    """Saves one training."""

    def __init__(
        self,
        checkpoint_store: CheckpointStore,
        intake: OrderedIntake,
        reporter: Reporter,
        ranks: Ranks,
        policy: SavePolicy,
        leaving: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self.saved: Manifest | None = None
        """The newest checkpoint, on every rank."""
        self.failing = False
        """The last save that was tried failed; on every rank."""
        self._checkpoint_store = checkpoint_store
        self._intake = intake
        self._reporter = reporter
        self._ranks = ranks
        self._policy = policy
        self._leaving = leaving
        self._clock = clock
        self._failed_s = 0.0
        self._told = ""
        """The last trouble that the master was told of."""
        self._uncommitted: list[Delivery] = []
        self._begun: Position | None = None
        """Where the checkpoint stands that is being written; on every rank."""
        self._writing: Future[Manifest] | None = None
        """On rank 0."""
        self._writer = ThreadPoolExecutor(1, "essp-save")

    def hold(self, items: Sequence[Delivery]) -> None:
        """The training is done with these clips; no checkpoint holds yet what they taught."""
        self._uncommitted += items

    def holds(self, position: Position) -> bool:
        """Whether the newest checkpoint stands exactly there."""
        return self.saved is not None and self.saved.position == position

    @property
    def newest(self) -> Position:
        """Where the newest checkpoint stands, written or being written."""
        if self._begun is not None:
            return self._begun
        return Position(0, 0) if self.saved is None else self.saved.position

    @property
    def due(self) -> bool:
        """A save has failed, and it is time to try again. Each rank has its own answer; that of rank 0 counts."""
        return self.failing and self._begun is None and self._clock() - self._failed_s >= self._policy.retry_s

    @property
    def written(self) -> bool:
        """The checkpoint that was begun is written, or failed: `settle` takes no time. As `due`."""
        return self._writing is not None and self._writing.done()

    def begin(self, training: Training, state: TrainingState) -> None:
        """Have a checkpoint of the training written as it stands, unless there is one. All ranks together."""
        if self._begun not in (None, state.position):
            self.settle()
        if self._begun is not None or self.holds(state.position):
            return
        state = self._of_all_ranks(state)
        self._begun = state.position
        if self._ranks.is_rank_zero:
            snapshot = self._checkpoint_store.snapshot(training, state)
            self._writing = self._writer.submit(self._checkpoint_store.save, snapshot)

    def settle(self) -> None:
        """Wait until what was begun is written, or failed, and draw the consequences. All ranks together."""
        if self._begun is None:
            return
        self._begun = None
        self._conclude(self._outcome)

    def save(self, training: Training, state: TrainingState) -> bool:
        """A checkpoint of the training as it stands, at once; False when it could not be made. All ranks together."""
        self.begin(training, state)
        self.settle()
        return self.holds(state.position)

    def finish(self, training: Training, state: TrainingState) -> None:
        """The final checkpoint. Raises `CannotSave`. All ranks together."""
        self.settle()
        deadline = self._clock() + self._policy.patience_s
        state = self._of_all_ranks(state)

        def attempt() -> Manifest:
            try:
                return self._checkpoint_store.save(self._checkpoint_store.final_snapshot(training, state))
            except TransientError as error:
                self._trouble(error)
                raise

        def insist() -> Manifest:
            try:
                return retry_transient(attempt, lambda: self._leaving() or self._clock() >= deadline, _wait)
            except TransientError as error:
                if self._leaving():
                    raise
                raise CannotSave(
                    f"the final checkpoint could not be saved: {error}; make room or mend the store, and start the job "
                    f"again: training goes on from the last checkpoint"
                ) from error

        self._conclude(insist)

    def close(self) -> None:
        """Wait for what is being written; whole or not, it is what it says. Idempotent."""
        self._writer.shutdown()

    def _of_all_ranks(self, state: TrainingState) -> TrainingState:
        """With the clips that any rank has seen, in place of those of this one."""
        parts = self._ranks.all_gather(as_text(state.digest).encode())
        return replace(state, digest=joined(from_text(part.decode()) for part in parts))

    def _outcome(self) -> Manifest | None:
        """The checkpoint that was being written; None when that failed. On rank 0."""
        writing, self._writing = self._writing, None
        if writing is None:
            raise RuntimeError("no checkpoint is being written")
        try:
            return writing.result()
        except Fenced:
            raise
        except EsspError as error:
            self._trouble(error)
            return None

    def _conclude(self, make: Callable[[], Manifest | None]) -> None:
        """Let rank 0 make a checkpoint, and every rank know of it."""
        document = b""
        if self._ranks.is_rank_zero:
            manifest = make()
            document = b"" if manifest is None else manifest.model_dump_json().encode()
        failpoint("trainer.saved")
        document = self._ranks.broadcast(document)
        self.failing = not document
        if self.failing:
            return
        self.saved, self._told = Manifest.model_validate_json(document), ""
        if self._ranks.is_rank_zero:
            CHECKPOINTS.labels("saved").inc()
            self._announce(self.saved)
        failpoint("trainer.announced")
        self._commit(self.saved.position)
        failpoint("trainer.committed")

    def _announce(self, manifest: Manifest) -> None:
        uri, scores_uri = self._checkpoint_store.uri(manifest), self._checkpoint_store.scores_uri(manifest)
        retry_transient(lambda: self._reporter.checkpoint(manifest, uri, scores_uri), self._leaving)

    def _commit(self, position: Position) -> None:
        """Let go of the messages whose clips a checkpoint at `position` holds."""
        self._intake.commit([item for item in self._uncommitted if _place(item) < position])
        self._uncommitted = [item for item in self._uncommitted if _place(item) >= position]

    def _trouble(self, error: EsspError) -> None:
        self._failed_s = self._clock()
        CHECKPOINTS.labels("failed").inc()
        reason = f"a checkpoint could not be saved, and is tried again: {error}"
        log.error("%s", reason)
        if reason != self._told:
            self._told = reason
            with suppress(TransientError):  # the log has it; training does not wait for the bus to hear of it
                self._reporter.trouble(reason)


def _wait(seconds: float) -> None:
    """Before the final checkpoint is tried again, which may take long."""
    time.sleep(max(seconds, _INSIST_S))


def _place(item: Delivery) -> Position:
    return Position(item.phase_index, item.clip.index)
