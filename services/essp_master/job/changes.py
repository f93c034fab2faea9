"""The changes that users have made to a running job, in order, and the position at which each trainer applies them.

The master makes a change and announces it. Each trainer applies it between two batches and reports the position, and
the master announces that too. So a trainer that resumes from before that position applies the change there again. Pure:
time is passed in.
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
        """`spec`: the job as it was started. `made`: its known changes."""
        self.made: list[Change] = list(made)
        self._spec = after_all(spec, self.made)

    @property
    def spec(self) -> JobSpec:
        """The job with all changes applied."""
        return self._spec

    def make(self, fields: Mapping[str, Any], ended: Collection[str], fused: bool, now_ms: int) -> Change | None:
        """Change these fields. Returns None if they already have these values.

        `ended`: the trainers that are done. `fused`: all trainers are done, and no other will follow. Raises
        `ConfigError` for invalid fields or values, and `Conflict` if it is too late.
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
        """Record where a trainer applies a change, and return the change. None if that is not new."""
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
        """Return the changes that affect the fusion, if it was made when only `known` changes existed."""
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
            raise Conflict(f"{MOST_CHANGES} changes were made to this job, which is the limit")


def newer(known: Iterable[Change], told: Iterable[Change]) -> list[Change]:
    """Choose between the changes in the history and those in the last command, which is published first: the longer
    list is the newer one."""
    held, said = list(known), list(told)
    return said if len(said) >= len(held) else held
