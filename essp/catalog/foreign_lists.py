"""Lists of videos in the formats of other projects: each is read, or refused by name with what to do instead.

Kinetics        a CSV file with label, youtube_id, time_start, time_end, split
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import PurePosixPath

from essp.catalog.entry import Entry, Segment
from essp.catalog.found import Found, lines_of
from essp.catalog.json_lists import split_named
from essp.catalog.layout import Layout
from essp.listed_files import PATH_COLUMNS
from essp_common.catalog.split_names import canonical_split
from essp_common.errors import ConfigError
from essp_common.objects.documents import CsvFile, CsvRow, delimiter_of, text_of
from essp_common.quantities import counted

_HOW = "write a CSV file with the columns path, label, split"
_UCF101 = re.compile(r"(train|val|trainval|test)list0[1-3]\.txt|classind\.txt")
_KINETICS = frozenset({"youtube_id", "time_start", "time_end"})
_JESTER = re.compile(r"[0-9]+;[^;,]+")
_HEADER_BYTES = 4096


def refuse_file(uri: str) -> None:
    """Raises `ConfigError` for a source that is a single file of an unsupported kind."""
    name = uri.rpartition("/")[2].lower()
    suffix = PurePosixPath(name).suffix
    if suffix in (".zip", ".rar", ".7z", ".gz", ".zst") and not name.endswith((".tar.gz", ".tar.zst")):
        raise ConfigError(f"{uri}: archives are not read; unpack it and give the folder of class folders, or {_HOW}")
    if suffix in (".npz", ".npy", ".h5", ".hdf5", ".mat", ".pt", ".pth", ".tfrecord", ".mdb", ".lmdb"):
        raise ConfigError(f"{uri}: arrays and records are not read, only video files; {_HOW} for the videos")
    if _UCF101.fullmatch(name):
        raise ConfigError(
            f"{uri} is one of the lists of UCF-101; give the folder that holds lists and videos, and say which "
            "division: --source ucf101 --split 1"
        )
    if suffix in (".pkl", ".pickle"):
        raise ConfigError(f"{uri}: pickles (mmaction2) are not read, since they can run code; {_HOW}")
    if suffix in (".xlsx", ".xls", ".ods"):
        raise ConfigError(f"{uri}: lists of this format are not read; {_HOW}")


def refuse_folder(found: Found) -> None:
    """Raises `ConfigError` for a folder of pictures that may be images, and not the frames of videos."""
    if found.frames:
        folder = next(iter(sorted(found.frames)))
        raise ConfigError(
            f"{found.uri}: no video, but {counted(len(found.frames), 'folder')} of pictures such as {folder}. If each "
            "of them has the frames of one video, say so: --source folders. For a data set of images, see `essp "
            "records build`"
        )
    pictures = [key for key in found.others if key.lower().endswith((".jpg", ".jpeg", ".png"))]
    if not found.videos and pictures:
        raise ConfigError(
            f"{found.uri}: no video, but {counted(len(pictures), 'picture')} such as {pictures[0]}; if they are the "
            "frames of one video, give the folder above this one, with --source folders"
        )


def refuse_lists_of_labels(uri: str, text: str) -> None:
    """Raises `ConfigError` for the CSV file of a known data set that is unsupported."""
    head = text.lstrip("\ufeff \r\n").partition("\n")[0]
    if _JESTER.fullmatch(head.strip()):
        raise ConfigError(
            f"{uri} is a list of Jester or Something-Something v1, whose videos are folders of pictures; {_HOW} for "
            "the videos that the pictures come from"
        )
    if head[:1] in "[{" and head:
        try:
            json.loads(text)
        except ValueError:
            return
        raise ConfigError(f"{uri}: this is JSON, not CSV; {_HOW}")


# --- Kinetics ---


def is_kinetics(found: Found) -> str:
    lists = _kinetics_lists(found)
    return f"{', '.join(lists)}: columns youtube_id, time_start, time_end" if lists else ""


def kinetics(found: Found) -> Iterator[Entry]:
    """The videos of the lists, anywhere below them: `ID_START_END.mp4`, already cut as the usual scripts do, or
    `ID.mp4`, from which the segment is taken. A YouTube video is a group."""
    for key in _kinetics_lists(found):
        file = CsvFile(found.store.uri(key), found.text(key))
        for row in file:
            yield _of_kinetics(found, key, file.columns, row)


def _of_kinetics(found: Found, key: str, columns: Sequence[str], row: CsvRow) -> Entry:
    values = row.values
    video, label = values["youtube_id"], values.get("label", "")
    split = canonical_split(values.get("split") or split_named(key) or "train")
    try:
        start_s, end_s = float(values["time_start"]), float(values["time_end"])
        wrong = row.problem or ("" if 0 <= start_s < end_s and isfinite(end_s) else "time_end is not after time_start")
    except ValueError:
        wrong = row.problem or "time_start and time_end are not seconds"
    if not video or wrong:
        what = f"segment: {wrong}" if video else "unnamed: its youtube_id is empty"
        return Entry(video or f"{key} line {row.line}", "", label, split, error=f"{what} ({key}, line {row.line})")
    unlabelled = "" if label else f"{key} has no label for it"
    cut = f"{video}_{start_s:06.0f}_{end_s:06.0f}"
    info = found.called(cut, video)
    if info is None:
        return found.missing(cut, key, label, split, (cut, video))
    further = {name: values[name.lower()] for name in columns if name and name.lower() not in ("label", "split")}
    entry = found.entry(info, label, split, group=video, meta=further, unlabelled=unlabelled)
    if PurePosixPath(info.key).stem == cut:
        return entry
    segment = Segment(start_s, end_s, "s")
    return replace(entry, id=f"{info.key}#{segment}", segment=segment)


def _kinetics_lists(found: Found) -> list[str]:
    return [key for key in found.with_suffix(".csv") if _header(found, key) >= _KINETICS]


def lists_of_paths(found: Found) -> list[str]:
    """The files in a folder that have the columns of users' own lists of videos, which no folder layout reads."""
    keys = [*found.with_suffix(".csv"), *found.with_suffix(".tsv")]
    return [key for key in keys if has_paths(found, key)]


def has_paths(found: Found, key: str) -> bool:
    """Whether a file has a column that names videos, as users' own lists have."""
    return not _header(found, key).isdisjoint(PATH_COLUMNS)


def _header(found: Found, key: str) -> frozenset[str]:
    """The columns of a CSV file, in lower case."""
    start = text_of(found.store.get(key, 0, _HEADER_BYTES), "replace")
    line = next(filter(None, lines_of(start)), "")
    columns = next(csv.reader([line], delimiter=delimiter_of(key, line), skipinitialspace=True), [])
    return frozenset(name.strip().lower() for name in columns)


KINETICS = Layout("kinetics", "CSV with the columns youtube_id, time_start, time_end", is_kinetics, kinetics, csv=True)
