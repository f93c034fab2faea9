"""Folders of videos as the source of a catalog: class folders, and UCF-101 with its lists.

Both work on the listing of an object store, so a bucket serves as well as a directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import NamedTuple

from essp.catalog.entry import Entry
from essp.catalog.foreign_lists import lists_of_paths
from essp.catalog.found import Found, composed, few
from essp.catalog.json_lists import split_named
from essp.catalog.layout import ARCHIVES, Layout
from essp.catalog.mmaction2 import lists_in
from essp_common.catalog.splits import SPLIT_NAMES, canonical_split
from essp_common.errors import ConfigError
from essp_common.objects.port import ObjectInfo
from essp_common.quantities import counted

_LIST = re.compile(r"(train|val|trainval|test)list0*(\d+)\.txt$", re.IGNORECASE)
_INDEX = "classInd.txt"
_DESCRIPTION = "metadata"
"""What Hugging Face calls the file that describes the videos beside it: `.jsonl`, `.csv` or `.parquet`."""
_LISTED = re.compile(r"(.+?)(?:\s+([0-9]{1,9}))?")
_UCF_NAME = re.compile(r"v_(.+_g[0-9]+)_c[0-9]+")
_NUMBERED = re.compile(r"([0-9]{1,9})\s+(\S.*)")


def _is_index(key: str) -> bool:
    return key.lower().endswith(_INDEX.lower())


class Place(NamedTuple):
    """What the folders of a video say of it."""

    class_name: str
    split: str
    """Empty: nothing."""
    error: str | None = None


def is_folders(found: Found) -> str:
    if found.given or not found.videos:
        return ""
    labelled = any("/" in info.key for info in found.videos)
    return f"{counted(len(found.videos), 'video')} in class folders" if labelled else "videos without class folders"


def class_folders(found: Found) -> Iterator[Entry]:
    """Class folders, below split folders where there are any; otherwise all are for training.

    Videos without any folder are unlabelled; beside class folders they are a problem.
    """
    keys = [info.key for info in found.videos]
    splits = split_folders(keys, levels=1)
    described = [key for key in found.others if PurePosixPath(key).stem.lower() == _DESCRIPTION]
    if described:  # the upmost folders of a VideoFolder are splits
        splits = splits or {top: canonical_split(top) for top in _tops(keys) if top.lower() in SPLIT_NAMES}
    if unread := [key for key in described if key.lower().endswith((".jsonl", ".parquet"))]:
        found.notes.append(
            f"{few(unread)} of a VideoFolder of Hugging Face cannot be read; for the labels and captions in it, write "
            "a CSV file with the columns file_name, label, split"
        )
    if meant := {top: split for top, split in splits.items() if top.lower() not in SPLIT_NAMES}:
        found.notes.append(f"upmost folders are taken for splits: {few([f'{t} for {s}' for t, s in meant.items()])}")
    for info, place in zip(found.videos, places(keys, splits), strict=True):
        split = place.split if splits or not place.class_name else "train"
        if described and place.split and not place.class_name:
            yield grouped(found.entry(info, "", split, unlabelled="it lies in no class folder"))
        else:
            yield grouped(found.entry(info, place.class_name, split, error=place.error))


def grouped(entry: Entry) -> Entry:
    """With the group that a name of UCF-101 tells: `v_Run_g08_c01` is a part of the recording `Run_g08`."""
    match = _UCF_NAME.fullmatch(PurePosixPath(entry.id).stem)
    return replace(entry, group=match.group(1)) if match else entry


def _tops(keys: Iterable[str]) -> set[str]:
    return {key.partition("/")[0] for key in keys if "/" in key}


def places(keys: Sequence[str], splits: Mapping[str, str]) -> Iterator[Place]:
    """What the folders of each of these videos say, if they are those of classes, below those of splits if there are
    any."""
    unlabelled = not any("/" in key for key in keys)
    for key in keys:
        top, *rest = key.split("/")
        if not rest:
            yield Place("", "", None if unlabelled else "unlabelled: lies in no class folder")
        elif not splits:
            yield Place(top, "")
        elif top not in splits:
            yield Place("", "", "unlabelled: lies beside the split folders, in none of them")
        elif len(rest) > 1:
            yield Place(rest[0], splits[top])
        else:
            yield Place("", splits[top], f"unlabelled: lies in {top}, but there in no class folder")


def split_folders(keys: Iterable[str], levels: int) -> Mapping[str, str]:
    """The upmost folders that are splits, and which. `levels`: of folders in which classes lie, the class itself
    included.

    A class may be called `train`. So folders that are named like splits are some if all videos in one of them lie as
    deep as classes are, or if there are no other folders and any video lies so deep: a file that somebody has left
    beside the class folders makes no classes of splits. Folders such as `train_256` and `val_256` are some if there are
    no others, and all videos lie so deep.
    """
    deep: dict[str, set[bool]] = {}
    """Upmost folder -> whether its videos lie in class folders."""
    for key in keys:
        top, *rest = key.split("/")
        if rest:
            deep.setdefault(top, set()).add(len(rest) > levels)
    named = {top: found for top, found in deep.items() if top.lower() in SPLIT_NAMES}
    if {True} in named.values() or (len(named) == len(deep) and any(True in found for found in named.values())):
        return {top: canonical_split(top) for top in named}
    words = {top: split_named(top) for top in deep}
    certain = all(words.values()) and len(set(words.values())) > 1 and all(found == {True} for found in deep.values())
    return words if certain else {}


def split_below(entry: Entry) -> str:
    """The folder below that of a video's class which is named like a split; empty: there is none."""
    folders = entry.id.split("/")[:-1]
    begin = folders.index(entry.class_name) + 1 if entry.class_name else len(folders)
    found = next((place for place in range(begin, len(folders)) if folders[place].lower() in SPLIT_NAMES), None)
    return "" if found is None else "/".join(folders[: found + 1])


