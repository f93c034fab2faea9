"""Folders of videos as the source of a catalog: class folders, and UCF-101 with its lists.

Both use the listing of an object store, so a bucket works as well as a directory.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import NamedTuple

from essp.catalog.entry import Entry
from essp.catalog.foreign_lists import lists_of_paths
from essp.catalog.found import Found, composed, few
from essp.catalog.json_lists import split_named
from essp.catalog.layout import ARCHIVES, Layout
from essp.catalog.mmaction2 import lists_in
from essp_common.catalog.split_names import SPLIT_NAMES, canonical_split
from essp_common.errors import ConfigError
from essp_common.objects.keys import stem_and_suffix
from essp_common.objects.port import ObjectInfo
from essp_common.quantities import counted

_LIST = re.compile(r"(train|val|trainval|test)list0*(\d+)\.txt$", re.IGNORECASE)
_INDEX = "classInd.txt"
_LISTED = re.compile(r"(.+?)(?:\s+([0-9]{1,9}))?")
_UCF_NAME = re.compile(r"v_(.+_g[0-9]+)_c[0-9]+")
_NUMBERED = re.compile(r"([0-9]{1,9})\s+(\S.*)")


def _is_index(key: str) -> bool:
    return key.lower().endswith(_INDEX.lower())


class Place(NamedTuple):
    """What the folders of a video say about it."""

    class_name: str
    split: str
    """Empty: nothing."""
    error: str | None = None


def is_folders(found: Found) -> str:
    if found.given or not found.videos:
        return ""
    if found.frames and not _are_in_class_folders(list(found.frames)):
        return ""
    labelled = any("/" in info.key for info in found.videos)
    what = "folder of frames" if found.frames else "video"
    return f"{counted(len(found.videos), what)} in class folders" if labelled else "videos without class folders"


def _are_in_class_folders(folders: Sequence[str]) -> bool:
    """Whether these folders of pictures are surely videos, in class folders. In a data set of images, the folders of
    pictures are the classes."""
    splits = split_folders(folders, levels=1)
    if not splits and all(folder.partition("/")[0].lower() in SPLIT_NAMES for folder in folders):
        return False
    return all(place.class_name for place in places(folders, splits))


def class_folders(found: Found) -> Iterator[Entry]:
    """Class folders, which may be in split folders; without split folders, all videos are for training.

    Videos without any folder are unlabelled. If there are class folders, such videos are a problem.
    """
    splits = split_folders((info.key for info in found.videos), levels=1)
    if meant := {top: split for top, split in splits.items() if top.lower() not in SPLIT_NAMES}:
        found.notes.append(f"top folders are used as splits: {few([f'{t} as {s}' for t, s in meant.items()])}")
    unlabelled = not any("/" in info.key for info in found.videos)
    for info in found.videos:
        place = _place(info.key, splits, unlabelled)
        split = place.split if splits or not place.class_name else "train"
        yield grouped(found.entry(info, place.class_name, split, error=place.error))


def grouped(entry: Entry) -> Entry:
    """The entry with the group in a UCF-101 file name: `v_Run_g08_c01` is a part of the recording `Run_g08`."""
    match = _UCF_NAME.fullmatch(stem_and_suffix(entry.id)[0])
    return replace(entry, group=match.group(1)) if match else entry


def places(keys: Sequence[str], splits: Mapping[str, str]) -> Iterator[Place]:
    """What the folders of each of these videos say, if they are class folders, which may be in split folders."""
    unlabelled = not any("/" in key for key in keys)
    return (_place(key, splits, unlabelled) for key in keys)


def _place(key: str, splits: Mapping[str, str], unlabelled: bool) -> Place:
    """`unlabelled`: no video is in any folder."""
    top, *rest = key.split("/")
    if not rest:
        return Place("", "", None if unlabelled else "unlabelled: it is not in a class folder")
    if not splits:
        return Place(top, "")
    if top not in splits:
        return Place("", "", "unlabelled: it is outside the split folders")
    if len(rest) > 1:
        return Place(rest[0], splits[top])
    return Place("", splits[top], f"unlabelled: it is in {top}, but not in a class folder")


def split_folders(keys: Iterable[str], levels: int) -> Mapping[str, str]:
    """The top folders that are splits, with the split of each. `levels`: the depth of folders down to the class folder,
    which is included.

    A class may be called `train`. So folders with the names of splits are splits in two cases: all videos in one of
    them are at the depth of classes, or there are no other folders and any video is at this depth. A stray file next to
    the class folders therefore does not turn classes into splits. Folders such as `train_256` and `val_256` are splits
    if there are no other folders and all videos are at this depth.
    """
    deep: dict[str, set[bool]] = {}
    """Top folder -> whether its videos are in class folders."""
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
    """The name of a folder inside the class folder that is named like a split; empty: there is no such folder."""
    folders = entry.id.split("/")[:-1]
    begin = folders.index(entry.class_name) + 1 if entry.class_name else len(folders)
    found = next((place for place in range(begin, len(folders)) if folders[place].lower() in SPLIT_NAMES), None)
    return "" if found is None else "/".join(folders[: found + 1])


def is_ucf101(found: Found) -> str:
    if found.given or not (lists := _ucf_lists(found)):
        return ""
    return f"{counted(len(lists), 'list')} such as {lists[0]}, read for division {found.split}"


def _ucf_lists(found: Found) -> list[str]:
    return [key for key in found.lists if _LIST.search(key) or _is_index(key)]


def ucf101(found: Found) -> Iterator[Entry]:
    """Videos by class folder, with their split in division `found.split`; unlisted videos have no split. The columns
    `split_1`, `split_2`, ... hold the split in each division, this one too.

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
            f"no list of division {split} names a training video; such a list is called trainlist{split:02}.txt"
        )
    names, missing = _class_names(found, lists), dict(divisions[split])
    meant = found.matching(name for division in divisions.values() for name in division)
    listed = {info.key: name for name, info in meant.items()}
    seen: dict[str, str] = {}
    for info in found.videos:
        parts = PurePosixPath(info.key).parts
        if len(parts) < 2:
            yield grouped(found.entry(info, error="unlabelled: it is not in a class folder"))
            continue
        name = listed.get(info.key) or "/".join(parts[-2:])
        assigned = missing.pop(name, None)
        error = _label_error(assigned, parts[-2], names) if assigned else None
        if name in seen and name in divisions[split]:
            error = f"doubled: the list may also mean {seen[name]}; keep one of them"
        seen.setdefault(name, info.key)
        said = {number: division[name].split for number, division in divisions.items() if name in division}
        columns = split_columns(said)
        yield grouped(found.entry(info, parts[-2], assigned.split if assigned else "", error=error, meta=columns))
    for name, assigned in missing.items():
        yield grouped(found.missing(name, assigned.list_key, name.partition("/")[0], assigned.split))


