"""Where in the plan of a job something is: a phase, and an index in that phase.

The same two numbers name one clip ("the clip at this position") and say how far a consumer has come ("everything
before this position is done, and nothing from it on"). The second needs no more than that because clips are consumed
in the order of their indices. Positions compare in the order of the plan, and equal the plain tuple of their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from essp_common.pb.v1 import messages_pb2 as pb

_OF_EPOCHS = frozenset({pb.TRAIN, pb.VALIDATION})


class Position(NamedTuple):
    """A phase and an index in it."""

    phase_index: int
    """Of the phase, in `JobSnapshot.phases`; their number stands for the end of the job."""
    index: int  # type: ignore[assignment]  # hides a method of tuples that no position needs
    """Of the clip, in the plan of that phase."""

    @classmethod
    def of(cls, message: pb.Position) -> Position:
        """The position that a message states."""
        return cls(message.phase_index, message.index)

    def message(self) -> pb.Position:
        """This position, as messages state it."""
        return pb.Position(phase_index=self.phase_index, index=self.index)


def after_epochs(phases: Sequence[pb.PhasePlan]) -> Position:
    """Where the phases begin that follow all epochs; the end, if there are none."""
    of_epochs = [number for number, plan in enumerate(phases) if plan.purpose in _OF_EPOCHS]
    return Position(max(of_epochs, default=-1) + 1, 0)
