"""What is in the place of the demonstration's files already: only files of an earlier demonstration are replaced."""

from __future__ import annotations

from pathlib import Path

from essp.demo.job import MARKS
from essp_common.catalog.file import read_catalog
from essp_common.errors import ConfigError, NotFound
from essp_common.wiring import Stores


def check_job(path: Path, option: str) -> None:
    """Raises `ConfigError`, which names the option, if the job file was written by another program or by hand."""
    try:
        text = path.read_text("utf-8", "replace") if path.exists() else MARKS[0]
    except OSError:  # reported when it is written
        return
    if not text.startswith(MARKS):
        raise _taken(str(path), option)


def check_catalog(uri: str, source: str, stores: Stores, option: str) -> None:
    """Raises `ConfigError`, which names the option, if something other than a catalog of the demonstration's videos, at
    `source`, is at `uri`."""
    store, key = stores.resolve(uri)
    try:
        found = read_catalog(store, key, ()).source
    except NotFound:
        return
    except ConfigError:
        found = ""
    if found != source:
        raise _taken(uri, option)


def _taken(place: str, option: str) -> ConfigError:
    return ConfigError(
        f"{place} is there already, and not from this command; name another folder", field=option, code="exists"
    )
