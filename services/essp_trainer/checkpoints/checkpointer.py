"""How a training is saved, what happens if a save fails, and which messages a checkpoint allows to commit.

When a save is due: `session.py` (`checkpoint.every`, and the end of a phase), `interval.py` (`checkpoint.overhead`),
and `due` here (again after a failure).

    between two batches:  begin ──copy of all state, in host memory──▶ threads: write, verify, point (`save_queue.py`)
    training continues    ... until its next update: waits for the copy            │
    between two batches:  settle ◀── every rank learns the result and commits its messages

Rank 0 writes; then every rank commits the messages of its own clips that the checkpoint covers. Until then they stay
uncommitted, so that they are delivered again if the training dies. A checkpoint counts once it is durable in the job's
store. With a burst buffer, a second one may begin while the first is being copied; otherwise it waits for it.

A store that is full, refuses or does not answer does not stop the training: the failure is logged, counted and reported
to the master, training continues, and the checkpoint is tried again after `save_retry_s` and at each regular time. It
begins with scores that could not be written before (`checkpoint_store.py`). Only the final checkpoint, and the one at
an early stop, are required: if such a checkpoint cannot be saved for `final_save_timeout_s`, the training fails with
the reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict

from essp_common.artifacts.checkpoint_files import BadCheckpoint
from essp_common.artifacts.manifest import Manifest
from essp_common.bus.port import Record
from essp_common.errors import ConfigError, EsspError, Fenced, PermanentError, StorageFull, TransientError, Unavailable
from essp_common.job.position import Position
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.metrics import CHECKPOINTS
from essp_common.runtime.retry import retry_transient
from essp_engine.intake.ordered import Delivery
from essp_engine.planning.digest import as_text, from_text, joined
from essp_trainer.checkpoints.checkpoint_store import CheckpointStore, Snapshot, TrainingState
from essp_trainer.checkpoints.interval import Interval
from essp_trainer.checkpoints.save_queue import Saves
from essp_trainer.distributed.ranks import Ranks
from essp_trainer.model.meter import Clock
from essp_trainer.model.port import Trainable
from essp_trainer.releases import Releases
from essp_trainer.reporter import Reporter

log = logging.getLogger(__name__)

_MIN_RETRY_S = 1.0


class Unsaved(TransientError):
    """A training leaves without a checkpoint; it will resume from the last one."""


class CannotSave(PermanentError):
    """A checkpoint that the training needs in order to continue could not be written."""

    kind = "storage"


@dataclass(frozen=True, slots=True)
class SavePolicy:
    """How to deal with failing saves."""

    retry_s: float
    """How long to continue training before the next attempt."""
    final_timeout_s: float
    """How long to try to save the final checkpoint."""


class _Outcome(BaseModel):
    """The outcome of checkpoints, as rank 0 announces it to all ranks."""

    model_config = ConfigDict(frozen=True)

    manifest: Manifest | None
    """The newest checkpoint that became durable."""
    failing: bool = False
    """Whether the last one failed."""
    under_way: bool = False
    """Whether others are still being written."""


class Checkpointer:
    """Saves one training."""

    def __init__(
        self,
        checkpoint_store: CheckpointStore,
        releases: Releases,
        reporter: Reporter,
        ranks: Ranks,
        policy: SavePolicy,
        leaving: Callable[[], bool],
        clock: Clock,
        interval: Interval | None = None,
    ) -> None:
        """`interval`: on rank 0, when checkpoints are due within an epoch, if the job leaves that to it."""
        self.saved: Manifest | None = None
        """The newest checkpoint, on every rank."""
        self.failing = False
        """Whether the last save failed; on every rank."""
        self._checkpoint_store = checkpoint_store
        self._releases = releases
        self._reporter = reporter
        self._ranks = ranks
        self._policy = policy
        self._leaving = leaving
        self._clock = clock
        self._interval = interval
        self._failed_s = 0.0
        self._reported = ""
        """The last trouble that was reported to the master."""
        self._passed_by = ""
        """The burst buffer's trouble that was reported."""
        self._uncommitted: list[tuple[Position, Record]] = []
        """Position and bare message of each clip since the last checkpoint; bare, since there may be millions."""
        self._in_progress: Position | None = None
        """Position of the newest checkpoint while it or an older one is being written; on every rank."""
        self._saves = Saves(checkpoint_store)
        """On rank 0."""
        # start at 0, so that a query for an increase sees the first one, too
        for outcome in ("staged", "durable", "failed"):
            CHECKPOINTS.labels(outcome)

    def defer_commit(self, items: Sequence[Delivery]) -> None:
        """Keep the messages of these clips until a checkpoint covers what was learned from them."""
        self._uncommitted += [(Position(item.phase_index, item.clip.index), item.record.bare) for item in items]

    def saved_at(self, position: Position) -> bool:
        """Whether the newest checkpoint is at exactly this position."""
        return self.saved is not None and self.saved.position == position

    @property
    def newest(self) -> Position:
        """Position of the newest checkpoint, written or being written."""
        if self._in_progress is not None:
            return self._in_progress
        return Position(0, 0) if self.saved is None else self.saved.position

    @property
    def due(self) -> bool:
        """Whether a save failed and it is time to retry, or the interval is over. Ranks may disagree; only rank 0's
        answer counts."""
        if self._in_progress is not None:
            return False
        if self.failing or self._checkpoint_store.keeps_scores:
            return self._clock() - self._failed_s >= self._policy.retry_s
        return self._interval is not None and self._interval.due

    def count_step(self, trains: bool) -> None:
        """Note that a step has ended; `trains`: one that counts for the interval between checkpoints."""
        if self._interval is not None:
            if trains:
                self._interval.step()
            else:
                self._interval.leave_out()

    @property
    def written(self) -> bool:
        """Whether a checkpoint has become durable or failed, so that there is something to `settle`. Only on rank 0."""
        return self._saves.over

    def begin(self, training: Trainable, state: TrainingState) -> None:
        """Begin to write a checkpoint of the present state, unless it already exists. All ranks together."""
        if self._in_progress == state.position:
            return
        # Only one snapshot fits into memory. Rank 0 waits for it to be free; the other ranks wait in `settle` for rank
        # 0.
        if self._in_progress is not None:
            self._saves.wait_for_memory()
            self.settle()
        if self.saved_at(state.position):
            return
        state = self._of_all_ranks(state)
        self._in_progress = state.position
        if self._interval is not None:
            self._interval.began()
        if not self._ranks.is_rank_zero:
            return
        try:
            snapshot = self._checkpoint_store.snapshot(training, state)
        except Unavailable as error:  # no memory for a copy
            self._saves.fail(error)
        else:
            self._saves.begin(snapshot)

    def settle(self) -> None:
        """Apply the outcome of finished checkpoints on every rank. All ranks together."""
        if self._in_progress is not None:
            self._apply(self._outcome)

    def save(self, training: Trainable, state: TrainingState) -> bool:
        """Write a checkpoint of the present state and wait for it. Returns False if that failed. All ranks together."""
        self.begin(training, state)
        self._settle_all()
        return self.saved_at(state.position)

    def finish(self, training: Trainable, state: TrainingState) -> None:
        """Write the final checkpoint. Raises `CannotSave`. All ranks together."""
        self._require("final checkpoint", lambda all: self._checkpoint_store.final_snapshot(training, all), state)

    def save_last(self, training: Trainable, state: TrainingState) -> None:
        """Write the checkpoint that a training needs after an early stop. Raises `CannotSave`. All ranks together."""
        self._require("checkpoint of an early stop", lambda all: self._checkpoint_store.snapshot(training, all), state)

    def _require(self, what: str, snapshot: Callable[[TrainingState], Snapshot], state: TrainingState) -> None:
        """Write a required checkpoint, retrying up to the timeout."""
        self._settle_all()
        deadline = self._clock() + self._policy.final_timeout_s
        state = self._of_all_ranks(state)

        def attempt() -> Manifest:
            try:
                taken = snapshot(state)
                try:
                    return self._checkpoint_store.save(taken)
                except BadCheckpoint as error:  # the store returned other bytes than it was given
                    raise Unavailable(str(error)) from error
            except TransientError as error:
                self._failed(error)
                raise
            except ConfigError as error:  # a missing permission or a read-only disk: users may repair it meanwhile
                self._failed(error)
                raise Unavailable(str(error)) from error

        def save_in_time() -> _Outcome:
            try:
                saved = retry_transient(attempt, lambda: self._leaving() or self._clock() >= deadline, _wait)
                return _Outcome(manifest=saved)
            except TransientError as error:
                if self._leaving():
                    raise
                raise CannotSave(
                    f"the {what} could not be saved: {error}; make room or repair the store, and start the "
                    f"job again: training will resume from the last checkpoint"
                ) from error

        self._apply(save_in_time)

    def attempt(self, what: str, write: Callable[[], None]) -> None:
        """Write something that is kept and retried if the store does not accept it. Raises `Fenced`. Only on rank 0."""
        try:
            write()
        except Fenced:
            raise
        except EsspError as error:
            self._trouble(error, what)

    def close(self) -> None:
        """Wait for the checkpoints that are being written; a partial one is never taken for complete. Idempotent."""
        self._saves.close()

    def _settle_all(self) -> None:
        """Wait until no checkpoint is being written, and apply the outcomes. All ranks together."""
        self._saves.wait()
        self.settle()

    def _of_all_ranks(self, state: TrainingState) -> TrainingState:
        """Return the state with the joint digest of all ranks' clips, after all ranks have released theirs."""
        self._releases.settle()
        parts = self._ranks.all_gather(as_text(state.digest).encode())
        return replace(state, digest=joined(from_text(part.decode()) for part in parts))

    def _outcome(self) -> _Outcome:
        """Return the outcome of finished checkpoints. On rank 0."""
        saved = self._saves.take()
        if saved.error is not None:
            self._failed(saved.error)
        failing = saved.error is not None or (self.failing and saved.manifest is None)
        return _Outcome(manifest=saved.manifest, failing=failing, under_way=self._saves.under_way)

    def _apply(self, make: Callable[[], _Outcome]) -> None:
        """Let rank 0 determine the outcome of checkpoints, announce it to every rank, and commit."""
        # Synchronisation point: the broadcast makes all ranks wait for rank 0 and continue with the same outcome.
        document = b""
        if self._ranks.is_rank_zero:
            document = make().model_dump_json().encode()
            self._tell_of_burst_buffer()
        failpoint("trainer.saved")
        outcome = _Outcome.model_validate_json(self._ranks.broadcast(document))
        self.failing = outcome.failing
        if not outcome.under_way:
            self._in_progress = None
            if self._interval is not None:
                self._interval.ended()
        if outcome.manifest is None:
            return
        self.saved = outcome.manifest
        if self._ranks.is_rank_zero:
            self._reported = self._reported if self.failing else ""
            self._announce(self.saved)
        failpoint("trainer.announced")
        # Only now: the checkpoint is durable and announced, so these messages need no redelivery.
        self._commit(self.saved.position)
        failpoint("trainer.committed")

    def _announce(self, manifest: Manifest) -> None:
        ready = self._checkpoint_store.message(manifest)
        retry_transient(lambda: self._reporter.checkpoint(ready), self._leaving)

    def _commit(self, position: Position) -> None:
        """Commit the messages of the clips that a checkpoint at `position` covers."""
        self._releases.commit(record for at, record in self._uncommitted if at < position)
        self._uncommitted = [(at, record) for at, record in self._uncommitted if at >= position]

    def _tell_of_burst_buffer(self) -> None:
        """Report once to the master that checkpoints bypass the burst buffer."""
        if self._passed_by == (reason := self._checkpoint_store.passed_by):
            return
        self._passed_by = reason
        with suppress(TransientError):  # it is in the log
            self._reporter.trouble(reason)

    def _failed(self, error: EsspError) -> None:
        CHECKPOINTS.labels("failed").inc()
        self._trouble(error, "a checkpoint")

    def _trouble(self, error: EsspError, what: str) -> None:
        self._failed_s = self._clock()
        remedy = "; make room there" if isinstance(error, StorageFull) else ""
        reason = f"{what} could not be saved; it will be tried again: {error}{remedy}"
        log.error("%s", reason)
        if reason != self._reported:
            self._reported = reason
            with suppress(TransientError):  # it is in the log, and training does not wait for the bus
                self._reporter.trouble(reason, unsaved=True)


def _wait(seconds: float) -> None:
    """Wait before a required checkpoint is tried again."""
    time.sleep(max(seconds, _MIN_RETRY_S))
