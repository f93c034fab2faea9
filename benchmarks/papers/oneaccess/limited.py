"""A limit on memory for a process and its children, page cache included: a memory cgroup of Linux, of either version.

What files a process reads counts as its memory as long as nobody else has read them before: evict them first. Groups
are made where the process is already (version 1), or beside it (version 2, which lets no group have both processes and
groups).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Group:
    """A memory cgroup. Can be sent to another process."""

    folder: Path
    peak: str
    """The file with the most bytes that it has held."""

    def join(self) -> None:
        """Move this process into it."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")

    @property
    def peak_bytes(self) -> int:
        """The most memory that its processes have had together, page cache included."""
        return int((self.folder / self.peak).read_text(encoding="utf-8"))


@contextmanager
def limited(limit_bytes: int) -> Iterator[Group]:
    """A group with this much memory; all its processes must have ended when it is left.

    Raises `RuntimeError` where no such group can be made.
    """
    try:
        parent, limit, peak = _place((Path("/proc/self/cgroup")).read_text(encoding="utf-8"))
        folder = parent / f"essp-{uuid.uuid4().hex[:12]}"
        folder.mkdir()
    except OSError as error:
        raise RuntimeError(f"no memory cgroup can be made here: {error}; run this as root") from error
    try:
        (folder / limit).write_text(str(limit_bytes), encoding="utf-8")
        yield Group(folder, peak)
    finally:
        folder.rmdir()


def _place(own: str) -> tuple[Path, str, str]:
    """Where to make a group, and the files with its limit and with its peak. `own`: the groups of this process."""
    groups = dict(line.split(":", 2)[1:] for line in own.splitlines())
    if "memory" in groups:
        return _ROOT / "memory" / groups["memory"].lstrip("/"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"
    return (_ROOT / groups[""].lstrip("/")).parent, "memory.max", "memory.peak"
