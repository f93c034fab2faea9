"""Shards of webdataset: tar archives in which files of one name but for the suffix are one sample, wherever they lie.

    clip_01.mp4   the video
    clip_01.cls   the class, usually a number; or `label` or `class` in the .json, or several in a list, or as `labels`
    clip_01.txt   a caption
    clip_01.json  an object, whose further entries are handed through

Several videos may be one sample; what bears the whole name of one (`clip_01.720p.cls` beside `clip_01.720p.mp4`) is
about that one alone.

An archive of class folders, with nothing but videos, is read as such.

Videos stay where they are: a catalog says at which bytes of which shard each lies. The split is told by the folders or
the name of a shard (`train/000.tar`, `kinetics-val-000.tar`); otherwise all are for training.
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
from essp_common.catalog.splits import SPLIT_NAMES, canonical_split
from essp_common.errors import ConfigError
from essp_common.objects.archive import member_key
from essp_common.objects.documents import read_json, tar_members
from essp_common.objects.keys import is_hidden, is_key

_LABELS = ("label", "class", "class_name", "category", "labels")
_TEXTS = ("cls", "txt", "json")
_SMALL_BYTES = 2**20
"""Files beside videos that are read: at most so large."""


def is_webdataset(found: Found) -> str:
    shards = _shards(found)
    return f"tar archives of videos ({few(shards)})" if shards and (found.given or not found.videos) else ""


def webdataset(found: Found) -> Iterator[Entry]:
    """The videos of all shards; in a split in which any has a label, those without one are problems, and so are labels
    of samples without a video. Videos with nothing beside them have the classes of their folders.

    Raises `ConfigError` for an archive that is compressed or damaged.
    """
    entries: list[Entry] = []
    names: list[str] = []
    described = False
    labelled: set[str] = set()
    alone: list[Entry] = []
    for key in _shards(found):
        split, etag = _split(key), found.store.head(key).etag  # once: it may take longer than reading a sample
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
        error = f"missing: {key} has a label for it, and no video"
        alone += (Entry(f"{key}/{name}", "", named[name], split, error=error) for name in named if name not in shown)
    if not (described or alone) and any("/" in name for name in names):
        entries = list(_in_class_folders(found, entries, names))
    for entry in entries:
        unlabelled = entry.split in labelled and not entry.class_name and entry.error is None
        error = "unlabelled: others have a label, and none lies beside it" if unlabelled else entry.error
        yield grouped(replace(entry, error=error))
    if entries:  # else these are no archives of videos
        yield from alone


def _in_class_folders(found: Found, entries: Sequence[Entry], names: Sequence[str]) -> Iterator[Entry]:
    """The videos of class folders that somebody has packed, with what these say. `names`: in the archive."""
    names = _below_all(names)
    splits = split_folders(names, levels=1)
    found.notes.append(
        "no video in the archives has a label beside it, so the folders in them are taken for those of classes"
        + (", below those of splits" if splits else "")
    )
    for entry, place in zip(entries, places(names, splits), strict=True):
        split = place.split if splits else entry.split
        yield replace(entry, class_name=place.class_name, split=split, error=entry.error or place.error)


def _below_all(names: Sequence[str]) -> Sequence[str]:
    """The names without folders that hold all others, as `UCF-101/` of `UCF-101/Run/1.avi`."""
    while all(name.count("/") > 1 for name in names):
        above = {name.partition("/")[0] for name in names}
        if len(above) > 1 or above.pop().lower() in SPLIT_NAMES:
            break
        names = [name.partition("/")[2] for name in names]
    return names


class _Video(NamedTuple):
    name: str
    part: str
    """What stands between the sample and the suffix, as `720p` in `clip_01.720p.mp4`; empty: nothing."""
    offset: int
    size_bytes: int
    whole: bool
    """The bytes are those of the video: it is neither a link nor stored with holes."""


@dataclass(slots=True)
class _Sample:
    name: str
    videos: list[_Video] = field(default_factory=list)
    texts: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """Part and suffix -> content of what lies beside them."""

    def has(self, part: str, suffix: str, video: bool) -> bool:
        """Whether it has such a file already; another one begins another sample of this name."""
        return any(own.part == part for own in self.videos) if video else (part, suffix) in self.texts

    @property
    def lone_parts(self) -> list[str]:
        """Those that texts are about and no video is. Beside a video without parts, `a.meta.json` is about none."""
        shown = {video.part for video in self.videos}
        if shown == {""}:
            return []
        return sorted({part for part, _ in self.texts if part or not shown} - shown)

    def of(self, part: str) -> str:
        """The name of a part."""
        return f"{self.name}.{part}" if part else self.name

    def beside(self, part: str) -> dict[str, bytes]:
        """Suffix -> content of what is about a part: what bears its name, or else the sample's."""
        found = {suffix: text for (own, suffix), text in self.texts.items() if not own}
        return found | {suffix: text for (own, suffix), text in self.texts.items() if own == part}


def _shards(found: Found) -> list[str]:
    return [key for key in found.lists if key.endswith(ARCHIVES)]


def _split(key: str) -> str:
    folders = [part for part in PurePosixPath(key).parts[:-1] if part.lower() in SPLIT_NAMES]
    return canonical_split(folders[-1]) if folders else split_named(key) or "train"


def _samples(found: Found, key: str) -> Iterator[_Sample]:
    """In webdataset the files of a sample follow one another; other programs pack all videos, and then all labels."""
    uri = found.store.uri(key)
    if not key.endswith(".tar"):
        raise ConfigError(f"{uri} is compressed, so no video in it can be read by itself; decompress it first")
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
        return Entry(f"{shard}/{name!r}", "", "", split, error="name: it leaves the archive, or cannot be printed")
    labels, meta, error = _labels(texts)
    if not whole:
        error = "format: it is a link, or has holes; pack the file itself"
    uri = found.store.uri(member_key(shard, offset, size, name))
    label, several = labels[0] if labels else "", labels if len(labels) > 1 else ()
    return Entry(f"{shard}/{name}", uri, label, split, size, f"{etag}@{offset}", labels=several, meta=meta, error=error)


def _labels(texts: Mapping[str, bytes]) -> tuple[tuple[str, ...], dict[str, Any], str | None]:
    """Labels, of which the first one is the class, further columns and what is wrong."""
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
    named = next((name for name in _LABELS if _names_in(meta.get(name))), None)
    return (() if named is None else _names_in(meta.pop(named))), meta, None


def _names_in(value: Any) -> tuple[str, ...]:
    """One name, or those of a list; none if any of them is no name."""
    names = tuple(map(name_in, value)) if isinstance(value, list) else (name_in(value),)
    return tuple(dict.fromkeys(names)) if all(names) else ()


WEBDATASET = Layout(
    "webdataset",
    "tar archives of videos",
    is_webdataset,
    webdataset,
    files=ARCHIVES,
    notes=lambda _found, entries, _empty: without_labels(entries),
)
