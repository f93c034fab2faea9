"""What was done to pools, for users. With ESSP_STATE, a master also shows what was done under those before it.

The newest events are kept in one document, `<ESSP_STATE>/pool-events.json`. It is written before each step of the
control loop, so a master that is killed loses the events of its last seconds; only the display depends on them. While
the store does not answer, events stay in memory. A document that cannot be read is replaced.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from essp_common.errors import EsspError, NotFound
from essp_common.objects.port import ObjectStore

log = logging.getLogger(__name__)

_KEY = "pool-events.json"
_SHOWN, _KEPT = 2000, 500
"""Number of events that are shown, and that the next master shows."""
_SILENT_S = 60.0
"""How long a store that did not answer is not asked again."""


class PoolEvent(BaseModel):
    """A change of a pool."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, extra="forbid")

    time: datetime
    pool: str
    message: str


_DOCUMENT = TypeAdapter(list[PoolEvent])


class PoolEvents:
    """Thread-safe, but for `save`, which one thread calls."""

    def __init__(self, store: ObjectStore | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`store`: where they are kept; None: only in memory."""
        self._store = store
        self._clock = clock
        self._events: deque[PoolEvent] = deque(maxlen=_SHOWN)
        self._lock = threading.Lock()
        self._read = False
        """Whether the events of earlier masters are known."""
        self._added = False
        """Whether some are not kept yet."""
        self._ask_s = 0.0
        """The store is not asked before this time."""

    def add(self, pool: str, message: str) -> None:
        """Note what was done to a pool; empty: to all of them, or the message names it. Does not block."""
        with self._lock:
            self._events.append(PoolEvent(time=datetime.now(UTC), pool=pool, message=message))
            self._added = True

    def all(self) -> list[PoolEvent]:
        """Return the events, newest last."""
        with self._lock:
            return list(self._events)

    def save(self) -> None:
        """Keep what was added, and read what earlier masters have kept. May wait for the store; raises nothing."""
        if self._store is None or self._clock() < self._ask_s:
            return
        try:
            if not self._read:
                self._recall(_kept_in(self._store))
            with self._lock:
                newest, added, self._added = list(self._events)[-_KEPT:], self._added, False
            if added:
                self._store.put(_KEY, _DOCUMENT.dump_json(newest, indent=1))
        except EsspError as error:
            self._added = True
            self._ask_s = self._clock() + _SILENT_S
            log.warning("the events of pools cannot be kept: %s; trying again", error)

    def _recall(self, earlier: Sequence[PoolEvent]) -> None:
        with self._lock:
            self._events = deque([*earlier, *self._events], maxlen=_SHOWN)
            self._read = True


def _kept_in(store: ObjectStore) -> list[PoolEvent]:
    try:
        return _DOCUMENT.validate_json(store.get(_KEY))
    except NotFound:
        return []
    except ValidationError:
        log.warning("%s cannot be read, and is replaced", store.uri(_KEY))
        return []
