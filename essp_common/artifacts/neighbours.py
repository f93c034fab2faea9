"""Other outputs around and inside a folder.

If one job's output is inside another's, each takes the other's files for its own, or loses them when one is removed.
The search upwards is short and complete. The search downwards may enter a data set, so it is limited to a number of
entries, nearest first, and does not follow symbolic links.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from itertools import islice

from essp_common.artifacts import layout
from essp_common.artifacts.removal import Holder, folder_uri, holder_of
from essp_common.errors import ConfigError, EsspError
from essp_common.objects.port import ObjectStore
from essp_common.wiring import Stores

_MOST_ENTRIES = 20_000
"""Limit for local folders: some hundredths of a second."""
_MOST_KEYS = 2_000
"""Limit for other stores: two requests."""


def outputs_around(stores: Stores, uri: str) -> Iterator[tuple[str, Holder]]:
    """The outputs that contain a folder, nearest first, each with its job."""
    for place in real_uris(uri):
        scheme, _, path = place.partition("://")
        parts = path.split("/")
        for count in range(len(parts) - 1, 0, -1):
            try:
                above = stores.under(f"{scheme}://{'/'.join(parts[:count])}/")
            except ConfigError:  # it is not in any store
                break
            if (found := _job_at(above)) is not None:
                yield folder_uri(above), found


def outputs_within(output: ObjectStore) -> Iterator[tuple[str, Holder]]:
    """The outputs that the limited search finds inside a folder, each with its job."""
    place = folder_uri(output)
    end = f"/{layout.SPEC}"
    if place.startswith("file://"):
        keys = _near_files(place.removeprefix("file://"), layout.SPEC)
    else:
        keys = (info.key for info in islice(output.list(), _MOST_KEYS))
    for key in keys:
        if key.endswith(end) and (found := _job_at(output.below(key.removesuffix(end)))) is not None:
            yield f"{place}/{key.removesuffix(end)}", found


def real_uris(uri: str) -> tuple[str, ...]:
    """A URI and, if its path contains symbolic links, the URI that they resolve to."""
    if not uri.startswith("file://"):
        return (uri,)
    return tuple(dict.fromkeys((uri, f"file://{os.path.realpath(uri.removeprefix('file://'))}")))


def _job_at(output: ObjectStore) -> Holder | None:
    try:
        return holder_of(output)
    except EsspError:  # no access, or its `spec.json` is not ESSP's
        return None


def _near_files(root: str, name: str) -> Iterator[str]:
    """The keys of all files of this name in subfolders, nearest first."""
    waiting, left = deque([""]), _MOST_ENTRIES
    while waiting and left > 0:
        folder = waiting.popleft()
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                for entry in islice(entries, left):
                    left -= 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{folder}{entry.name}/")
                    elif entry.name == name and folder:
                        yield folder + entry.name
        except OSError:
            continue
