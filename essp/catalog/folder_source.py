"""Folders of videos as the source of a catalog: class folders, and UCF-101 with its lists.

Both work on the listing of an object store, so a bucket serves as well as a directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from essp.catalog.entry import Entry
from essp.catalog.found import Found, composed, few
from essp.catalog.json_lists import split_named
from essp_common.catalog.splits import SPLIT_NAMES, canonical_split
from essp_common.errors import ConfigError

_LIST = re.compile(r"(train|val|trainval|test)list0*(\d+)\.txt$", re.IGNORECASE)
_INDEX = "classInd.txt"
_DESCRIPTION = "metadata"
"""What Hugging Face calls the file that describes the videos beside it: `.jsonl`, `.csv` or `.parquet`."""
_LISTED = re.compile(r"(.+?)(?:\s+([0-9]{1,9}))?")
_NUMBERED = re.compile(r"([0-9]{1,9})\s+(\S.*)")


def is_list(key: str) -> bool:
    """Whether a file is one of the lists that come with UCF-101."""
    return _LIST.search(key) is not None or _is_index(key)


def _is_index(key: str) -> bool:
    return key.lower().endswith(_INDEX.lower())


class Place(NamedTuple):
    """What the folders of a video say of it."""

    class_name: str
    split: str
    """Empty: nothing."""
    error: str | None = None


def class_folders(found: Found) -> Iterable[Entry]:
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
            yield found.entry(info, "", split, unlabelled="it lies in no class folder")
        else:
            yield found.entry(info, place.class_name, split, error=place.error)


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


def ucf101(found: Found, lists: Sequence[str]) -> Iterable[Entry]:
    """Videos by class folder, with the split that division `found.split` gives them; those in no list have none. What
    each division says, this one too, is in the columns `split_1`, `split_2`, ...

    `lists`: the keys for which `is_list` holds. Raises `ConfigError` when there is no such division, and for a
    classInd.txt that does not number classes.
    """
    split = found.split
    numbers = sorted({int(match.group(2)) for key in lists if (match := _LIST.search(key))})
    if split not in numbers:
        there = ", ".join(map(str, numbers)) or "none"
        raise ConfigError(f"--split {split}: no trainlist{split:02}.txt there; divisions found: {there}")
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
            yield found.entry(info, error="unlabelled: lies in no class folder")
            continue
        name = listed.get(info.key) or "/".join(parts[-2:])
        assigned = missing.pop(name, None)
        error = _label_error(assigned, parts[-2], names) if assigned else None
        if name in seen and name in divisions[split]:
            error = f"doubled: {seen[name]} may be meant as well; keep one of them"
        seen.setdefault(name, info.key)
        said = {number: division[name].split for number, division in divisions.items() if name in division}
        columns = split_columns(said)
        yield found.entry(info, parts[-2], assigned.split if assigned else "", error=error, meta=columns)
    for name, assigned in missing.items():
        yield found.missing(name, assigned.list_key, name.partition("/")[0], assigned.split)


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
