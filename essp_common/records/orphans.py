"""Files of records that no version names: leftovers of killed builds.

A running build also has such files, until it writes its version. The name of a file says which build wrote it and when
(`file_name`), so the last sign of life of a build is the time of its newest file. Builds write a file every few
minutes; one that has written nothing for a day is considered dead. If it is alive after all, it notices that its files
are gone and does not write a version.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from essp_common.records.versions import FILES, NAMES_SUFFIX, SUFFIX, DataSet

_NAME = re.compile(
    re.escape(FILES) + r"([0-9a-f]{12})([0-9a-f]{20})" + f"({re.escape(SUFFIX)}|{re.escape(NAMES_SUFFIX)})"
)
_HEX_DIGITS = 12
BUILD_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Orphans:
    """Files that no version names."""

    keys: tuple[str, ...]
    """Files of builds that have written nothing for a long time."""
    bytes: int
    alive: int
    """The number of files of builds that may be running."""


def file_name(build: str, time_ms: int) -> str:
    """The name of a file written by this build (`BUILD_DIGITS` hexadecimal digits) at this time (Unix)."""
    return f"{time_ms:0{_HEX_DIGITS}x}{build}"


def orphans(data_set: DataSet, now_s: float, age_s: float) -> Orphans:
    """Files whose build has written nothing in the last `age_s` seconds. Files with other names are not touched.

    Raises `NotFound` if there is no version, and `PermanentError` if one is damaged, because its files are then
    unknown.
    """
    # List files before reading versions: files of a version written meanwhile are kept.
    listed = list(data_set.store.list(FILES))
    named: set[str] = set()
    numbers: list[int | None] = [*data_set.versions()]
    for number in numbers or [None]:
        named |= {key for file in data_set.version(number)[1].files for key in (file.key, file.names_key)}
    builds: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
    for info in listed:
        name = _NAME.fullmatch(info.key)
        if name is not None and info.key not in named:
            builds[name[2]].append((int(name[1], 16), info.key, info.size_bytes))
    dead = [files for files in builds.values() if max(files)[0] / 1000 <= now_s - age_s]
    keys = tuple(key for files in dead for _, key, _ in files)
    return Orphans(keys, sum(size for files in dead for *_, size in files), sum(map(len, builds.values())) - len(keys))
