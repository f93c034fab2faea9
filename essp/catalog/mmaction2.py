"""Lists of mmaction2 and TSN: a text file with a line for each video and numeric labels. SlowFast, PyTorchVideo and
VideoMAE write such lists as `.csv` files without commas.

    path                      no label: all that is needed to predict
    path label                one label
    path label label ...      several
    path frames label ...     the number of frames of the video, and then its labels

A path may also name a folder of frames. If a line says fewer frames than there are, the first ones are used.

The last two forms look the same. If lines have several numbers, some videos are therefore opened: if the first number
is the frame count of most of them, it is not a label. A list that remains ambiguous is refused.

The name of a list says its split. All lists in a folder are read if `--source mmaction2` names the folder. A
`label_map*.txt` in the same folder has the names of the classes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from essp.catalog.entry import Entry, Segment
from essp.catalog.found import Found, few, is_video, lines_of
from essp.catalog.json_lists import split_named
from essp.catalog.layout import Layout
from essp_common.errors import ConfigError
from essp_common.objects.documents import text_of
from essp_common.objects.port import ObjectInfo

_HOW = "write a CSV file with the columns path, label, split"
_LABEL = re.compile(r"-?[0-9]{1,9}")
_LABEL_MAP = re.compile(r"label_map.*\.txt")
_HEADER_BYTES = 4096
_LOOKED_AT = 8
"""The number of videos that are opened to find out what the first number is."""
_REGULAR = 0.95
"""If this share of lines has one length, other lengths are mistakes: videos seldom have equally many labels."""


def is_mmaction2(found: Found) -> str:
    """A folder is never recognised: class folders may also contain lists."""
    if not found.given or not (found.given.lower().endswith(".txt") or _is_list(found, found.given)):
        return ""
    map_key = _label_map(found, found.given)
    names = f"; class names from {map_key}" if map_key else ""
    return f"a text file with `path label` lines{names}; split: {split_named(found.given) or 'train'}"


def lists_in(found: Found) -> list[str]:
    """The lists in a folder."""
    keys = [*found.with_suffix(".txt"), *found.with_suffix(".csv")]
    return sorted(key for key in keys if _is_list(found, key))


def mmaction2(found: Found) -> Iterator[Entry]:
    """The videos of a list, or of all lists in a folder, anywhere below the folder.

    Raises `ConfigError` for lines of another form, and for numbers that may be frames or labels.
    """
    lists = [found.given] if found.given else lists_in(found)
    if not lists:
        raise ConfigError(
            f"{found.uri} has no text file with `path label` lines (mmaction2)", field="--source", code="not_found"
        )
    untold = [key for key in lists if not split_named(key)]
    if untold and len(untold) < len(lists):
        found.notes.append(f"lists without a split in their names: {few(untold)}; their videos are for training")
    for key in lists:
        yield from _videos(found, key)


def _is_list(found: Found, key: str) -> bool:
    """Whether the beginning of a file looks like a list. CSV does not."""
    start = text_of(found.store.get(key, 0, _HEADER_BYTES), "replace")
    path, numbers = _path_and_numbers(next(filter(None, lines_of(start)), ""))
    return bool(numbers) and "," not in path and found.names_video(path)


def _videos(found: Found, key: str) -> Iterator[Entry]:
    split, map_key = split_named(key) or "train", _label_map(found, key)
    names = _class_names(found, map_key) if map_key else []
    lines = list(_lines(found, key))
    there = found.matching(line.path for line in lines)
    with_frames = _first_is_frames(found, key, lines, there, names)
    if with_frames:
        found.notes.append(
            f"the first number of a line is the number of frames of its video, not a label, as in "
            f"{lines[0].text[:80]!r}"
        )
    for line in lines:
        labels = tuple(dict.fromkeys(line.numbers[1:] if with_frames else line.numbers))
        info = there.get(line.path)
        if not line.numbers:
            lacks = f"line {line.place} of {key} has no label"
            yield found.missing(line.path, key) if info is None else found.entry(info, "", split, unlabelled=lacks)
            continue
        if not labels:
            what = f"unlabelled: line {line.place} has no label after the number of frames"
            yield Entry(line.path, "", "", split, error=what) if info is None else found.entry(info, error=what)
            continue
        none = next((label for label in labels if label < 0 or (names and label >= len(names))), None)
        classes = ("",) if none is not None else tuple(names[label] if names else str(label) for label in labels)
        if info is None:
            yield found.missing(line.path, key, classes[0], split)
        elif none is not None:
            yield found.entry(info, "", split, error=f"unlabelled: line {line.place}: there is no class {none}")
        else:
            several = classes if len(classes) > 1 else ()
            part, problem = _listed_frames(found, info, line.numbers[0] if with_frames else 0)
            yield found.entry(info, classes[0], split, labels=several, segment=part, error=problem)


def _listed_frames(found: Found, info: ObjectInfo, listed: int) -> tuple[Segment | None, str | None]:
    """The part of a folder of frames that a list means, and what is wrong with it. `listed`: 0 if it does not say."""
    frames = found.frames.get(info.key)
    if frames is None or not listed or listed == frames.length:
        return None, None
    if listed > frames.length:
        return None, f"missing: {listed} frames are listed, and the folder has {frames.length}"
    return Segment(0, listed - 1, "frame"), None


class _Line(NamedTuple):
    place: int
    text: str
    path: str
    numbers: Sequence[int]
    """The numbers after the path; none: it has no label."""


def _lines(found: Found, key: str) -> Iterator[_Line]:
    uri = found.store.uri(key)
    for place, text in enumerate(lines_of(found.text(key)), 1):
        if not text:
            continue
        path, numbers = _path_and_numbers(text)
        if not path or not (numbers or is_video(path) or found.frames):
            raise ConfigError(
                f"{uri}, line {place}: {text[:80]!r} is not `path label` with a numeric label (mmaction2); {_HOW}"
            )
        if not (found.frames or is_video(path)):
            raise ConfigError(
                f"{uri}, line {place}: {path[:80]!r} does not have the name of a video, and there are no folders of "
                f"frames; give a list of videos (`path label`), or {_HOW}"
            )
        yield _Line(place, text, path, numbers)


def _path_and_numbers(line: str) -> tuple[str, list[int]]:
    """The path, which ends before the numbers at the end of a line, and these numbers."""
    path, numbers = line, list[int]()
    while len(parts := path.rsplit(maxsplit=1)) > 1 and _LABEL.fullmatch(parts[1]):
        path, numbers = parts[0], [int(parts[1]), *numbers]
    return path, numbers


def _first_is_frames(
    found: Found, key: str, lines: Sequence[_Line], there: Mapping[str, ObjectInfo], names: Sequence[str]
) -> bool:
    """Whether the first of several numbers is the number of frames. Raises `ConfigError` if it may also be a label."""
    several = [line for line in lines if len(line.numbers) > 1 and line.path in there]
    if not several:
        return False
    if found.frames and all(len(line.numbers) == 2 for line in lines):
        return True  # lists of frames have both numbers
    looked_at = several[:: -(-len(several) // _LOOKED_AT)]
    if found.frames:
        counts: Sequence[int] = [found.frames[there[line.path].key].length for line in looked_at]
    else:
        counts = found.frame_counts([found.entry(there[line.path]) for line in looked_at])
    fits = [_about(line.numbers[0], count) for line, count in zip(looked_at, counts, strict=True) if count]
    if _mostly(fits):
        return True
    if names and _mostly(line.numbers[0] >= len(names) > max(line.numbers[1:]) for line in several):
        return True  # the files were re-encoded at another rate
    (length, alike), *_ = Counter(len(line.numbers) for line in lines).most_common(1)
    ascending = all(line.numbers == sorted(set(line.numbers)) for line in several)
    if not any(fits) and (length == 1 or alike < _REGULAR * len(lines) or (fits and ascending)):
        return False
    raise ConfigError(
        f"{found.store.uri(key)}: lines have {length} numbers, as {several[0].text[:80]!r}, and the first number may "
        f"be the number of frames or a label: it is that for {sum(fits)} of the {len(fits)} videos that could be "
        "opened. Write `path label` in each line, or a CSV file with the columns path, labels (separated by `|`), split"
    )


def _mostly(answers: Iterable[bool]) -> bool:
    given = list(answers)
    return sum(given) > len(given) / 2


def _about(listed: int, frames: int) -> bool:
    """Whether a list means this number of frames: programs count the last frames of a file differently."""
    return abs(listed - frames) <= max(2, frames // 50)


def _class_names(found: Found, key: str) -> list[str]:
    """The class of each number. Raises `ConfigError` if a line is empty, which would shift the rest, or is there
    twice."""
    names = lines_of(found.text(key).rstrip())
    before = set[str]()
    for number, name in enumerate(names, 1):
        if not name or name in before:
            what = f"{name!r} is there twice" if name else "is empty"
            raise ConfigError(f"{found.store.uri(key)}, line {number}: {what}; write a line for each class")
        before.add(name)
    return names


def _label_map(found: Found, key: str) -> str | None:
    """The file with the class names of a list. Raises `ConfigError` if several files may be it."""
    folder = PurePosixPath(key).parent
    near = [other for other in found.others if _LABEL_MAP.fullmatch(PurePosixPath(other).name.lower())]
    beside = [other for other in near if PurePosixPath(other).parent == folder]
    if len(beside) > 1:
        raise ConfigError(
            f"{found.store.uri(key)}: its class names may be in any of {few(beside)}; keep the right one in "
            "the folder of the list, and move the others"
        )
    return beside[0] if beside else None


MMACTION2 = Layout(
    "mmaction2",
    "a text file, or a .csv without commas, with `path label` lines",
    is_mmaction2,
    mmaction2,
    csv=True,
)
