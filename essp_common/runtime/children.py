"""How a module is run as a child process: with the folders that this process searches for modules, and no other.

`python -m` searches the folder it is started in before the standard library. The command `essp` does not: a `json.py`
or `queue.py` among somebody's videos would be run by the children alone.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def module_command(module: str, *words: object) -> list[str]:
    """The command that runs a module of ESSP, with these arguments."""
    here = {""}
    with suppress(FileNotFoundError):  # the folder has been removed
        here.add(os.getcwd())
    safe = [] if here & set(sys.path) else ["-P"]
    return [sys.executable, *safe, "-m", module, *map(str, words)]
