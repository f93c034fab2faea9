"""What a fork inherits and may not use: locks that another thread held at that moment, and connections of its parent.

A loader's process may be forked by its user (`multiprocessing`, a `DataLoader`). The fork has every object and none of
the threads. A lock that one of them held is held for ever; a socket is shared, so that parent and child take each
other's answers. What has such state says so (`follow`), and begins anew in the fork before anything else runs there.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """Something that has state which a fork may not use."""

    def forked(self) -> None:
        """This process is a fork: have new locks, and no connections. Nothing of the parent's may be waited for."""


_followed: WeakSet[Forked] = WeakSet()


def follow(one: Forked) -> None:
    """Call `one.forked()` in each fork, for as long as it exists."""
    _followed.add(one)


def _forked() -> None:
    for one in list(_followed):
        one.forked()


os.register_at_fork(after_in_child=_forked)
