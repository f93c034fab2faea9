"""Unexpected errors of the master that concern no single job: the failed part pauses, everything else continues.

An error within one job fails that job alone (`runner.py`). The rest of a master's step is divided into parts, and an
error ends only its own part: the queue may be stuck while clips are issued and histories written. A part that has
failed is tried again after a pause, which doubles each time. The first of several equal errors in a row is logged with
its traceback, and all of them form a condition, which lasts until no error has come for a minute.

Transient errors, and the news that another master has taken over, are not defects, and pass through.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from essp_common.errors import Fenced, TransientError
from essp_common.failures import reason_of
from essp_common.runtime import ids
from essp_common.runtime.conditions import Subject
from essp_common.runtime.threads import unexpected
from essp_common.runtime.troubles import Kind

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_TOLD_S = 60.0
"""How long users see a defect after its last error."""


@dataclass(frozen=True, slots=True)
class _Defect:
    words: str
    last_s: float
    pause_s: float


class Defects:
    """The parts of the master's work that have failed recently. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._noting = threading.Lock()
        self._found: Mapping[str, _Defect] = {}
        """By part. Replaced, never changed, so that other threads can read it without a lock."""

    def attempt(self, part: str, work: Callable[[], object], waits: bool = True) -> None:
        """Do a part of the work, unless it failed recently and has to pause. `waits`: False for work that comes only
        once, such as a message."""
        known = self._found.get(part)
        if waits and known is not None and self._clock() < known.last_s + known.pause_s:
            return
        try:
            work()
        except (TransientError, Fenced):
            raise
        except Exception as error:  # noqa: BLE001  whatever the error is, the jobs continue
            self._note(part, known, error)

    def troubles(self) -> Mapping[Subject, str]:
        """Return the defects that users should see now."""
        now_s = self._clock()
        lately = [f"{part}: {defect.words}" for part, defect in self._found.items() if now_s < defect.last_s + _TOLD_S]
        words = "unexpected errors; see the log of the master, and report them; everything else continues"
        return {(Kind.DEFECT, ids.MASTER): f"{words} ({'; '.join(lately)})"} if lately else {}

    def _note(self, part: str, known: _Defect | None, error: Exception) -> None:
        now_s, words = self._clock(), reason_of(error)
        again = known is not None and now_s < known.last_s + _TOLD_S
        if known is None or not again or known.words != words:
            unexpected(f"master: {part}", error)
        pause_s = min(2 * known.pause_s, _LONGEST_PAUSE_S) if known is not None and again else _FIRST_PAUSE_S
        with self._noting:
            self._found = {**self._found, part: _Defect(words, now_s, pause_s)}
