"""How much memory this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_UNKNOWN = 2**63 - 1
"""Windows does not tell: nothing is refused there."""


def memory_limit(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes: those of the machine, or fewer where the container has a limit (cgroup v2 or v1)."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if hasattr(os, "sysconf") else []
    for file in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (cgroup / file).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():  # "max": there is none
            limits.append(int(text))
    return min(limits, default=_UNKNOWN)
