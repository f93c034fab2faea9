"""Folders of frames as users name them: a folder with the pictures of one video, or a pattern such as
`run/img_%05d.jpg` or `run/img_*.jpg@30`.

The pictures of a folder are one series if their names begin alike (`essp_common.objects.frames`). Of several series, as
with optical flow next to the frames, the one with a usual name is meant.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath

from essp_common.errors import ConfigError, NotFound
from essp_common.objects.frames import FRAME_RATE, Series, ordered
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.wiring import Stores

_USUAL = ("", "img", "image", "im", "frame", "frames", "rgb", "color", "colour")
"""What names of frames begin with, without what separates it from the number."""
_SEPARATORS = "_-. "
_NUMBER = re.compile(r"[0-9]+")

Pictures = Mapping[Series, Sequence[ObjectInfo]]
"""The series in a folder, with the pictures of each in their order."""


def series_by_folder(infos: Iterable[ObjectInfo], rate: float = FRAME_RATE) -> dict[str, Pictures]:
    """All series of pictures among these files, by the folder that they are in."""
    found: defaultdict[Series, list[ObjectInfo]] = defaultdict(list)
    for info in infos:
        if series := Series.of_picture(info.key, rate):
            found[series].append(info)
    folders: defaultdict[str, dict[Series, Sequence[ObjectInfo]]] = defaultdict(dict)
    for series, pictures in found.items():
        folders[series.folder][series] = ordered(pictures)
    return dict(folders)


def has_gaps(pictures: Sequence[ObjectInfo]) -> bool:
    """Whether numbers are missing among those of a series: some steps from one to the next are larger than others."""
    names = (PurePosixPath(info.key).stem for info in pictures)
    numbers = [int(found[-1]) for name in names if (found := _NUMBER.findall(name))]
    return len({after - before for before, after in pairwise(numbers)}) > 1


def main_series(pictures: Iterable[Series]) -> Series | None:
    """The series that is meant by its folder; None if it may be any of several."""
    found = list(pictures)
    usual = [series for series in found if series.begin.lower().rstrip(_SEPARATORS) in _USUAL]
    return next(iter(found if len(found) == 1 else usual if len(usual) == 1 else []), None)


def found_video(uri: str, stores: Stores) -> tuple[str, ObjectStore, str, ObjectInfo]:
    """The URI of a video that a user names, its store, its key and what the store says: a file, or the frames in a
    folder. Raises `NotFound`."""
    if (named := Series.of_pattern(uri)) is not None:
        uri = named.key
    store, key = stores.resolve(uri, video=True)
    try:
        return uri, store, key, store.head(key)
    except NotFound:
        if named is not None or (series := as_series(uri, stores)) is None:
            raise
    store, key = stores.resolve(series, video=True)
    return series, store, key, store.head(key)


def as_series(uri: str, stores: Stores, rate: float = FRAME_RATE) -> str | None:
    """The URI of the video that the pictures in a folder are, or those that a pattern names; None if there are none.

    Raises `ConfigError` if the folder has several series.
    """
    if (named := Series.of_pattern(uri, rate)) is not None:
        return named.key
    try:
        folder = stores.under(uri, videos=True)
        found = series_by_folder((info for info in folder.list() if "/" not in info.key), rate).get("")
    except (ConfigError, NotFound):  # a store that cannot be listed
        return None
    if not found:
        return None
    if (main := main_series(found)) is None:
        names = ", ".join(sorted(f"{series.begin}*.{series.kind}" for series in found))
        raise ConfigError(f"{uri} has several series of pictures: {names}; name one, as in {uri}/{names.split(',')[0]}")
    return folder.uri(main.key)
