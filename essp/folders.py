"""Folders of this machine that a command is told to write into."""

from __future__ import annotations

import os
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