def is_ucf101(found: Found) -> str:
    if found.given or not (lists := _ucf_lists(found)):
        return ""
    return f"{counted(len(lists), 'list')} such as {lists[0]}, of which those of division {found.split} are read"


def _ucf_lists(found: Found) -> list[str]:
    return [key for key in found.lists if _LIST.search(key) or _is_index(key)]


def ucf101(found: Found) -> Iterator[Entry]:
    """Videos by class folder, with the split that division `found.split` gives them; those in no list have none. What
    each division says, this one too, is in the columns `split_1`, `split_2`, ...

    Raises `ConfigError` when there is no such division, and for a classInd.txt that does not number classes.
    """
    split, lists = found.split, _ucf_lists(found)
    numbers = sorted({int(match.group(2)) for key in lists if (match := _LIST.search(key))})
    if split not in numbers:
        there = ", ".join(map(str, numbers)) or "none"
        raise ConfigError(
            f"{found.uri} has no trainlist{split:02}.txt; divisions found: {there}", field="--split", code="unknown"
        )
    divisions = {number: _division(found, lists, number) for number in numbers}
    if not any(assigned.split == "train" for assigned in divisions[split].values()):
        found.notes.append(
            f"no list of division {split} names a video to train on; it is called trainlist{split:02}.txt"
        )
    names, missing = _class_names(found, lists), dict(divisions[split])
    meant = found.matching(name for division in divisions.values() for name in division)
    listed = {info.key: name for name, info in meant.items()}
    seen: dict[str, str] = {}
    for info in found.videos:
        parts = PurePosixPath(info.key).parts
        if len(parts) < 2:
            yield grouped(found.entry(info, error="unlabelled: lies in no class folder"))
            continue
        name = listed.get(info.key) or "/".join(parts[-2:])
        assigned = missing.pop(name, None)
        error = _label_error(assigned, parts[-2], names) if assigned else None
        if name in seen and name in divisions[split]:
            error = f"doubled: {seen[name]} may be meant as well; keep one of them"
        seen.setdefault(name, info.key)
        said = {number: division[name].split for number, division in divisions.items() if name in division}
        columns = split_columns(said)
        yield grouped(found.entry(info, parts[-2], assigned.split if assigned else "", error=error, meta=columns))
    for name, assigned in missing.items():
        yield grouped(found.missing(name, assigned.list_key, name.partition("/")[0], assigned.split))


def split_columns(splits: Mapping[int, str]) -> dict[str, str]:
    """The columns of a video that say its split in each division, by number; `data.split_column` reads them."""
    return {f"split_{number}": split for number, split in splits.items()}


@dataclass(frozen=True, slots=True)
class _Assigned:
    """What the list of a split says of a video."""

    split: str
    label: int | None
    list_key: str
    other: str = ""
    """A list that gives it another split; empty: none does."""


def _division(found: Found, lists: Sequence[str], split: int) -> dict[str, _Assigned]:
    """`class/file` -> what the lists of this division say of it. One of both train and val says least of which it is
    in, so it counts where no other names a video."""
    matches = [(match[1].lower(), key) for key in lists if (match := _LIST.search(key)) and int(match[2]) == split]
    assigned: dict[str, _Assigned] = {}
    for word, key in sorted(matches, key=lambda each: each[0] == "trainval"):
        kept = canonical_split(word)
        for line in found.lines(key):
            if listed := _LISTED.fullmatch(line):
                name, number = listed.group(1), int(listed.group(2)) if listed.group(2) else None
                before = assigned.get(name)
                if before is not None and before.split == "validation" and word == "trainval":
                    continue
                other = before.list_key if before is not None and before.split != kept else ""
                assigned[name] = _Assigned(kept, number, key, other)
    return assigned


