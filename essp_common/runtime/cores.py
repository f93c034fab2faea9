"""The cores that this process may use: by its affinity, and by the quota of its container (cgroup v2 or v1)."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> float:
    """Return how many cores this process may use; a quota may be a fraction."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = " ".join((cgroup / file).read_text().strip() for file in files).split()
            if float(quota) > 0:  # "max" and -1 mean no quota
                cores = min(cores, float(quota) / float(period))
    return cores


def cpu_count(cgroup: Path = _CGROUP) -> int:
    """Return the same, rounded up to whole cores."""
    return math.ceil(usable_cores(cgroup))
