"""Where a catalog's videos come from: what a source lists, before any video is opened.

    folders   root/[split/]class/.../video.ext
    ucf101    videos in class folders, trainlistNN.txt and testlistNN.txt, classInd.txt (Soomro et al., 2012)
    csv       one row a video or segment: see `csv_source.py`

A source names every video it was asked about: one that is listed but missing, doubled or unlabelled becomes an
`Entry` with an `error`. Files that are no videos by their name are counted, not listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

from essp.catalog.csv_source import read_csv
from essp.catalog.entry import Entry
from essp.catalog.folder_source import class_folders, is_list, ucf101
from essp_common.errors import NotFound
from essp_common.wiring import Stores

Kind = Literal["auto", "folders", "ucf101", "csv"]

VIDEO_SUFFIXES = frozenset(
    f".{name}"
    for name in (
        *("3gp", "asf", "avi", "divx", "flv", "ivf", "m2ts", "m4v", "mkv", "mov"),
        *("mp4", "mpeg", "mpg", "mts", "mxf", "ogv", "ts", "vob", "webm", "wmv"),
    )
)


@dataclass(frozen=True)
class Listing:
    """All that a source names. Ids are unique."""

    kind: Kind
    entries: tuple[Entry, ...]
    ignored: int
    """Files that are neither videos nor part of the source's own lists."""


def read_source(uri: str, stores: Stores, kind: Kind = "auto", split: int = 1) -> Listing:
    """List a source. `split`: which of UCF-101's three train/test divisions.

    Raises `NotFound` when there is no such source or no video in it, `ConfigError` when it is not of its kind.
    """
    if kind == "csv" or (kind == "auto" and PurePosixPath(uri).suffix.lower() in (".csv", ".tsv")):
        return _complete("csv", read_csv(uri, stores), 0, uri)
    store = stores.under(uri, videos=True)
    infos = [info for info in store.list() if not _hidden(info.key)]
    lists = [info.key for info in infos if is_list(info.key)]
    videos = [info for info in infos if PurePosixPath(info.key).suffix.lower() in VIDEO_SUFFIXES]
    ignored = len(infos) - len(videos)
    if kind == "ucf101" or (kind == "auto" and lists):
        return _complete("ucf101", ucf101(store, videos, lists, split), ignored - len(lists), uri)
    return _complete("folders", class_folders(store, videos), ignored, uri)


def _complete(kind: Kind, entries: Iterable[Entry], ignored: int, uri: str) -> Listing:
    """The listing with ids made unique: what is listed twice stays, as a problem."""
    seen: dict[str, int] = {}
    unique: list[Entry] = []
    for entry in entries:
        times = seen[entry.id] = seen.get(entry.id, 0) + 1
        if times > 1:
            entry = replace(entry, id=f"{entry.id}@{times}", error="doubled: the source lists it more than once")
        unique.append(entry)
    if not unique:
        raise NotFound(
            f"{uri}: no video files there ({ignored} other files); give a folder of class folders or a CSV file"
        )
    return Listing(kind, tuple(unique), ignored)


def _hidden(key: str) -> bool:
    return any(part.startswith(".") for part in key.split("/"))
