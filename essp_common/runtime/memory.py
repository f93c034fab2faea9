"""How much memory this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_UNKNOWN = 2**63 - 1
"""For Windows, where the limit is unknown and nothing is refused."""


def memory_limit(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the limit in bytes: the machine's memory, or the container's limit if that is lower (cgroup v2 or v1)."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if hasattr(os, "sysconf") else []
    for file in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (cgroup / file).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():  # "max" means no limit
            limits.append(int(text))
    return min(limits, default=_UNKNOWN)
