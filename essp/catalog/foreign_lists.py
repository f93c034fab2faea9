"""Lists of videos as other projects write them: each is read, or refused by its name with what to do instead.

mmaction2       a text file with `path label` lines, the label a number (also of TSN and MMAction)
Kinetics        a CSV file with label, youtube_id, time_start, time_end, split
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from essp.catalog.entry import Entry, Segment
from essp_common.errors import ConfigError
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.planning.splits import canonical_split
from essp_common.quantities import counted

_HOW = "write a CSV file with the columns path, label, split"
_HMDB = re.compile(r".+_test_split[0-9]\.txt$")
_UCF101 = re.compile(r"(trainlist|testlist)0[1-3]\.txt|classind\.txt")
_KINETICS = frozenset({"youtube_id", "time_start", "time_end"})


def refuse_file(uri: str) -> None:
    """Raises `ConfigError` for a source that is one file of a kind that is not read."""
    name = uri.rpartition("/")[2].lower()
    suffix = PurePosixPath(name).suffix
    if name.endswith((".tar", ".tar.gz", ".tgz")):
        raise ConfigError(f"{uri}: archives (webdataset) are not read; unpack it (tar -xf), then {_HOW}")
    if suffix in (".zip", ".rar", ".7z", ".gz", ".zst"):
        raise ConfigError(f"{uri}: archives are not read; unpack it, and give the folder of class folders, or {_HOW}")
    if suffix in (".npz", ".npy", ".h5", ".hdf5", ".mat", ".pt", ".pth", ".tfrecord", ".mdb", ".lmdb"):
        raise ConfigError(f"{uri}: arrays and records are not read, only video files; {_HOW} of the videos")
    if _HMDB.search(name):
        raise ConfigError(
            f"{uri}: lists of HMDB51 (one file for each class) are not read; to take all videos for training, give "
            f"their folder and --kind folders, or {_HOW}"
        )
    if _UCF101.fullmatch(name):
        raise ConfigError(
            f"{uri} is one of the lists of UCF-101; give the folder that holds lists and videos, and say which "
            "division: --kind ucf101 --split 1"
        )
    if suffix in (".json", ".jsonl"):
        raise ConfigError(f"{uri}: lists in JSON (Something-Something, ActivityNet) are not read; {_HOW}")
    if suffix in (".pkl", ".pickle"):
        raise ConfigError(f"{uri}: pickles (mmaction2) are not read, since they can run code; {_HOW}")
    if suffix in (".parquet", ".xlsx", ".xls"):
        raise ConfigError(f"{uri}: lists of this format are not read; {_HOW}")


def refuse_folder(uri: str, keys: Sequence[str], videos: int) -> None:
    """Raises `ConfigError` for a folder whose lists or archives would be passed over."""
    if lists := [key for key in keys if _HMDB.search(key)]:
        raise ConfigError(
            f"{uri}: lists of HMDB51 ({lists[0]}) are not read; to take all videos for training, say --kind folders, "
            f"or {_HOW}"
        )
    if not videos and (archives := [key for key in keys if key.endswith((".tar", ".tar.gz", ".tgz"))]):
        raise ConfigError(f"{uri}: archives such as {archives[0]} (webdataset) are not read; unpack them (tar -xf)")
    pictures = [key for key in keys if key.lower().endswith((".jpg", ".jpeg", ".png"))]
    if not videos and pictures:
        raise ConfigError(
            f"{uri}: no video, but {counted(len(pictures), 'picture')} such as {pictures[0]}; ESSP reads videos, not "
            "folders of their frames: give it the videos that the frames were taken from"
        )


def refuse_lists_of_labels(uri: str, text: str) -> None:
    """Raises `ConfigError` for a CSV file of a known data set that cannot be read."""
    head = text.lstrip("\ufeff \r\n").partition("\n")[0]
    if head.count(";") and not head.count(","):
        raise ConfigError(
            f"{uri}: its fields are separated by semicolons (Jester, Something-Something v1, whose videos are folders "
            f"of pictures), not by commas; {_HOW}"
        )
    if head[:1] in "[{" and head:
        try:
            json.loads(text)
        except ValueError:
            return
        raise ConfigError(f"{uri}: this is JSON, not CSV; {_HOW}")


def text_list(uri: str, text: str, folder: str) -> Iterator[Entry]:
    """The videos of a list in the form of mmaction2. Raises `ConfigError` for lines of another form.

    `folder`: the URI below which the paths are.
    """
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) == 3 and all(field.lstrip("-").isdigit() for field in fields[1:]):
            raise ConfigError(
                f"{uri}, line {number}: `folder frames label` is mmaction2's list of folders of pictures; ESSP reads "
                f"videos: give it the list of videos (`path label`), or {_HOW}"
            )
        path, _, label = line.strip().rpartition(" ")
        if not path or not label.lstrip("-").isdigit():
            raise ConfigError(
                f"{uri}, line {number}: {line.strip()[:80]!r} is not `path label` with a number as label (mmaction2); "
                f"{_HOW}"
            )
        yield Entry(path.strip(), f"{folder}/{path.strip()}", label, "train")


def is_kinetics(header: Iterable[str]) -> bool:
    """Whether a CSV file with these columns (in lower case) is a list of Kinetics."""
    return set(header) >= _KINETICS


def kinetics(
    rows: Iterable[Mapping[str, str | None]], store: ObjectStore, videos: Iterable[ObjectInfo]
) -> Iterator[Entry]:
    """The videos of a list of Kinetics, wherever they lie below it: `ID_START_END.mp4`, cut as the usual scripts do, or
    `ID.mp4`, of which the segment is taken."""
    files = {PurePosixPath(info.key).stem: info for info in videos}
    for row in rows:
        video, label = (row.get("youtube_id") or "").strip(), (row.get("label") or "").strip()
        split = canonical_split(row.get("split") or "train")
        try:
            start_s, end_s = float(row.get("time_start") or ""), float(row.get("time_end") or "")
        except ValueError:
            yield Entry(video, "", label, split, error="segment: time_start and time_end are not seconds")
            continue
        error = None if label else "unlabelled: the list has no label for it (test lists of Kinetics have none)"
        cut = f"{video}_{start_s:06.0f}_{end_s:06.0f}"
        info = files.get(cut) or files.get(video)
        if info is None:
            yield Entry(cut, "", label, split, error=f"vanished: neither {cut} nor {video} is below the list")
            continue
        segment = None if PurePosixPath(info.key).stem == cut else Segment(start_s, end_s, "s")
        name = info.key if segment is None else f"{info.key}#{segment}"
        yield Entry(name, store.uri(info.key), label, split, info.size_bytes, info.etag, segment, error=error)
