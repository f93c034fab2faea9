"""Recomputes what a trainer was to see from the specification and the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cache
from itertools import repeat

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.schema import PLANNED
from essp_common.job.position import Position, after_epochs
from essp_common.job.spec import JobSpec
from essp_common.records.rows import open_data
from essp_common.wiring import Stores
from essp_engine.planning.digest import as_text, clip_digest, joined
from essp_engine.planning.phases import Phases


class Planned:
    """The plan of a job, for any number of epochs."""

    def __init__(self, spec: JobSpec, catalog: Catalog) -> None:
        self._spec = spec
        self._catalog = catalog
        self._plans: dict[int, _Plan] = {}

    def digest(
        self,
        until: Position,
        attempts: Mapping[int, Mapping[int, int]],
        skipped: Mapping[int, Set[int]],
        epochs: int,
        stopped: Position | None = None,
    ) -> str:
        """The digest of all clips before `until`, some of them replaced or left out, with this number of epochs in the
        job.

        `attempts`, `skipped`: by phase, as in `Saved`.
        `stopped`: no clips are seen from here to the phases after all epochs.
        """
        if epochs not in self._plans:
            self._plans[epochs] = _Plan(Phases(self._spec.model_copy(update={"epochs": epochs}), self._catalog))
        return self._plans[epochs].digest(until, attempts, skipped, stopped)


class _Plan:
    """The plan for one number of epochs. Digests of whole phases are kept, because every checkpoint needs them."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._rest = after_epochs(phases.plans)
        self._before: dict[Position, dict[Position, int]] = {}
        """A position -> a later one -> the digest of the clips between them."""
        self._instead = cache(self._instead_of_planned)

    def digest(
        self,
        until: Position,
        attempts: Mapping[int, Mapping[int, int]],
        skipped: Mapping[int, Set[int]],
        stopped: Position | None,
    ) -> str:
        beginning = Position(0, 0)
        seen = [(beginning, until)] if stopped is None else [(beginning, stopped), (self._rest, until)]
        parts = [self._as_planned(begin, end) for begin, end in seen]
        for number in attempts.keys() | skipped.keys():
            trained = {**attempts.get(number, {}), **dict.fromkeys(skipped.get(number, ()))}
            if not any(begin <= (number, 0) and (number + 1, 0) <= end for begin, end in seen):
                trained = {
                    index: attempt
                    for index, attempt in trained.items()
                    if any(begin <= (number, index) < end for begin, end in seen)
                }
            parts += map(self._instead, repeat(number), trained.keys(), trained.values())
        return as_text(joined(parts))

    def _instead_of_planned(self, number: int, index: int, attempt: int | None) -> int:
        """What the digest changes by if this attempt was trained instead of the planned one, or none. Kept, because
        every later checkpoint needs it, and to draw a single clip is slow."""
        return (0 if attempt is None else self._clip(number, index, attempt)) - self._clip(number, index, 0)

    def _as_planned(self, start: Position, until: Position) -> int:
        before = self._before.setdefault(start, {})
        if until not in before:
            begin = max((position for position in before if position < until), default=start)
            parts = [before.get(begin, 0)]
            for number in range(begin.phase_index, min(until.phase_index + 1, len(self._phases.plans))):
                first = begin.index if number == begin.phase_index else 0
                last = until.index if number == until.phase_index else self._phases.plans[number].clips
                parts += (self._clip(number, index, 0) for index in range(first, last))
            before[until] = joined(parts)
        return before[until]

    def _clip(self, number: int, index: int, attempt: int) -> int:
        clip = self._phases.plan(number).clip(index, attempt)
        video = self._phases.view(number).rows.text("id", clip.video)
        return clip_digest(number, index, attempt, video, clip.first_frame)


def planned(spec: JobSpec, stores: Stores) -> Planned:
    """The plan of a job. Raises what reading the catalog raises."""
    return Planned(spec, open_data(spec, stores, PLANNED))
