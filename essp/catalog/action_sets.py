"""Action data sets as their authors publish them: folders of videos, with list files.

KTH          personNN_ACTION_dN in the name of each video; 00sequences.txt (Schuldt et al., 2004)
HMDB51       CLASS_test_splitN.txt for each class, three divisions (Kuehne et al., 2011)
Hollywood2   ClipSets/CLASS_train.txt and CLASS_test.txt, several classes a video (Marszalek et al., 2009)
CCV          trainVidID.txt and trainLabel.txt with 20 columns, several classes a video (Jiang et al., 2011)
two levels   root/[split/]group/class/video, as the categories of FCVID (Jiang et al., 2018)

Each data set has a function that recognises it, a function that lists it, and a `Layout` at the end of this module. The
first returns what identifies the data set, or an empty text if the source is something else.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import nan
from pathlib import PurePosixPath
from typing import NamedTuple

from essp.catalog.entry import Entry, Segment
from essp.catalog.folder_source import split_columns, split_folders
from essp.catalog.found import Found, few
from essp.catalog.layout import Layout
from essp_common.errors import ConfigError
from essp_common.objects.keys import stem_and_suffix
from essp_common.objects.port import ObjectInfo
from essp_common.quantities import counted

_KTH = re.compile(r"person(\d\d)_([a-z]+)_(d\d)(?:_uncomp)?")
_KTH_SEQUENCE = re.compile(r"(person\d\d_[a-z]+_d\d)\s+frames\b(.*)")
_KTH_PIECE = re.compile(r"\s*([1-9][0-9]{0,8})\s*-\s*([1-9][0-9]{0,8})\s*")
_KTH_VALIDATION = frozenset((1, 4, 19, 20, 21, 23, 24, 25))
_KTH_TEST = frozenset((2, 3, 5, 6, 7, 8, 9, 10, 22))
_HMDB_LIST = re.compile(r"(.+)_test_split(\d)\.txt")
_HMDB_NAME = re.compile(r"(.+)_[a-z]_[a-z]{2}_np\d_[a-z]{2}_[a-z]{3}_\d+")
_HMDB_SPLITS = {"0": "", "1": "train", "2": "test"}
_CLIP_SET = re.compile(r"(.+)_(autotrain|train|test)\.txt")
_CLIP_MARKS = frozenset(("1", "-1", "0"))
_CLIP = re.compile(r"(?:action|scene)clip(?:auto)*(?:autotrain|train|test)\d+")
_CCV = ("trainvidid.txt", "trainlabel.txt", "testvidid.txt", "testlabel.txt")
_CCV_CLASSES = (
    *("Basketball", "Baseball", "Soccer", "IceSkating", "Skiing", "Swimming", "Biking", "Cat", "Dog", "Bird"),
    *("Graduation", "Birthday", "WeddingReception", "WeddingCeremony", "WeddingDance", "MusicPerformance"),
    *("NonMusicPerformance", "Parade", "Beach", "Playground"),
)


# --- KTH ---


def is_kth(found: Found) -> str:
    named = sum(_KTH.fullmatch(stem_and_suffix(info.key)[0]) is not None for info in found.videos)
    if 2 * named <= len(found.videos):
        return ""
    sequences = ", cut as 00sequences.txt says" if _sequences_of(found) else ", whole (there is no 00sequences.txt)"
    return f"{counted(named, 'video')} named personNN_ACTION_dN{sequences}; the split by person is the authors' split"


def kth(found: Found) -> Iterator[Entry]:
    """The videos, or the sequences in them, in the authors' division of the 25 persons. A person is a group."""
    key = _sequences_of(found)
    matches = (_KTH_SEQUENCE.match(line) for line in (found.lines(key) if key else ()))
    sequences = {match[1]: match[2] for match in matches if match}
    there = set()
    for info in found.videos:
        match = _KTH.fullmatch(stem_and_suffix(info.key)[0])
        if match is None:
            yield found.entry(info, error="unlabelled: its name does not have the form personNN_ACTION_dN")
            continue
        person, action, scene = int(match[1]), match[2], match[3]
        split = "validation" if person in _KTH_VALIDATION else "test" if person in _KTH_TEST else "train"
        whole = found.entry(info, action, split, group=f"person{person:02}", meta={"scenario": scene})
        name = f"person{person:02}_{action}_{scene}"
        there.add(name)
        frames = sequences.get(name)
        if frames is None:
            yield whole
            continue
        for piece in frames.rstrip(", ").split(","):
            bounds = _KTH_PIECE.fullmatch(piece)
            if bounds and int(bounds[1]) <= int(bounds[2]):
                yield _cut(whole, Segment(int(bounds[1]) - 1, int(bounds[2]) - 1, "frame"))
            else:
                yield replace(
                    whole, id=f"{whole.id}#{piece.strip()}", error=f"segment: {key}: {piece!r} is not a range of frames"
                )
    for name in sequences:
        if name not in there:
            yield found.missing(name, key or "", name.split("_")[1])


