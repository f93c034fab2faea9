"""When a training is saved, what becomes of a save that fails, and which messages a checkpoint makes superfluous.

Rank 0 writes; every rank then lets go of the messages of its clips that the checkpoint holds. Until then they are held
uncommitted, so whatever happens before is delivered again.

A store that is full, refuses or does not answer stops no training: the failure is logged, counted and told to the
master, the weights train on, and the checkpoint is tried again soon (`save_retry_s`) and at each occasion. Only the
final one is insisted on: when it cannot be saved for `save_patience_s`, the training fails and says why.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from essp_common.checkpoint import Manifest, ModelDescription, Overtaken
from essp_common.digest import as_text, from_text, joined
from essp_common.errors import EsspError, PermanentError, TransientError
from essp_common.failpoints import failpoint
from essp_common.layout import Position
from essp_common.metrics import CHECKPOINTS
from essp_common.ordered import OrderedIntake, Taken
from services.trainer.archive import Archive, Standing
from services.trainer.patience import persistently
from services.trainer.progress import Clock, Reporter
from services.trainer.ranks import Ranks
from services.trainer.training import Training

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


class Keeper:
    """Saves one training."""

    def __init__(
        self,
        archive: Archive,
        intake: OrderedIntake,
        reporter: Reporter,
        ranks: Ranks,
        policy: SavePolicy,
        leaving: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self.saved: Manifest | None = None
        """The newest checkpoint, on every rank."""
        self._archive = archive
        self._intake = intake
        self._reporter = reporter
        self._ranks = ranks
        self._policy = policy
        self._leaving = leaving
        self._clock = clock
        self._failed_s: float | None = None
        self._told = ""
        """The last trouble that the master was told of."""
        self._uncommitted: list[Taken] = []

    def hold(self, items: Sequence[Taken]) -> None:
        """The training is done with these clips; no checkpoint holds yet what they taught."""
        self._uncommitted += items

    def holds(self, position: Position) -> bool:
        """Whether the newest checkpoint stands exactly there."""
        return self.saved is not None and self.saved.position == position

    @property
    def due(self) -> bool:
        """A save has failed, and it is time to try again. Each rank has its own answer; that of rank 0 counts."""
        return self._failed_s is not None and self._clock() - self._failed_s >= self._policy.retry_s

    def save(self, training: Training, model: ModelDescription, standing: Standing) -> bool:
        """A checkpoint of the training as it stands, unless there is one; False when it could not be made."""
        if self.holds(standing.position):
            return True
        standing = self._of_all_ranks(standing)

        def attempt() -> Manifest | None:
            try:
                return self._archive.save(training, model, standing)
            except Overtaken:
                raise
            except EsspError as error:
                self._trouble(error)
                return None

        return self._conclude(attempt)

    def finish(self, training: Training, model: ModelDescription, standing: Standing) -> None:
        """The final checkpoint. Raises `CannotSave`."""
        deadline = self._clock() + self._policy.patience_s
        standing = self._of_all_ranks(standing)

        def attempt() -> Manifest:
            try:
                return self._archive.save_final(training, model, standing)
            except TransientError as error:
                self._trouble(error)
                raise

        def insist() -> Manifest:
            try:
                return persistently(attempt, lambda: self._leaving() or self._clock() >= deadline, _wait)
            except TransientError as error:
                if self._leaving():
                    raise
                raise CannotSave(
                    f"the final checkpoint could not be saved: {error}; make room or mend the store, and start the job "
                    f"again: training goes on from the last checkpoint"
                ) from error

        self._conclude(insist)

    def _of_all_ranks(self, standing: Standing) -> Standing:
        """With the clips that any rank has seen, in place of those of this one."""
        parts = self._ranks.gathered(as_text(standing.digest).encode())
        return replace(standing, digest=joined(from_text(part.decode()) for part in parts))

    def _conclude(self, make: Callable[[], Manifest | None]) -> bool:
        """Let rank 0 make a checkpoint, and every rank know of it."""
        document = b""
        if self._ranks.leads:
            manifest = make()
            document = b"" if manifest is None else manifest.model_dump_json().encode()
        failpoint("trainer.saved")
        document = self._ranks.told(document)
        if not document:
            return False
        self.saved, self._failed_s, self._told = Manifest.model_validate_json(document), None, ""
        if self._ranks.leads:
            CHECKPOINTS.labels("saved").inc()
            self._announce(self.saved)
        failpoint("trainer.announced")
        self._commit(self.saved.position)
        failpoint("trainer.committed")
        return True

    def _announce(self, manifest: Manifest) -> None:
        uri, scores_uri = self._archive.uri(manifest), self._archive.scores_uri(manifest)
        persistently(lambda: self._reporter.checkpoint(manifest, uri, scores_uri), self._leaving)

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


def _place(item: Taken) -> Position:
    return Position(item.pass_index, item.clip.index)
