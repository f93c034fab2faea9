"""A position in the plan of a job: a phase, and an index in that phase.

The same two numbers identify a clip ("the clip at this position") and describe how far a consumer has come ("everything
before this position is done, and nothing from it onwards"). Two numbers are enough for the second, because clips are
consumed in the order of their indices. Positions compare in the order of the plan, and equal the plain tuple of their
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from essp_common.pb.v1 import messages_pb2 as pb

_OF_EPOCHS = frozenset({pb.TRAIN, pb.VALIDATION})


class Position(NamedTuple):
    """A phase and an index in it."""

    phase_index: int
    """Index of the phase in `JobSnapshot.phases`; the number of phases means the end of the job."""
    index: int  # type: ignore[assignment]  # hides a tuple method that positions do not need
    """Index of the clip in the plan of that phase."""

    @classmethod
    def of(cls, message: pb.Position) -> Position:
        """The position in a message."""
        return cls(message.phase_index, message.index)

    def message(self) -> pb.Position:
        """This position as a message."""
        return pb.Position(phase_index=self.phase_index, index=self.index)


def after_epochs(phases: Sequence[pb.PhasePlan]) -> Position:
    """The start of the phases after all epochs; the end of the job if there are none."""
    of_epochs = [number for number, plan in enumerate(phases) if plan.purpose in _OF_EPOCHS]
    return Position(max(of_epochs, default=-1) + 1, 0)