def split_columns(splits: Mapping[int, str]) -> dict[str, str]:
    """The columns with the split of a video in each division, by number; `data.split_column` reads them."""
    return {f"split_{number}": split for number, split in splits.items()}


@dataclass(frozen=True, slots=True)
class _Assigned:
    """What the list of a split says about a video."""

    split: str
    label: int | None
    list_key: str
    other: str = ""
    """A list that assigns it another split; empty: there is no such list."""


def _division(found: Found, lists: Sequence[str], split: int) -> dict[str, _Assigned]:
    """`class/file` -> what the lists of this division say about it. A list named after both train and val says least
    about the split, so it counts only for videos that no other list names."""
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
    """Label number -> class, from classInd.txt if there is one."""
    names: dict[int, str] = {}
    for key in lists:
        for line in found.lines(key) if _is_index(key) else ():
            match = _NUMBERED.fullmatch(line)
            if match is None or names.setdefault(int(match[1]), match[2]) != match[2]:
                what = "another name for an earlier number" if match else "not `number class`"
                raise ConfigError(f"{found.store.uri(key)}: {line[:80]!r} is {what}")
    return names


def _label_error(assigned: _Assigned, folder: str, names: dict[int, str]) -> str | None:
    if assigned.other:
        return f"split: {assigned.other} and {assigned.list_key} both name it"
    named = folder if assigned.label is None or not names else names.get(assigned.label, f"not in {_INDEX}")
    if composed(named) == composed(folder):
        return None
    return f"mislabelled: {assigned.list_key} gives it label {assigned.label} ({named}), but it is in {folder}"


