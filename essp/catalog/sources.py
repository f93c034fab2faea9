"""Where a catalog's videos come from: what a source lists, before any video is opened.

    folders   root/[split/]class/.../video.ext
    ucf101    videos in class folders, trainlistNN.txt and testlistNN.txt, classInd.txt (Soomro et al., 2012)
    csv       one row a video or segment: see `csv_source.py`; also lists of other projects (`foreign_lists.py`)

A source names every video it was asked about: one that is listed but missing, doubled or unlabelled becomes an
`Entry` with an `error`. Files that are no videos by their name are counted, not listed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

from essp.catalog.csv_source import read_csv, read_text_list
from essp.catalog.entry import Entry
from essp.catalog.folder_source import class_folders, is_list, ucf101
from essp.catalog.foreign_lists import refuse_file, refuse_folder
from essp.catalog.local_folder import left_out
from essp_common.errors import ConfigError, NotFound
from essp_common.quantities import counted
from essp_common.wiring import Stores

Kind = Literal["auto", "folders", "ucf101", "csv"]

VIDEO_SUFFIXES = frozenset(
    f".{name}"
    for name in (
        *("3gp", "asf", "avi", "divx", "flv", "ivf", "m2ts", "m4v", "mkv", "mov"),
        *("mp4", "mpeg", "mpg", "mts", "mxf", "ogv", "ts", "vob", "webm", "wmv"),
    )
)

_UCF_NAME = re.compile(r"v_(.+_g[0-9]+)_c[0-9]+")


@dataclass(frozen=True)
class Listing:
    """All that a source names. Ids are unique."""

    kind: Kind
    entries: tuple[Entry, ...]
    ignored: Mapping[str, int]
    """Files that are neither videos nor part of the source's own lists: how many of each suffix."""
    notes: tuple[str, ...] = ()
    """What a user should know of the source."""


def read_source(
    uri: str, stores: Stores, kind: Kind = "auto", split: int = 1, group_column: str | None = None
) -> Listing:
    """List a source. `split`: which of UCF-101's three train/test divisions. `group_column`: of a CSV file.

    Raises `NotFound` when there is no such source or no video in it, `ConfigError` when it is not of its kind.
    """
    suffix = PurePosixPath(uri).suffix.lower()
    if kind == "csv" or (kind == "auto" and suffix in (".csv", ".tsv")):
        return _complete("csv", read_csv(uri, stores, VIDEO_SUFFIXES, group_column), {}, uri)
    if group_column is not None:
        raise ConfigError(f"--group-column {group_column}: only a CSV file has columns; {uri} is none")
    if kind == "auto":
        refuse_file(uri)
        if suffix == ".txt":
            return _complete("csv", read_text_list(uri, stores), {}, uri)
        if suffix in VIDEO_SUFFIXES and _is_file(uri, stores):
            raise ConfigError(f"{uri} is one video; give the folder of the class folders, or a CSV file")
        if suffix and _is_file(uri, stores):
            raise ConfigError(
                f"{uri}: lists of this format are not read; write a CSV file with the columns path, label, split"
            )
    store = stores.under(uri, videos=True)
    infos = [info for info in store.list() if not _hidden(info.key)]
    lists = [info.key for info in infos if is_list(info.key)]
    videos = [info for info in infos if PurePosixPath(info.key).suffix.lower() in VIDEO_SUFFIXES]
    if kind == "auto" and not lists:
        refuse_folder(uri, [info.key for info in infos], len(videos))
    listed = kind == "ucf101" or (kind == "auto" and bool(lists))
    counts = Counter(
        PurePosixPath(info.key).suffix.lower() or "no suffix"
        for info in infos
        if PurePosixPath(info.key).suffix.lower() not in VIDEO_SUFFIXES and not (info.key in lists and listed)
    )
    ignored = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    missed = left_out(uri, VIDEO_SUFFIXES)
    if listed:
        entries: Iterable[Entry] = ucf101(store, videos, lists, split)
        found: Kind = "ucf101"
    else:
        entries, found = class_folders(store, videos), "folders"
    entries = [_grouped(entry) for entry in entries]
    notes = _notes(entries, [info.key for info in infos], missed.empty) if found == "folders" else ()
    return _complete(found, [*entries, *missed.entries], ignored, uri, notes)


def _grouped(entry: Entry) -> Entry:
    """With the group that a name of UCF-101 tells: `v_Run_g08_c01` is a part of the recording `Run_g08`."""
    match = _UCF_NAME.fullmatch(PurePosixPath(entry.id).stem)
    return replace(entry, group=match.group(1)) if match else entry


def _notes(entries: Sequence[Entry], keys: Sequence[str], empty: Sequence[str]) -> tuple[str, ...]:
    """What is surely not meant, of class folders."""
    notes = []
    usable = [entry for entry in entries if entry.error is None]
    if usable and not any(entry.class_name for entry in usable):
        notes.append(
            "the videos have no labels, so they can only be predicted on; to train, put videos in class folders "
            "(FOLDER/CLASS/video.mp4), or give a CSV file with the columns path and label"
        )
    with_video = {key.rpartition("/")[0] for key in (entry.id for entry in entries)}
    folders = {key.rpartition("/")[0] for key in keys} | set(empty)
    bare = [f for f in sorted(folders - {""}) if not any(name == f or name.startswith(f + "/") for name in with_video)]
    if bare:
        few = ", ".join(bare[:10]) + (", ..." if len(bare) > 10 else "")
        notes.append(f"{len(bare)} folders hold no video, so there is no such class: {few}")
    return tuple(notes)


def _is_file(uri: str, stores: Stores) -> bool:
    try:
        store, key = stores.resolve(uri, video=True)
        store.head(key)
    except NotFound:
        return False
    return True


def _complete(
    kind: Kind, entries: Iterable[Entry], ignored: Mapping[str, int], uri: str, notes: tuple[str, ...] = ()
) -> Listing:
    """The listing with ids made unique: what is listed twice stays, as a problem."""
    seen: dict[str, int] = {}
    unique: list[Entry] = []
    for entry in entries:
        times = seen[entry.id] = seen.get(entry.id, 0) + 1
        if times > 1:
            entry = replace(entry, id=f"{entry.id}@{times}", error="doubled: the source lists it more than once")
        unique.append(entry)
    if not unique:
        there = f"no video files there ({others(ignored)})" if ignored else "there is no such folder, or it is empty"
        raise NotFound(f"{uri}: {there}; give a folder of class folders or a CSV file")
    return Listing(kind, tuple(unique), ignored, notes)


def others(ignored: Mapping[str, int]) -> str:
    """Files that are no videos, in words."""
    kinds = ", ".join(f"{suffix} {count}" for suffix, count in list(ignored.items())[:5])
    return counted(sum(ignored.values()), "other file") + (f": {kinds}" if kinds else "")


def _hidden(key: str) -> bool:
    return any(part.startswith(".") for part in key.split("/"))
