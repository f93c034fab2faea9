"""Folders and files of this machine that a command is told to write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from essp_common.errors import ConfigError
from essp_common.objects.directory import DirectoryStore


def folder_for(option: str, chosen: Path) -> Path:
    """The folder that an option names, made if it is not there. Raises `ConfigError` if it cannot be written to."""
    path = Path(os.path.abspath(os.path.expanduser(chosen)))
    if why := DirectoryStore(str(path)).unwritable():
        raise ConfigError(f"{option} {why}")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be made ({error.strerror}); name another folder") from error
    return path


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Around the writing of a file. Raises `ConfigError`, with its name, if it cannot be written; none is left then
    that was not there before, or the next call would take an empty one for somebody's work."""
    new = not os.path.lexists(path)
    try:
        yield
    except OSError as error:
        if new:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        raise ConfigError(f"{path} cannot be written ({error.strerror or error}); name another file") from error
