"""What keeps ESSP from working at this moment: conditions, each with whom it concerns, words, and since when.

An error is met by one call, and a condition lasts: a broker that does not answer, a disk without room, a pool that has
workers and work and gets none of it. Whoever can see one of them says so while it holds, when asked (`Source`). Each
process asks all it knows (`Conditions.look`); the master also knows what workers say in their heartbeats, and what only
shows across workers.

As long as one holds, `/readyz` of the process answers 503 with these words, `essp_condition` is 1 and the log has a
line. The master has an event in each job under way, and a line for `GET /v1/conditions`, its page and `essp doctor`.
When it ends, that is logged and an event too. A condition is seen within `SEEN_S` of its beginning.

Nothing is decided by a condition, save that a pool does not grow while its workers cannot work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

from essp_common.runtime import ids, metrics
from essp_common.runtime.troubles import MEANINGS, Kind, Troubles

log = logging.getLogger(__name__)

SEEN_S = 30.0
"""Within so long of its beginning everybody can know of a condition."""
_READY_IN_SPITE_OF = frozenset({Kind.MIXED_RELEASES, Kind.DEFECT})
"""An upgrade waits for its new processes to be ready, and mixed releases are over when the upgrade is. Of a defect one
part suffers, and everything else is to go on."""
Subject = tuple[Kind, str]
"""A kind, and whom it concerns: a pool, a training, `master`."""
Source = Callable[[], Mapping[Subject, str]]
"""Says what is wrong now. It waits for nothing."""


class Condition(BaseModel):
    """Something that keeps ESSP from working."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    kind: Kind
    subject: str
    """Whom it concerns: a pool, a training, `master`."""
    words: str
    """What is wrong, and what to do."""
    since: datetime

    @property
    def line(self) -> str:
        """One line, for people."""
        return f"{self.subject}: {self.words}"


class Conditions:
    """What is wrong now. Thread-safe."""

    def __init__(self, *sources: Source, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._sources = list(sources)
        self._now = now
        self._present: dict[Subject, Condition] = {}
        self._looking = threading.Lock()

    def add(self, source: Source) -> None:
        """Ask this one too."""
        self._sources.append(source)

    def look(self) -> tuple[Condition, ...]:
        """Ask all sources: what holds now, the oldest first. What began or ended since the last look is logged."""
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
        """What held at the last look, the oldest first."""
        return tuple(sorted(self._present.values(), key=lambda condition: (condition.since, condition.subject)))

    def _asked(self) -> dict[Subject, str]:
        found: dict[Subject, str] = {}
        for source in self._sources:
            try:
                found.update(source())
            except Exception:  # whoever cannot look is not to hide what others see
                log.exception("a source of conditions has failed")
        return found


def of(subject: str, troubles: Callable[[], Troubles]) -> Source:
    """A process's own troubles as a source."""
    return lambda: {(kind, subject): words for kind, words in troubles().items()}


def summary(conditions: Sequence[Condition]) -> str:
    """What `/readyz` answers: whom each concerns and what it means, without what only callers of the API may know."""
    lines = (
        f"not ready: {it.kind}: {_unnamed(it.subject)}: {MEANINGS[it.kind]}\n"
        for it in conditions
        if it.kind not in _READY_IN_SPITE_OF
    )
    return "".join(dict.fromkeys(lines))


def _unnamed(subject: str) -> str:
    """Whom a condition concerns, for everybody: the pool of a training names its job."""
    return ids.service_of(subject) if ids.is_training(subject) else subject


class Lasting:
    """Tells what has lasted from what has just begun. Not thread-safe."""

    def __init__(self, after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._after_s = after_s
        self._clock = clock
        self._since: dict[Subject, float] = {}

    def of(self, found: Mapping[Subject, str]) -> dict[Subject, str]:
        """What was found at each look for `after_s`."""
        now_s = self._clock()
        self._since = {key: self._since.get(key, now_s) for key in found}
        return {key: words for key, words in found.items() if now_s - self._since[key] >= self._after_s}
