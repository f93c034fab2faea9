"""More epochs or trainers for a job that is under way: its run ends, and another one follows with them.

    asked for ──▶ trainers save, say that they have left ──▶ closed ──▶ its history is written ──▶ the next run
                                                                 a stop, a failure: no next run ◀──┘

The plan of a run is fixed when it begins (docs/decisions/0066). From the moment of the request, nothing is issued. A
running trainer gets the time that it needs to save; one that is not up gets only the time that a sign of life would
take. Pure: time is passed in.
"""

from __future__ import annotations

from collections.abc import Collection

from essp_common.runtime import ids
from essp_engine.preflight.preflight import Preflight

_SIGN_OF_LIFE_S = 10.0
"""After this long, it is known which trainers are up."""
_PATIENCE_S = 600.0
"""How long a trainer may take to save: twice the time after which it gives up (`final_save_timeout_s`)."""


class Extension:
    """The extension of one job."""

    def __init__(self, trainers: Collection[str], goal: Preflight, now_s: float) -> None:
        """`trainers`: the trainers of the run that ends."""
        self.goal = goal
        """The job as in its next run."""
        self._trainers = tuple(trainers)
        self._began_s = now_s
        self._left: set[str] = set()

    def left(self, trainer: str) -> None:
        """A trainer has saved and left."""
        self._left.add(trainer)

    def lacking(self, finals: Collection[str]) -> list[str]:
        """Return the trainers that have not reported that they left. `finals`: trainers that are done."""
        return [name for name in self._trainers if name not in self._left and name not in finals]

    def has_closed(self, up: Collection[str], finals: Collection[str], now_s: float) -> bool:
        """Whether the run is over now. `up`: the pools that have a worker."""
        lacking, waited_s = self.lacking(finals), now_s - self._began_s
        if waited_s >= _SIGN_OF_LIFE_S:
            job = self.goal.spec.name
            lacking = [name for name in lacking if ids.trainer_pool(job, name) in up]
        return not lacking or waited_s >= _PATIENCE_S
