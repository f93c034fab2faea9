"""The learning rate of a training at each position of its plan, from the job and from later changes.

A change applies from the position at which it was taken, which lies between two batches and is the same on all ranks.
The positions are kept in the checkpoints and reported to the master. So the rate at a position depends only on the job
and on earlier changes, and a training that resumes, before or after a change, takes the same steps again.

    taken for the first time           at the present position
    resumed from before its place      at that position again if the master knows it; else at the present one
    after another change               never before that one, so that the later change has the last word

If a change was taken, and neither a checkpoint nor the master has recorded that, it may be taken at another position
after a restart; then nothing that was stored refers to the first one.
"""

from __future__ import annotations

from collections.abc import Iterable

from essp_common.artifacts.manifest import TakenChange
from essp_common.job.changes import BEGINNING, Place, concerns, optimizer_after, place_at, values_of
from essp_common.job.position import Position
from essp_common.job.trainer_spec import TrainerSpec
from essp_common.pb.v1.messages_pb2 import Change, PhasePlan
from essp_trainer.assignment import Assignment
from essp_trainer.model.schedule import rate_at


class Rates:
    """The rates of one training. Not thread-safe."""

    def __init__(self, assignment: Assignment) -> None:
        self.seen = 0
        """Number of the last change that it has seen, for any trainer."""
        self._assignment = assignment
        self._taken: tuple[TakenChange, ...] = ()
        self._settings: list[tuple[Place, TrainerSpec]] = []
        self.restore(())

    @property
    def taken(self) -> tuple[TakenChange, ...]:
        """The changes that it has taken, in order."""
        return self._taken

    def at(self, plan: PhasePlan, begin: int) -> float:
        """Return the rate for the batch that begins with this clip of a training phase."""
        place = Place(plan.epoch, begin)
        training = next(training for since, training in reversed(self._settings) if since <= place)
        return rate_at(training, self._assignment.spec.epochs, plan, begin)

    def restore(self, taken: Iterable[TakenChange]) -> None:
        """Continue with the changes of a checkpoint."""
        self._taken = tuple(taken)
        training = self._assignment.training
        self._settings = [(BEGINNING, training)]
        for change in self._taken:
            optimizer = optimizer_after(training.optimizer, self._assignment.trainer, change.fields)
            training = training.model_copy(update={"optimizer": optimizer})
            self._settings.append((change.place, training))

    def take(self, changes: Iterable[Change], position: Position) -> list[TakenChange]:
        """Take the changes of the job that concern this training and are new to it. Returns them.

        `position`: the present position of the training, between two batches.
        """
        trainer, held = self._assignment.trainer, {change.number for change in self._taken}
        news = []
        for change in changes:
            self.seen = max(self.seen, change.number)
            if change.number in held or not concerns(change.fields, trainer):
                continue
            known = Place.of(change.places[trainer]) if trainer in change.places else BEGINNING
            before = self._taken[-1].place if self._taken else BEGINNING
            epoch, clip = max(place_at(self._assignment.phases, position), known, before)
            found = TakenChange(number=change.number, epoch=epoch, clip=clip, fields=values_of(change))
            self.restore((*self._taken, found))
            news.append(found)
        return news
