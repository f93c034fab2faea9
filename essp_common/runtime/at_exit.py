"""What is left to do when a process ends: also in one that `multiprocessing` has forked, which calls no `atexit`."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from multiprocessing.util import Finalize


def at_exit(end: Callable[[], None]) -> Callable[[], None]:
    """Have `end` called when this process ends, but not when a fork of it does; the result takes that back.

    Whoever comes later is called earlier. `end` has to be idempotent: processes that end as a script does call it
    twice. A process that is killed, or left by `os._exit`, calls nothing.
    """
    in_children = Finalize(None, end, exitpriority=0)
    atexit.register(end)

    def take_back() -> None:
        atexit.unregister(end)
        in_children.cancel()

    return take_back
