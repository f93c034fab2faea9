"""A VideoFolder of Hugging Face: videos, and with them `metadata.jsonl`, `metadata.csv` or `metadata.parquet` with a
row a video, whose `file_name` is relative to the folder of that file.

    train/metadata.jsonl    {"file_name": "a.mp4", "label": "kick", "caption": "a man kicks a ball"}
    train/a.mp4

The columns mean what they mean in a user's own list (`csv_source.py`). Folders called `train`, `validation`, `test` and
the like are splits, wherever the metadata is. Without a column for the label, class folders below them are the classes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from essp.catalog.csv_source import File, read_list
from essp.catalog.entry import Entry
from essp.catalog.folder_source import grouped
from essp.catalog.found import Found, few
from essp.catalog.layout import Layout
from essp.catalog.list_rows import JSON_LINES, PARQUET, open_list
from essp.catalog.spool import Spool, in_order
from essp.listed_files import PATH_COLUMNS
from essp_common.catalog.split_names import SPLIT_NAMES, canonical_split
from essp_common.errors import ConfigError
from essp_common.objects.port import ObjectInfo

_NAME = "metadata"
_SUFFIXES = (*JSON_LINES, ".csv", ".tsv", *PARQUET)


def is_video_folder(found: Found) -> str:
    keys = _described(found)
    return f"{few(keys)}: a row for each video (VideoFolder of Hugging Face)" if keys else ""


def _described(found: Found) -> list[str]:
    """The files that describe videos."""
    if found.given:
        return []  # a list that is named as the source is read as such
    keys = [key for key in found.others if _is_metadata(key)]
    return [key for key in keys if found.videos and _names_files(found, key)]


def _is_metadata(key: str) -> bool:
    name = PurePosixPath(key).name.lower()
    return name.startswith(f"{_NAME}.") and name.endswith(_SUFFIXES)


def _names_files(found: Found, key: str) -> bool:
    """Whether it has a column for the file. Raises `ConfigError` if it cannot be read: without it, the folders would be
    taken for class folders."""
    columns = open_list(found.store.uri(key), found.stores).columns
    return not {name.lower() for name in columns}.isdisjoint(PATH_COLUMNS)


def video_folder(found: Found) -> Iterator[Entry]:
    """The rows of all metadata files. Folders without such a file are read as class folders are; a video of another
    folder that has no row is a problem.

    Raises `ConfigError` for metadata whose columns make no sense.
    """
    keys = _described(found)
    if not keys:
        raise ConfigError(f"{found.uri}: there is no metadata.jsonl, .csv or .parquet with a column `file_name`")
    splits = _split_folders(info.key for info in found.videos)
    described = [key.rpartition(PurePosixPath(key).name)[0] for key in keys]
    below = _below(described, found)
    entries = Spool(Entry)
    notes: list[str] = []
    lacks_labels = False
    for key, folder in zip(keys, described, strict=True):
        known = (File(found.uri_of(info), info.size_bytes, info.etag) for info in below[folder])
        listed = read_list(found.store.uri(key), found.stores, known=known)
        lacks_labels = lacks_labels or not listed.labels
        notes += listed.notes
        for entry in listed.entries:
            name = f"{folder}{entry.id}"
            split, class_name = _of_folders(name, splits)
            entry = replace(entry, id=name, split=entry.split if listed.splits else split or entry.split)
            if not entry.class_name and class_name and not listed.labels:
                entry = replace(entry, class_name=class_name)
            elif not entry.class_name:
                entry = replace(entry, unlabelled=entry.unlabelled or f"{key} has no label for it")
            entries.add(entry)
    for info in found.videos:
        if below.keys().isdisjoint(_folders_of(info.key)):
            split, class_name = _of_folders(info.key, splits)
            lacks = "" if class_name else "no metadata file names it, and it is not in a class folder"
            entries.add(grouped(found.entry(info, class_name, split or "train", unlabelled=lacks)))
    named = lacks_labels and any(entry.class_name for entry in entries)
    found.notes += dict.fromkeys(note for note in notes if not (named and "no column `label`" in note))
    if named:
        found.notes.append("the metadata has no column `label`, so class folders are the classes")
    yield from entries


def _below(folders: Iterable[str], found: Found) -> Mapping[str, Collection[ObjectInfo]]:
    """The videos below each of these folders, in order of their URIs."""
    below = {folder: Spool(ObjectInfo) for folder in folders}
    for info in in_order(ObjectInfo, found.videos, found.uri_of):
        for folder in below.keys() & _folders_of(info.key):
            below[folder].add(info)
    return below


def _folders_of(key: str) -> set[str]:
    """The folders that contain a file, each with a `/` at its end, except the source itself, whose name is empty."""
    return {key[: place + 1] for place, char in enumerate(key) if char == "/"} | {""}


def _split_folders(keys: Iterable[str]) -> frozenset[str]:
    """The folders, at the top or below folders that contain everything, that are called like splits."""
    parts = [folder.split("/") if folder else [] for folder in {key.rpartition("/")[0] for key in keys}]
    while parts and all(parts) and len({each[0] for each in parts}) == 1 and parts[0][0].lower() not in SPLIT_NAMES:
        parts = [each[1:] for each in parts]
    return frozenset(each[0] for each in parts if each and each[0].lower() in SPLIT_NAMES)


def _of_folders(key: str, splits: frozenset[str]) -> tuple[str, str]:
    """The split that the folders of a video say, and its class; empty: they say nothing."""
    folders: Sequence[str] = key.split("/")[:-1]
    place = next((place for place, name in enumerate(folders) if name in splits), -1)
    below = folders[place + 1 :]
    return (canonical_split(folders[place]) if place >= 0 else ""), (below[0] if below else "")


VIDEO_FOLDER = Layout(
    "videofolder",
    "metadata.jsonl, .csv or .parquet with a column file_name",
    is_video_folder,
    video_folder,
    files=_SUFFIXES,
)
