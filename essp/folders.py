"""Local folders and files that a command is asked to write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from essp_common.errors import ConfigError, Conflict, NotFound
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectStore
from essp_common.wiring import Stores


def folder_for(option: str, chosen: Path) -> Path:
    """The folder that an option names, created if missing. Raises `ConfigError` if it is not writable."""
    path = Path(os.path.abspath(os.path.expanduser(chosen)))
    if why := DirectoryStore(str(path)).unwritable():
        raise ConfigError(why, field=option)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be made ({error.strerror}); name another folder", field=option, code="refused"
        ) from error
    return path


def store_for(option: str, uri: str, stores: Stores) -> ObjectStore:
    """The store of a folder that an option names by its URI. Raises `ConfigError` if it is not writable."""
    store = stores.under(uri)
    if why := store.unwritable():
        raise ConfigError(why, field=option)
    return store


def check_file(option: str, store: ObjectStore, key: str, example: str, trial: str = ".trial") -> None:
    """Raises `ConfigError` if a file of a store cannot be written, before hours are spent on reading.

    `example`: a file name to suggest if `key` is a folder. `trial`: the suffix of a file that exists for a moment, and
    remains if the process is killed at that moment.
    """
    uri = store.uri(key)
    path = uri.removeprefix("file://")
    if (uri != path and os.path.isdir(path)) or next(iter(store.list(f"{key}/")), None) is not None:
        raise ConfigError(f"{uri} is a folder; name a file in it, such as {uri}/{example}", field=option)
    try:
        if not _is_there(store, f"{key}{trial}"):  # otherwise it belongs to another process or user
            store.put(f"{key}{trial}", b"")
            store.delete(f"{key}{trial}")
    except (Conflict, NotFound) as error:
        raise ConfigError(f"{uri} cannot be written: {error}", field=option, code="refused") from error


def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        store.head(key)
    except NotFound:
        return False
    return True


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Wraps the writing of a file. Raises `ConfigError`, with its name, if it cannot be written.

    A file that did not exist before is removed on failure; otherwise the next call would take an empty file for a
    finished one.
    """
    new = not os.path.lexists(path)
    try:
        yield
    except OSError as error:
        if new:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        raise ConfigError(
            f"{path} cannot be written ({error.strerror or error}); name another file", code="refused"
        ) from error
