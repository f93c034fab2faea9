"""How child processes are started: with the folders that this process searches for modules, and deaf to Ctrl-C.

`python -m` searches the folder it is started in before the standard library. The command `essp` does not: a `json.py`
or `queue.py` among somebody's videos would be run by the children alone.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker


def module_command(module: str, *words: object) -> list[str]:
    """The command that runs a module of ESSP, with these arguments."""
    here = {""}
    with suppress(FileNotFoundError):  # the folder has been removed
        here.add(os.getcwd())
    safe = [] if here & set(sys.path) else ["-P"]
    return [sys.executable, *safe, "-m", module, *map(str, words)]


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Child processes that are spawned within never see SIGINT.

    Ctrl-C reaches every process of a terminal, but is for the parent, which ends its children.
    """
    resource_tracker.ensure_running()  # or the first child starts it, and that lets the signal through again
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
