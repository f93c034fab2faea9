"""What people have changed of a job while it ran, in order, and where each trainer trains with it.

The master makes a change and tells everybody; each trainer takes it between two batches, says where, and the master
tells everybody that, too. So a trainer which resumes from before that place takes the change there again. Pure: time is
passed in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from essp_common.errors import Conflict
from essp_common.job.changes import MOST_CHANGES, STRATEGIES, after_all, changed, concerns, differences
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import Change, ChangeTaken
from essp_engine.aggregation.candidates import candidates


class Changes:
    """The changes of one job. Not thread-safe."""

    def __init__(self, spec: JobSpec, made: Iterable[Change] = ()) -> None:
        """`spec`: the job as it was started. `made`: those that are known of it."""
        self.made: list[Change] = list(made)
        self._spec = after_all(spec, self.made)

    @property
    def spec(self) -> JobSpec:
        """The job with all changes."""
        return self._spec

    def make(self, fields: Mapping[str, Any], ended: Collection[str], fused: bool, now_ms: int) -> Change | None:
        """Change these fields; None: they have these values already.

        `ended`: the trainers that are done. `fused`: all are, and no other comes. Raises `ConfigError` for fields or
        values that cannot be, and `Conflict` where it is too late.
        """
        after = changed(self._spec, fields)
        differing = differences(self._spec, after)
        if not differing:
            return None
        self._check(after, differing, ended, fused)
        self._spec = after
        change = Change(
            number=len(self.made) + 1,
            time_ms=now_ms,
            fields={field: value for field, (_, value) in differing.items()},
            before={field: value for field, (value, _) in differing.items()},
        )
        self.made.append(change)
        return change

    def take(self, taken: ChangeTaken) -> Change | None:
        """A trainer has said where it takes a change; which one that is. None: nothing is new."""
        if not 0 < taken.number <= len(self.made):
            return None
        change = self.made[taken.number - 1]
        if not concerns(change.fields, taken.trainer) or taken.trainer not in self._spec.trainers:
            return None
        if taken.trainer in change.places and change.places[taken.trainer] == taken.place:
            return None
        change.places[taken.trainer].CopyFrom(taken.place)
        return change

    def too_late(self, known: int) -> list[Change]:
        """The changes of the fusion, if it was made when only so many changes were known."""
        return [change for change in self.made[known:] if STRATEGIES in change.fields]

    def _check(self, after: JobSpec, fields: Collection[str], ended: Collection[str], fused: bool) -> None:
        for trainer in ended:
            if concerns(fields, trainer):
                raise Conflict(f"trainer {trainer} is done; its rate counts for nothing any more")
        if STRATEGIES in fields:
            candidates(after.aggregation, after.data.targets)
            if fused:
                raise Conflict("all trainers are done, and are being fused; it is too late for other strategies")
        if len(self.made) == MOST_CHANGES:
            raise Conflict(f"{MOST_CHANGES} changes were made of this job, and these are the most")


def newer(known: Iterable[Change], told: Iterable[Change]) -> list[Change]:
    """Of the changes that the history knows, and those that the last command told, which is published first: those that
    are further."""
    held, said = list(known), list(told)
    return said if len(said) >= len(held) else held
