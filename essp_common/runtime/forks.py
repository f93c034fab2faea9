"""State that a fork inherits but must not use: locks that another thread held at that moment, and its parent's
connections.

A user may fork a loader's process (`multiprocessing`, a `DataLoader`). The fork has every object and no thread. A lock
that one of the threads held is never released; a socket is shared, so that parent and child receive each other's
answers. Objects with such state register (`follow`), and are reset in the fork before anything else runs there.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

log = logging.getLogger(__name__)


class Forked(Protocol):
    """An object with state that a fork must not use."""

    def forked(self) -> None:
        """Called in a fork: create new locks, drop connections, and wait for nothing of the parent's."""


_followed: WeakSet[Forked] = WeakSet()


def follow(one: Forked) -> None:
    """Call `one.forked()` in each fork, for as long as the object exists."""
    _followed.add(one)


class Mutex:
    """A lock that is always free in a fork: `with mutex.held`.

    The lock itself is the context manager, so that no signal can come between entering the block and acquiring it.
    """

    def __init__(self, reentrant: bool = False) -> None:
        """`reentrant`: like `threading.RLock`."""
        self._new: Callable[[], Any] = threading.RLock if reentrant else threading.Lock
        self.held = self._new()
        follow(self)

    def forked(self) -> None:
        """Replace the lock. The guarded state may have been in the middle of a change; that must be harmless."""
        self.held = self._new()


class Remade:
    """A proxy for a client of a library that does not support forks: it is created again in a fork, on first use."""

    def __init__(self, make: Callable[[], Any], made: Any = None) -> None:
        """`made`: a result of `make`, which is otherwise called now, and may raise."""
        self._make = make
        self._making = threading.Lock()
        self._made = make() if made is None else made
        self._of_parents: list[Any] = []
        """Kept alive: closing them might wait for threads that do not exist here."""
        follow(self)

    def forked(self) -> None:
        """Drop the client, whose connections belong to the parent."""
        self._making = threading.Lock()
        self._of_parents.append(self._made)
        self._made = None

    def __getattr__(self, name: str) -> Any:
        made = self._made
        if made is None:
            with self._making:
                made = self._made = self._made or self._make()
        return getattr(made, name)


def _forked() -> None:
    for one in list(_followed):
        try:
            one.forked()
        except Exception:  # the others must still be reset
            log.exception("%s may not work in this fork", type(one).__name__)


if hasattr(os, "register_at_fork"):  # only on platforms that can fork
    os.register_at_fork(after_in_child=_forked)
