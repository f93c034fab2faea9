"""Shards of webdataset: tar archives. Files that differ only in their suffix are one sample, anywhere in the archive.

    clip_01.mp4   the video
    clip_01.cls   the class, usually a number; or `label` or `class` in the .json, or several in a list, or as `labels`
    clip_01.txt   a caption
    clip_01.json  an object, whose other entries are kept unchanged

A sample may have several videos. A file that carries the whole name of one of them (`clip_01.720p.cls` for
`clip_01.720p.mp4`) describes only that one.

An archive of class folders that contains only videos is read like such folders.

Videos stay where they are: a catalog records the shard and the byte range of each. The split is the name of a folder or
a part of the name of the shard (`train/000.tar`, `kinetics-val-000.tar`); otherwise all are for training.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from essp.catalog.entry import Entry
from essp.catalog.folder_source import grouped, places, split_folders, without_labels
from essp.catalog.found import Found, few, is_video
from essp.catalog.json_lists import name_in, split_named
from essp.catalog.layout import ARCHIVES, Layout
from essp_common.catalog.split_names import SPLIT_NAMES, canonical_split
from essp_common.errors import ConfigError
from essp_common.objects.archive import member_key
from essp_common.objects.documents import read_json, tar_members
from essp_common.objects.keys import is_hidden, is_key

LABELS = ("label", "class", "class_name", "category", "labels")
"""The fields that may name the class of a sample."""
_TEXTS = ("cls", "txt", "json")
_SMALL_BYTES = 2**20
"""The size limit, in bytes, of the files that describe videos."""


def is_webdataset(found: Found) -> str:
    shards = _shards(found)
    return f"tar archives of videos ({few(shards)})" if shards and (found.given or not found.videos) else ""


def webdataset(found: Found) -> Iterator[Entry]:
    """The videos of all shards. If any video of a split has a label, videos without one are problems, as are labels
    without a video. Videos without any file that describes them have the classes of their folders.

    Raises `ConfigError` for an archive that is compressed or damaged.
    """
    entries: list[Entry] = []
    names: list[str] = []
    described = False
    labelled: set[str] = set()
    alone: list[Entry] = []
    for key in _shards(found):
        split, etag = (
            split_of_file(key),
            found.store.head(key).etag,
        )  # once for each shard: it may take longer than to read a sample
        shown, named = set[str](), dict[str, str]()
        for sample in _samples(found, key):
            described = described or bool(sample.texts and sample.videos)
            for video in sample.videos:
                entry = _entry(found, key, etag, split, video, sample.beside(video.part))
                entries.append(entry)
                names.append(video.name)
                shown.update((sample.name, sample.of(video.part)))
                labelled.update((split,) if entry.class_name else ())
            for part in sample.lone_parts:
                if labels := _labels(sample.beside(part))[0]:
                    labelled.add(split)
                    named[sample.of(part)] = labels[0]
        missing = f"missing: {key} has a label for it, but no video"
        alone += (Entry(f"{key}/{name}", "", named[name], split, error=missing) for name in named if name not in shown)
    if not (described or alone) and any("/" in name for name in names):
        entries = list(_in_class_folders(found, entries, names))
    for entry in entries:
        unlabelled = entry.split in labelled and not entry.class_name and entry.error is None
        error = "unlabelled: other videos have a label, but this one does not" if unlabelled else entry.error
        yield grouped(replace(entry, error=error))
    if entries:  # otherwise these are not archives of videos
        yield from alone


def _in_class_folders(found: Found, entries: Sequence[Entry], names: Sequence[str]) -> Iterator[Entry]:
    """The videos of packed class folders, labelled by these folders. `names`: the names in the archive."""
    names = _below_all(names)
    splits = split_folders(names, levels=1)
    found.notes.append(
        "no sample in the archives has a label, so the folders in them are used as class folders"
        + (", inside split folders" if splits else "")
    )
    for entry, place in zip(entries, places(names, splits), strict=True):
        split = place.split if splits else entry.split
        yield replace(entry, class_name=place.class_name, split=split, error=entry.error or place.error)


def _below_all(names: Sequence[str]) -> Sequence[str]:
    """The names without the folders that contain all of them, such as `UCF-101/` in `UCF-101/Run/1.avi`."""
    while all(name.count("/") > 1 for name in names):
        above = {name.partition("/")[0] for name in names}
        if len(above) > 1 or above.pop().lower() in SPLIT_NAMES:
            break
        names = [name.partition("/")[2] for name in names]
    return names


class _Video(NamedTuple):
    name: str
    part: str
    """What is between the sample and the suffix, such as `720p` in `clip_01.720p.mp4`; empty: nothing."""
    offset: int
    size_bytes: int
    whole: bool
    """The content of the video is stored as is: it is neither a link nor sparse."""


@dataclass(slots=True)
class _Sample:
    name: str
    videos: list[_Video] = field(default_factory=list)
    texts: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """Part and suffix -> content of the files that describe the videos."""

    def has(self, part: str, suffix: str, video: bool) -> bool:
        """Whether it already has such a file; a second one begins another sample of the same name."""
        return any(own.part == part for own in self.videos) if video else (part, suffix) in self.texts

    @property
    def lone_parts(self) -> list[str]:
        """The parts that have texts but no video. In a sample with a video without parts, `a.meta.json` describes no
        part."""
        shown = {video.part for video in self.videos}
        if shown == {""}:
            return []
        return sorted({part for part, _ in self.texts if part or not shown} - shown)

    def of(self, part: str) -> str:
        """The name of the sample with this part."""
        return f"{self.name}.{part}" if part else self.name

    def beside(self, part: str) -> dict[str, bytes]:
        """Suffix -> content of the files that describe a part: files of this part, otherwise files of the sample."""
        found = {suffix: text for (own, suffix), text in self.texts.items() if not own}
        return found | {suffix: text for (own, suffix), text in self.texts.items() if own == part}


def _shards(found: Found) -> list[str]:
    return [key for key in found.lists if key.endswith(ARCHIVES)]


def split_of_file(key: str) -> str:
    """The split of the videos in a file, by its folder or its name."""
    folders = [part for part in PurePosixPath(key).parts[:-1] if part.lower() in SPLIT_NAMES]
    return canonical_split(folders[-1]) if folders else split_named(key) or "train"


def _samples(found: Found, key: str) -> Iterator[_Sample]:
    """In webdataset the files of a sample are adjacent; other programs pack all videos and then all labels."""
    uri = found.store.uri(key)
    if not key.endswith(".tar"):
        raise ConfigError(f"{uri} is compressed, so its videos cannot be read separately; decompress it first")
    samples: list[_Sample] = []
    newest: dict[str, _Sample] = {}
    try:
        with found.store.open(key) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in tar_members(archive):
                path = member.name.removeprefix("./")
                if member.isdir() or is_hidden(path):
                    continue
                folder, _, name = path.rpartition("/")
                stem, _, end = name.partition(".")
                part, _, suffix = end.rpartition(".")
                stem = f"{folder}/{stem}" if folder else stem
                sample = newest.get(stem)
                if sample is None or sample.has(part, suffix.lower(), is_video(name)):
                    sample = newest[stem] = _Sample(stem)
                    samples.append(sample)
                if is_video(name):
                    whole = member.isfile() and not member.issparse()
                    sample.videos.append(_Video(path, part, member.offset_data, member.size, whole))
                elif member.isfile() and member.size <= _SMALL_BYTES and suffix.lower() in _TEXTS:
                    content = archive.extractfile(member)
                    sample.texts[part, suffix.lower()] = content.read() if content is not None else b""
    except tarfile.TarError as error:
        raise ConfigError(f"{uri} cannot be read as a tar archive: {error}") from error
    yield from samples


def _entry(found: Found, shard: str, etag: str, split: str, video: _Video, texts: Mapping[str, bytes]) -> Entry:
    name, _, offset, size, whole = video
    if not is_key(name):
        return Entry(
            f"{shard}/{name!r}", "", "", split, error="name: it is a path out of the archive, or cannot be printed"
        )
    labels, meta, error = _labels(texts)
    if not whole:
        error = "format: it is a link or sparse in the archive; pack the file itself"
    uri = found.store.uri(member_key(shard, offset, size, name))
    label, several = labels[0] if labels else "", labels if len(labels) > 1 else ()
    return Entry(f"{shard}/{name}", uri, label, split, size, f"{etag}@{offset}", labels=several, meta=meta, error=error)


def _labels(texts: Mapping[str, bytes]) -> tuple[tuple[str, ...], dict[str, Any], str | None]:
    """Labels (the first is the class), further columns, and what is wrong."""
    meta: dict[str, Any] = {}
    if "json" in texts:
        try:
            found = read_json(texts["json"])
        except ValueError as error:
            return (), {}, f"unlabelled: its .json cannot be read ({error})"
        meta = found if isinstance(found, dict) else {"json": found}
    if "txt" in texts:
        meta.setdefault("caption", texts["txt"].decode("utf-8-sig", "replace").strip())
    if "cls" in texts:
        try:
            label = texts["cls"].decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            return (), meta, "unlabelled: its .cls is not UTF-8 text"
        return ((label,) if label else ()), meta, None
    named = next((name for name in LABELS if names_in(meta.get(name))), None)
    return (() if named is None else names_in(meta.pop(named))), meta, None


def names_in(value: Any) -> tuple[str, ...]:
    """The one name, or the names in a list; empty if any of them is not a name."""
    names = tuple(map(name_in, value)) if isinstance(value, list) else (name_in(value),)
    return tuple(dict.fromkeys(names)) if all(names) else ()


WEBDATASET = Layout(
    "webdataset",
    "tar archives of videos",
    is_webdataset,
    webdataset,
    files=ARCHIVES,
    notes=lambda _found, entries, _empty: without_labels(
        {entry.class_name for entry in entries if entry.error is None}
    ),
)
