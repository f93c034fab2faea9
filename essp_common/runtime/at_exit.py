"""Work to do when a process ends, even in processes forked by `multiprocessing`, which do not run `atexit` handlers."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from multiprocessing.util import Finalize


def at_exit(end: Callable[[], None]) -> Callable[[], None]:
    """Call `end` when this process ends, but not when a fork of it does. Returns a function that cancels this.

    Functions that are registered later are called earlier. `end` must be idempotent: a normal process calls it twice. A
    process that is killed, or left by `os._exit`, calls nothing.
    """
    in_children = Finalize(None, end, exitpriority=0)
    atexit.register(end)

    def take_back() -> None:
        atexit.unregister(end)
        in_children.cancel()

    return take_back
