"""How child processes are started: with this process's module search path, and deaf to Ctrl-C.

`python -m` searches the current folder before the standard library. The command `essp` does not, so a `json.py` or
`queue.py` among a user's videos would affect only the children.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker


def module_command(module: str, *words: object) -> list[str]:
    """Return the command that runs a module of ESSP with these arguments."""
    here = {""}
    with suppress(FileNotFoundError):  # the folder has been removed
        here.add(os.getcwd())
    safe = [] if here & set(sys.path) else ["-P"]
    return [sys.executable, *safe, "-m", module, *map(str, words)]


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Make child processes that are spawned within the block ignore SIGINT.

    Ctrl-C reaches every process of a terminal, but is for the parent, which ends its children.
    """
    resource_tracker.ensure_running()  # otherwise the first child starts it, which unblocks the signal
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
