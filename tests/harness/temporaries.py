"""Where the temporary files of tests lie: in memory, if there is enough of it.

Checkpoints, histories and catalogs are flushed to the disk file by file, thousands of times; on a disk the tests take a
tenth longer. A run writes some gigabytes, most of which are removed with the test that wrote them.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 8 * 2**30


def root() -> str:
    """`PYTEST_DEBUG_TEMPROOT`, if it is set."""
    return os.environ.get("PYTEST_DEBUG_TEMPROOT") or (str(_IN_MEMORY) if _has_room() else tempfile.gettempdir())


def _has_room() -> bool:
    """Not in a container of Docker, whose /dev/shm has 64 MB and starts no program; tests write some."""
    try:
        folder = os.statvfs(_IN_MEMORY)
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        available = 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError):  # another system
        return False
    return not folder.f_flag & os.ST_NOEXEC and min(folder.f_bavail * folder.f_frsize, available) >= _ROOM_BYTES