def _class_names(found: Found, lists: Sequence[str]) -> dict[int, str]:
    """Label number -> class, from classInd.txt where there is one."""
    names: dict[int, str] = {}
    for key in lists:
        for line in found.lines(key) if _is_index(key) else ():
            match = _NUMBERED.fullmatch(line)
            if match is None or names.setdefault(int(match[1]), match[2]) != match[2]:
                what = "another name for a number before" if match else "not `number class`"
                raise ConfigError(f"{found.store.uri(key)}: {line[:80]!r} is {what}")
    return names


def _label_error(assigned: _Assigned, folder: str, names: dict[int, str]) -> str | None:
    if assigned.other:
        return f"split: {assigned.other} names it, and {assigned.list_key}, too"
    named = folder if assigned.label is None or not names else names.get(assigned.label, f"not in {_INDEX}")
    if composed(named) == composed(folder):
        return None
    return f"mislabelled: {assigned.list_key} gives it label {assigned.label} ({named}), but it lies in {folder}"


def without_labels(entries: Sequence[Entry]) -> list[str]:
    """What to do with a source in which nothing has a label."""
    usable = [entry for entry in entries if entry.error is None]
    if not usable or any(entry.class_name for entry in usable):
        return []
    return [
        "the videos have no labels, so they can only be predicted on; to train, put videos in class folders "
        "(FOLDER/CLASS/video.mp4), or give a CSV file with the columns path and label"
    ]


def _notes(found: Found, entries: Sequence[Entry], empty: Sequence[str]) -> list[str]:
    """What is surely not meant, of class folders."""
    usable = [entry for entry in entries if entry.error is None]
    notes = without_labels(entries)
    keys = [*(info.key for info in found.videos), *found.others]
    with_video = {key.rpartition("/")[0] for key in (entry.id for entry in entries)}
    folders = {key.rpartition("/")[0] for key in keys} | set(empty)
    bare = [f for f in sorted(folders - {""}) if not any(name == f or name.startswith(f + "/") for name in with_video)]
    if bare:
        first = ", ".join(bare[:10]) + (", ..." if len(bare) > 10 else "")
        hold = "folder holds" if len(bare) == 1 else "folders hold"
        notes.append(f"{len(bare):,} {hold} no video, so there is no such class: {first}")
    if below := sorted({folder for entry in usable if (folder := split_below(entry))}):
        notes.append(
            f"folders named like splits lie below what is taken for a class, so they are none: {few(below)}; give the "
            "folder above them, put them above those of classes (SPLIT/CLASS/video.mp4), or give a CSV file with the "
            "columns path, label, split"
        )
    like_splits = sorted({entry.class_name for entry in usable if entry.class_name.lower() in SPLIT_NAMES})
    if like_splits:
        notes.append(
            f"classes are named like splits: {', '.join(like_splits)}; if they are splits, put their videos in class "
            "folders (SPLIT/CLASS/video.mp4)"
        )
    lists = [*lists_in(found), *lists_of_paths(found)]
    if lists:
        notes.append(
            f"lists that are not read lie there: {few(lists)}; if they name the classes, give one of them as the "
            "source, or say --source mmaction2 for all with `path label` lines"
        )
    if packed := [key for key in found.others if key.endswith(ARCHIVES)]:
        notes.append(
            f"beside the videos lie archives that are not looked into: {few(packed)}; if they hold the videos that are "
            "meant, say --source webdataset"
        )
    if _looks_two_level(found.videos):
        notes.append(
            "all videos lie two folders deep, and the class is the upper one; if it is the lower one, say "
            "--source two-level"
        )
    classes, splits = {entry.class_name for entry in usable} - {""}, {entry.split for entry in usable}
    if not notes and len(usable) > 1 and len(classes) == len(splits) == 1:
        notes.append(
            f"all videos have one class, {min(classes)!r}, that of the folder in which they lie; if the folders "
            "in it are the classes, give that folder as the source; if a list tells them, give a CSV file with the "
            "columns path and label"
        )
    return notes


def _looks_two_level(videos: Iterable[ObjectInfo]) -> bool:
    """Whether all videos lie two folders deep, in several folders below several others."""
    keys = [info.key for info in videos]
    parts = [key.split("/")[:-1] for key in keys]
    if not parts or any(len(each) != 2 or each[0].lower() in SPLIT_NAMES for each in parts):
        return False
    if split_folders(keys, levels=1):
        return False
    return len({each[0] for each in parts}) < len({tuple(each) for each in parts}) < len(parts)


UCF101 = Layout("ucf101", "trainlistNN.txt, testlistNN.txt", is_ucf101, ucf101)
FOLDERS = Layout("folders", "videos in folders", is_folders, class_folders, files=(), notes=_notes)