def without_labels(classes: Set[str]) -> list[str]:
    """What to do about a source without any label. `classes`: of its usable videos."""
    if classes != {""}:
        return []
    return [
        "the videos are unlabelled, so only prediction is possible; to train, put videos in class folders "
        "(FOLDER/CLASS/video.mp4), or give a CSV file with the columns path and label"
    ]


def _notes(found: Found, entries: Iterable[Entry], empty: Sequence[str]) -> list[str]:
    """Likely mistakes in class folders."""
    usable = 0
    with_video, classes, splits, below = set[str](), set[str](), set[str](), set[str]()
    for entry in entries:
        with_video.add(entry.id.rpartition("/")[0])
        if entry.error is None:
            usable += 1
            classes.add(entry.class_name)
            splits.add(entry.split)
            below.add(split_below(entry))
    notes = without_labels(classes)
    folders = {key.rpartition("/")[0] for key in found.others} | set(empty)
    if bare := sorted(folders - _with_those_above(with_video)):
        first = ", ".join(bare[:10]) + (", ..." if len(bare) > 10 else "")
        hold = "folder holds" if len(bare) == 1 else "folders hold"
        notes.append(f"{len(bare):,} {hold} no video, so they are not classes: {first}")
    if within := sorted(below - {""}):
        notes.append(
            f"folders named like splits are inside class folders, so they are not used as splits: {few(within)}; give "
            "the folder above them, put them above the class folders (SPLIT/CLASS/video.mp4), or give a CSV "
            "file with the columns path, label, split"
        )
    if like_splits := sorted(name for name in classes if name.lower() in SPLIT_NAMES):
        notes.append(
            f"classes are named like splits: {', '.join(like_splits)}; if they are splits, put their videos in class "
            "folders (SPLIT/CLASS/video.mp4)"
        )
    lists = [*lists_in(found), *lists_of_paths(found)]
    if lists:
        notes.append(
            f"the folder has lists that are not read: {few(lists)}; if they name the classes, give one of them as the "
            "source, or use --source mmaction2 for all lists of `path label` lines; to add columns of a CSV file, such "
            "as `group`, to the class folders, call it metadata.csv"
        )
    if packed := [key for key in found.others if key.endswith(ARCHIVES)]:
        notes.append(
            f"the folder has archives that are not read: {few(packed)}; if they hold the "
            "videos, use --source webdataset"
        )
    if _looks_two_level(found.videos):
        notes.append(
            "all videos are two folders deep, and the upper folder is the class; if the lower one is, use "
            "--source two-level"
        )
    classes -= {""}
    if not notes and usable > 1 and len(classes) == len(splits) == 1:
        notes.append(
            f"all videos have one class, {min(classes)!r}, the name of their folder; if the folders in it are the "
            "classes, give that folder as the source; if a list names the classes, give a CSV file with the columns "
            " path and label"
        )
    return notes


def _with_those_above(folders: Iterable[str]) -> set[str]:
    """These folders and all that contain one of them, up to the source itself."""
    found = {""}
    for folder in folders:
        while folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def _looks_two_level(videos: Collection[ObjectInfo]) -> bool:
    """Whether all videos are two folders deep, in several folders inside several other folders."""
    folders = set[tuple[str, ...]]()
    for info in videos:
        *above, _ = info.key.split("/")
        if len(above) != 2 or above[0].lower() in SPLIT_NAMES:
            return False
        folders.add(tuple(above))
    if split_folders((info.key for info in videos), levels=1):
        return False
    return len({upper for upper, _ in folders}) < len(folders) < len(videos)


UCF101 = Layout("ucf101", "trainlistNN.txt, testlistNN.txt", is_ucf101, ucf101)
FOLDERS = Layout("folders", "videos in folders", is_folders, class_folders, files=(), complete=True, notes=_notes)
