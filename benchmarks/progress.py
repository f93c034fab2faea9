"""How far a run is, and when it will be over: by what each benchmark took the last time, where it has been run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class Progress:
    """Tells of a run, benchmark by benchmark."""

    def __init__(
        self, names: Sequence[str], took_s: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`took_s`: seconds of each benchmark the last time."""
        self._names = names
        self._clock = clock
        self._began_s = self._since_s = clock()
        self.took_s = dict(took_s)
        """The same after those that are through by now."""

    def begin(self, name: str) -> str:
        """The next one begins: a line for people."""
        self._since_s = self._clock()
        place = self._names.index(name)
        left = [self.took_s.get(each) for each in self._names[place:]]
        known_s = sum(seconds for seconds in left if seconds is not None)
        unknown = f", and {left.count(None)} that never ran here" if None in left else ""
        passed = _minutes(self._since_s - self._began_s)
        return f"# {name}: {place + 1} of {len(self._names)}, {passed} passed, about {_minutes(known_s)} to go{unknown}"

    def end(self, name: str) -> None:
        """It is through."""
        self.took_s[name] = round(self._clock() - self._since_s, 1)


def seconds_of(path: Path) -> dict[str, float]:
    """What each benchmark took, by the results of an earlier run; nothing where there are none."""
    try:
        found: dict[str, float] = json.loads(path.read_text(encoding="utf-8")).get("seconds", {})
    except FileNotFoundError:
        return {}
    return found


def _minutes(seconds: float) -> str:
    return f"{round(seconds) // 60}:{round(seconds) % 60:02d}"
