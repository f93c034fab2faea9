"""Checks whether the videos of a job are where its catalog says, before decoders find out one by one."""

from __future__ import annotations

from urllib.parse import urlsplit

from essp.uris import shown
from essp_common.errors import ConfigError, EsspError
from essp_common.wiring import Stores
from essp_engine.preflight.preflight import Preflight

_TRIED = 8


def check_videos(found: Preflight, stores: Stores) -> None:
    """Raises `ConfigError` if the videos are not there."""
    if problem := missing_videos(found, stores):
        raise ConfigError(problem, field="data.catalog", code="not_found")


def missing_videos(found: Preflight, stores: Stores) -> str:
    """What to know if not one of a few videos of each phase is there; empty if any is. Of single ones the job tells.

    Only files of this machine are tried: other stores may answer slowly, and say themselves what is missing.
    """
    if found.spec.data.records:
        return ""
    tried = []
    for rows in {id(view.rows): view.rows for _, view in found.phases.views}.values():
        places = range(0, len(rows), max(1, len(rows) // _TRIED))
        tried += [uri for place in places if urlsplit(uri := rows.text("uri", place)).scheme == "file"]
    if not tried or any(_exists(uri, stores) for uri in tried):
        return ""
    return (
        f"none of its videos is where the catalog says, such as {shown(tried[0])}; if they were moved, run "
        "`essp catalog relocate CATALOG`"
    )


def _exists(uri: str, stores: Stores) -> bool:
    try:
        store, key = stores.resolve(uri, video=True)
        store.head(key)
    except EsspError:
        return False
    return True