def _sequences_of(found: Found) -> str | None:
    return found.named("00sequences.txt")


def _cut(entry: Entry, segment: Segment) -> Entry:
    return replace(entry, id=f"{entry.id}#{segment}", segment=segment)


# --- HMDB51 ---


def is_hmdb51(found: Found) -> str:
    lists = [key for key in found.lists if _HMDB_LIST.fullmatch(PurePosixPath(key).name)]
    which = f"read for division {found.split}"
    return f"{counted(len(lists), 'list')} named CLASS_test_splitN.txt, {which}" if lists else ""


def hmdb51(found: Found) -> Iterator[Entry]:
    """The videos of the classes that have a list. Videos marked 0 belong to no split. The clips of one film are a
    group. The columns `split_1`, `split_2`, ... hold the split in each division, including the division of
    `--split`."""
    matches = [(key, match) for key in found.lists if (match := _HMDB_LIST.fullmatch(PurePosixPath(key).name))]
    numbers = sorted({int(match[2]) for _, match in matches})
    if found.split not in numbers:
        there = ", ".join(map(str, numbers)) or "none"
        raise ConfigError(
            f"{found.uri} has no HMDB51 list for division {found.split}; divisions found: {there}",
            field="--split",
            code="unknown",
        )
    lines = [(int(match[2]), key, line) for key, match in matches for line in _hmdb_lines(found, key, match[1])]
    videos = _hmdb_videos(found, [line for _, _, line in lines])
    splits: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for number, _, line in sorted(lines, key=lambda each: each[0]):
        if (info := videos.get(line.name)) is not None:
            splits[info.key][number] = line.split
    for number, key, line in lines:
        if number != found.split:
            continue
        info = videos.get(line.name)
        if info is None:
            yield found.missing(line.name, key, line.class_name, line.split)
            continue
        columns, group = split_columns(splits[info.key]), _film(info, line.class_name)
        yield found.entry(info, line.class_name, line.split, group=group, meta=columns)


class _Listed(NamedTuple):
    """A line of a list of HMDB51."""

    class_name: str
    file: str
    split: str

    @property
    def name(self) -> str:
        return f"{self.class_name}/{self.file}"


def _hmdb_videos(found: Found, lines: Sequence[_Listed]) -> dict[str, ObjectInfo]:
    """The video of each line: the video in the folder of its class, or else the only video with this name."""
    there = found.matching(line.name for line in lines)
    files = {line.name: line.file for line in lines if line.name not in there}
    elsewhere = found.matching(files.values())
    return there | {name: elsewhere[file] for name, file in files.items() if file in elsewhere}


def _hmdb_lines(found: Found, key: str, class_name: str) -> Iterator[_Listed]:
    for line in found.lines(key):
        name, *mark = line.rsplit(maxsplit=1)
        split = _HMDB_SPLITS.get(mark[0]) if mark else None
        if split is None:
            raise ConfigError(f"{found.store.uri(key)}: {line[:80]!r} is not `video 0`, `video 1` or `video 2`")
        yield _Listed(class_name, name, split)


def _film(info: ObjectInfo, class_name: str) -> str:
    match = _HMDB_NAME.fullmatch(PurePosixPath(info.key).stem)
    return match[1].removesuffix(class_name).rstrip("_") if match else ""


# --- Hollywood2 ---


def is_hollywood2(found: Found) -> str:
    lists = _clip_sets(found)
    if not lists or not any(_CLIP.fullmatch(stem_and_suffix(info.key)[0]) for info in found.videos):
        return ""
    classes = sorted({name for name, _, _ in lists})
    return f"lists CLASS_train.txt and CLASS_test.txt of clips for {few(classes)}"


def hollywood2(found: Found) -> Iterator[Entry]:
    """Each clip once, with every class that lists it with a 1. Automatically labelled clips are in the split
    `autotrain`."""
    marks: defaultdict[str, dict[str, str]] = defaultdict(dict)
    splits: dict[str, tuple[str, str]] = {}
    wrong: dict[str, str] = {}
    for class_name, split, key in _clip_sets(found):
        for line in found.lines(key):
            clip, *rest = line.split()
            if len(rest) != 1 or rest[0] not in _CLIP_MARKS:
                raise ConfigError(f"{found.store.uri(key)}: {line[:80]!r} is not `clip 1` or `clip -1`")
            if splits.setdefault(clip, (split, key))[0] != split:
                wrong[clip] = f"split: {splits[clip][1]} and {key} both name it"
            if marks[clip].setdefault(class_name, rest[0]) != rest[0]:
                wrong[clip] = f"mislabelled: {key} lists it with both {marks[clip][class_name]} and {rest[0]}"
    for clip, (split, key) in splits.items():
        names = tuple(sorted(name for name, mark in marks[clip].items() if mark == "1"))
        info = found.called(clip)
        if info is None:
            yield found.missing(clip, key, names[0] if names else "", split, [clip])
        elif clip in wrong:
            yield found.entry(info, names[0] if names else "", split, error=wrong[clip])
        elif not names:
            yield found.entry(info, "", split, error="unlabelled: no class lists it with a 1")
        else:
            yield found.entry(info, names[0], split, labels=names)


