"""Memory behind a file descriptor, which another process can map: it is passed on to a child, and is gone with the last
process that has it. It is not in /dev/shm, which has 64 MB in a pod of Kubernetes."""

from __future__ import annotations

import os
import tempfile


def memory_file(name: str) -> int:
    """Its descriptor, for the caller to close; without `memfd_create`, of a temporary file."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
