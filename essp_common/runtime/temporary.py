"""Temporary folders that are always removed eventually, however their process ends.

    essp-KIND-HOST-RANDOM/      in the folder for temporary files, which TMPDIR names; RANDOM: 32 hexadecimal digits

A process that is killed removes nothing. But each process holds a lock on its folder while it lives, and so do its
forks. Before a process creates a folder, it removes the unlocked ones of the same kind, user and machine. On a file
system without locks, they stay.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import tempfile
import uuid
from contextlib import suppress
from types import TracebackType

from essp_common.runtime.unbroken import unbroken

_RANDOM = re.compile("[0-9a-f]{32}")


class TemporaryFolder:
    """A folder for files of this process. A fork removes nothing."""

    def __init__(self, kind: str, parent: str | None = None) -> None:
        """`parent`: None is the folder for temporary files. Raises `OSError`."""
        parent = parent or tempfile.gettempdir()
        prefix = f"essp-{kind}-{socket.gethostname()}-"
        _remove_left(parent, prefix)
        self._process = os.getpid()
        self.path, self._lock = _locked_folder(parent, prefix)

    def __enter__(self) -> str:
        """Return its path."""
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unbroken(self.remove)

    def remove(self) -> None:
        """Remove the folder with its contents. Idempotent."""
        if self._lock < 0 or self._process != os.getpid():
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


def _locked_folder(parent: str, prefix: str) -> tuple[str, int]:
    while True:
        path = os.path.join(parent, prefix + uuid.uuid4().hex)
        os.mkdir(path, 0o700)
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process took it for a leftover and removed it
            continue
        with suppress(OSError):  # no locks on this file system
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return path, lock
        os.close(lock)


def _remove_left(parent: str, prefix: str) -> None:
    with suppress(OSError):
        for name in os.listdir(parent):
            if _RANDOM.fullmatch(name.removeprefix(prefix)) and name.startswith(prefix):  # only ESSP uses such names
                _remove_unlocked(os.path.join(parent, name))


def _remove_unlocked(path: str) -> None:
    """Remove a folder of this user that no process has locked; never another user's, and never through a link."""
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(folder).st_uid == os.getuid():
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(folder)
