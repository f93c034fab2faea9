"""What a fork inherits and may not use: locks that another thread held at that moment, and connections of its parent.

A loader's process may be forked by its user (`multiprocessing`, a `DataLoader`). The fork has every object and none of
the threads. A lock that one of them held is held for ever; a socket is shared, so that parent and child take each
other's answers. What has such state says so (`follow`), and begins anew in the fork before anything else runs there.
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
    """Something that has state which a fork may not use."""

    def forked(self) -> None:
        """This process is a fork: have new locks, and no connections. Nothing of the parent's may be waited for."""


_followed: WeakSet[Forked] = WeakSet()


def follow(one: Forked) -> None:
    """Call `one.forked()` in each fork, for as long as it exists."""
    _followed.add(one)


class Mutex:
    """A lock that is free in a fork, whoever had it: `with mutex.held`.

    The lock itself is what enters and leaves the block, so that no signal comes between.
    """

    def __init__(self, reentrant: bool = False) -> None:
        """`reentrant`: as `threading.RLock` is."""
        self._new: Callable[[], Any] = threading.RLock if reentrant else threading.Lock
        self.held = self._new()
        follow(self)

    def forked(self) -> None:
        """What it guards may have been under change: that has to be of no harm."""
        self.held = self._new()


class Remade:
    """A client of a library that knows no forks: has its attributes, and is made anew in a fork that asks for one."""

    def __init__(self, make: Callable[[], Any], made: Any = None) -> None:
        """`made`: by `make`, which is otherwise called now, and raises what it raises."""
        self._make = make
        self._making = threading.Lock()
        self._made = make() if made is None else made
        self._of_parents: list[Any] = []
        """Not let go: to close what they hold might wait for threads that are not here."""
        follow(self)

    def forked(self) -> None:
        """The connections are the parent's."""
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
        except Exception:  # the others are to begin anew all the same
            log.exception("%s may not work in this fork", type(one).__name__)


os.register_at_fork(after_in_child=_forked)
