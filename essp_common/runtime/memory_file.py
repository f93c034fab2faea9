"""Memory behind a file descriptor, which another process can map. The descriptor is passed to a child, and the memory
is freed with the last process that has it. It is not in /dev/shm, which has 64 MB in a Kubernetes pod."""

from __future__ import annotations

import os
import tempfile


def memory_file(name: str) -> int:
    """Return its descriptor, which the caller closes; without `memfd_create`, it refers to a temporary file."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
