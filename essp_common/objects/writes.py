"""The outcome of writes to a store: whether it is full, or does not answer.

A store and its folders share one instance. It only records what this process observes, and sends nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from essp_common.errors import EsspError, StorageFull, Unavailable
from essp_common.runtime.forks import Mutex
from essp_common.runtime.troubles import LASTS_S, Kind

_FORGOTTEN_S = 300.0
"""A problem that was not observed again for this long may be over."""


class Writes:
    """The writes of one store. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, longest_s: float = LASTS_S) -> None:
        self._clock = clock
        self._longest_s = longest_s
        self._lock = Mutex()
        self._under_way: dict[object, float] = {}
        """When each small write began."""
        self._full: tuple[str, float] | None = None
        """The error when there was no room, and its time."""
        self._silent: tuple[str, float, float] | None = None
        """The error when there was no answer, since when, and when last."""

    @contextmanager
    def one(self, small: bool = True) -> Iterator[None]:
        """Observe a write. `small`: it takes no longer than a request does."""
        token = object()
        with self._lock.held:
            if small:
                self._under_way[token] = self._clock()
        try:
            yield
        except StorageFull as error:
            self._note(full=str(error))
            raise
        except Unavailable as error:
            self._note(silent=str(error))
            raise
        except EsspError:  # an answer
            with self._lock.held:
                self._silent = None
            raise
        else:
            with self._lock.held:
                self._full = self._silent = None
        finally:
            with self._lock.held:
                self._under_way.pop(token, None)

    def troubles(self) -> dict[Kind, str]:
        """Report that there is no room, or no answer."""
        with self._lock.held:
            now_s = self._clock()
            if self._full is not None and now_s - self._full[1] < _FORGOTTEN_S:
                return {Kind.STORAGE_FULL: f"{self._full[0]}; free some, what failed is tried again"}
            if (waited_s := now_s - min(self._under_way.values(), default=now_s)) >= self._longest_s:
                return {
                    Kind.STORAGE_SILENT: f"a write has been under way for {waited_s:.0f} s; see that the store runs"
                }
            if self._silent is not None:
                why, since_s, last_s = self._silent
                if now_s - last_s < _FORGOTTEN_S and now_s - since_s >= self._longest_s:
                    return {Kind.STORAGE_SILENT: f"{why}; see that the store runs and that the network lets it through"}
        return {}

    def _note(self, full: str = "", silent: str = "") -> None:
        with self._lock.held:
            now_s = self._clock()
            if full:
                self._full = (full, now_s)
            if silent:
                self._silent = (silent, self._silent[1] if self._silent else now_s, now_s)