def _clip_sets(found: Found) -> list[tuple[str, str, str]]:
    """(class, split, list) for each class list."""
    matches = ((key, _CLIP_SET.fullmatch(PurePosixPath(key).name)) for key in found.lists)
    return [(match[1], match[2], key) for key, match in matches if match and match[1] not in ("actions", "scenes")]


# --- CCV ---


def is_ccv(found: Found) -> str:
    names = {PurePosixPath(key).name.lower() for key in found.lists}
    return "trainVidID.txt and trainLabel.txt with a column for each of 20 classes" if names >= set(_CCV[:2]) else ""


def ccv(found: Found) -> Iterator[Entry]:
    """The videos of both lists, with every class whose column has a 1."""
    for split, ids, labels in (("train", *_CCV[:2]), ("test", *_CCV[2:])):
        names, rows = found.named(ids), found.named(labels)
        if names is None and rows is None:
            continue
        if names is None or rows is None:
            raise ConfigError(f"{found.uri}: {names or rows} exists without {labels if rows is None else ids}")
        videos, marks = [line.split()[0] for line in found.lines(names)], found.lines(rows)
        if len(videos) != len(marks):
            raise ConfigError(f"{found.uri}: {names} has {len(videos)} lines, but {rows} has {len(marks)}")
        for number, (video, line) in enumerate(zip(videos, marks, strict=True), 1):
            columns = line.split()
            if len(columns) != len(_CCV_CLASSES):
                raise ConfigError(f"{found.store.uri(rows)}, line {number}: {len(columns)} columns instead of 20")
            odd = next((mark for mark in columns if _number(mark) not in (0, 1)), None)
            if odd is not None:
                raise ConfigError(f"{found.store.uri(rows)}, line {number}: {odd[:80]!r} is neither 0 nor 1")
            shown = tuple(name for name, mark in zip(_CCV_CLASSES, columns, strict=True) if _number(mark) == 1)
            info = found.called(video)
            if info is None:
                yield found.missing(video, names, shown[0] if shown else "", split, [video])
            elif not shown:
                yield found.entry(info, "", split, error=f"unlabelled: {rows} has no 1 for it")
            else:
                yield found.entry(info, shown[0], split, labels=shown)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return nan


# --- classes in groups ---


def is_two_level(found: Found) -> str:
    """Never automatically: a folder inside a class folder may mean anything, for example a recording."""
    return ""


def two_level(found: Found) -> Iterator[Entry]:
    """Classes in group folders, which may be in split folders. The group is in the metadata and distinguishes classes
    of one name."""
    splits = split_folders((info.key for info in found.videos), levels=2)

    def split_and_folders(info: ObjectInfo) -> tuple[str, list[str]]:
        top, *below = info.key.split("/")
        if not splits:
            return "train", [top, *below][:-1][:2]
        return splits.get(top, ""), below[:-1][:2] if top in splits else []

    above: defaultdict[str, set[str]] = defaultdict(set)
    for info in found.videos:
        _, folders = split_and_folders(info)
        if len(folders) == 2:
            above[folders[1]].add(folders[0])
    for info in found.videos:
        name, folders = split_and_folders(info)
        if len(folders) < 2:
            yield found.entry(info, "", name, error="unlabelled: it is not in a class folder inside a group folder")
            continue
        upper, lower = folders
        class_name = lower if len(above[lower]) == 1 else f"{upper}/{lower}"
        yield found.entry(info, class_name, name, meta={"class_group": upper})


HMDB51 = Layout("hmdb51", "lists CLASS_test_splitN.txt", is_hmdb51, hmdb51)
HOLLYWOOD2 = Layout("hollywood2", "lists CLASS_train.txt of clips", is_hollywood2, hollywood2)
CCV = Layout("ccv", "trainVidID.txt and trainLabel.txt", is_ccv, ccv)
KTH = Layout("kth", "videos named personNN_ACTION_dN", is_kth, kth)
TWO_LEVEL = Layout(
    "two-level",
    "videos in GROUP/CLASS/, only with --source two-level",
    is_two_level,
    two_level,
    files=(),
    complete=True,
)
