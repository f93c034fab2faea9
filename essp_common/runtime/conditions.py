"""What keeps ESSP from working at this moment: conditions, each with its subject, a description, and its beginning.

An error affects one call; a condition lasts: a broker that does not answer, a disk without room, a pool that has
workers and work but no partitions. A component that can detect a condition reports it while it lasts, when asked
(`Source`). Each process asks all its sources (`Conditions.look`); the master also has what workers report in their
heartbeats, and what only shows across workers.

While a condition lasts, the process's `/readyz` answers 503 with its description, `essp_condition` is 1 and the log has
a line. The master adds an event to each job under way, and a line to `GET /v1/conditions`, its page and `essp doctor`.
The end of a condition is logged and is an event too. A condition becomes visible within `SEEN_S` of its beginning.

No decision depends on a condition, except that a pool does not grow while its workers cannot work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

from essp_common.runtime import ids, metrics
from essp_common.runtime.troubles import MEANINGS, NOTICES, Kind, Troubles

log = logging.getLogger(__name__)

SEEN_S = 30.0
"""A condition becomes visible within this time."""
_READY_IN_SPITE_OF = frozenset({Kind.BUS_LOSES, Kind.MIXED_RELEASES, Kind.DEFECT, Kind.HELD_UP, Kind.PAUSED}) | NOTICES
"""Conditions that do not affect readiness. An upgrade waits until its new processes are ready, and mixed releases end
with the upgrade. A defect affects one part, and everything else must continue. Workers that find no room may belong to
one job of many. A pause was asked for."""
Subject = tuple[Kind, str]
"""A kind, and the subject that it concerns: a pool, a training, or `master`."""
Source = Callable[[], Mapping[Subject, str]]
"""Returns the present conditions. Does not block."""


class Condition(BaseModel):
    """Something that keeps ESSP from working."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    kind: Kind
    subject: str
    """A pool, a training, or `master`."""
    words: str
    """What is wrong, and what to do."""
    since: datetime

    @property
    def line(self) -> str:
        """One line, for users."""
        return f"{self.subject}: {self.words}"


class Conditions:
    """The present conditions. Thread-safe."""

    def __init__(self, *sources: Source, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._sources = list(sources)
        self._now = now
        self._present: dict[Subject, Condition] = {}
        self._looking = threading.Lock()

    def add(self, source: Source) -> None:
        """Add a source."""
        self._sources.append(source)

    def look(self) -> tuple[Condition, ...]:
        """Ask all sources, and return the present conditions, oldest first. Logs those that began or ended since the
        last call."""
        with self._looking:
            found = self._asked()
            now, before = self._now(), self._present
            self._present = {
                key: Condition(
                    kind=key[0], subject=key[1], words=words, since=before[key].since if key in before else now
                )
                for key, words in found.items()
            }
            for key, begun in self._present.items():
                if key not in before:
                    log.error("%s: %s", begun.kind, begun.line)
            for key, over in before.items():
                if key not in self._present:
                    log.info("%s: %s: over", over.kind, over.subject)
            self._count(before)
        return self.present

    def _count(self, before: Mapping[Subject, Condition]) -> None:
        now = {(kind, _unnamed(subject)) for kind, subject in self._present}
        for key in now | {(kind, _unnamed(subject)) for kind, subject in before}:
            metrics.CONDITION.labels(*key).set(key in now)

    @property
    def present(self) -> tuple[Condition, ...]:
        """The conditions at the last look, oldest first."""
        return tuple(sorted(self._present.values(), key=lambda condition: (condition.since, condition.subject)))

    def _asked(self) -> dict[Subject, str]:
        found: dict[Subject, str] = {}
        for source in self._sources:
            try:
                found.update(source())
            except Exception:  # a failing source must not hide what others report
                log.exception("a source of conditions has failed")
        return found


def of(subject: str, troubles: Callable[[], Troubles]) -> Source:
    """Return a source for a process's own troubles."""
    return lambda: {(kind, subject): words for kind, words in troubles().items()}


def summary(conditions: Sequence[Condition]) -> str:
    """Return the answer of `/readyz`: subject and meaning of each condition, without details for API callers only."""
    lines = (
        f"not ready: {it.kind}: {_unnamed(it.subject)}: {MEANINGS[it.kind]}\n"
        for it in conditions
        if it.kind not in _READY_IN_SPITE_OF
    )
    return "".join(dict.fromkeys(lines))


def _unnamed(subject: str) -> str:
    """Return the subject without a job's name, which the pool of a training contains."""
    return ids.service_of(subject) if ids.is_training(subject) else subject


class Lasting:
    """Filters out what has only just begun. Not thread-safe."""

    def __init__(self, after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._after_s = after_s
        self._clock = clock
        self._since: dict[Subject, float] = {}

    def of(self, found: Mapping[Subject, str]) -> dict[Subject, str]:
        """Return what has been found at every call for at least `after_s`."""
        now_s = self._clock()
        self._since = {key: self._since.get(key, now_s) for key in found}
        return {key: words for key, words in found.items() if now_s - self._since[key] >= self._after_s}
