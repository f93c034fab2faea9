"""Lists of segments in files: found by a model, or labelled by people.

Found:

    essp predict --segments --json   {"videos": [{"video", "segments": [{"class", "start_s", "end_s", "score"}]}]}
    segments.parquet                   of a predict job, or its folder; in frames
    ActivityNet's form                 {"results": {ID: [{"label", "score", "segment": [s, e]}]}}

Labelled:

    CSV, or tabs in .tsv               path | file | video; label | class; start_s and end_s | start_frame and end_frame
    ActivityNet's form                 {"database": {ID: {"annotations": [{"label", "segment": [s, e]}]}}}

Raises `ConfigError` for files in other formats, and for a segment whose end is not after its beginning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import PurePosixPath
from typing import Any, Literal

from essp.catalog.found import VIDEO_SUFFIXES
from essp.evaluation.segments import Stretch
from essp.listed_files import PATH_COLUMNS
from essp_common.artifacts import layout
from essp_common.artifacts.segments import read_segments
from essp_common.errors import ConfigError
from essp_common.objects.documents import CsvFile, read_json, text_of
from essp_common.objects.port import ObjectStore

Unit = Literal["s", "frames"]

_CLASS = ("label", "class")
_FORMS = "give the JSON of `essp predict --segments --json`, the output of a predict job, or ActivityNet's `results`"


@dataclass(frozen=True, slots=True)
class SegmentList:
    """The segments of a file."""

    where: str
    unit: Unit
    stretches: tuple[Stretch, ...]
    videos: frozenset[str]
    """All videos that the file mentions, including those without a segment."""
    subsets: Mapping[str, str] = field(default_factory=dict)
    """Video -> its subset of the data set, if the file gives one."""


def read_found(store: ObjectStore, key: str) -> SegmentList:
    """Read the segments found by a model."""
    where = store.uri(key)
    if not key.endswith(".json"):
        key = key if key.endswith(".parquet") else str(PurePosixPath(key) / layout.SEGMENTS)
        rows = read_segments(store, key)
        found = [Stretch(r.video_id, r.class_name, r.first_frame, r.last_frame + 1, r.score) for r in rows]
        return _checked(where, "frames", found, {stretch.video for stretch in found})
    document = _document(store, key)
    try:
        if isinstance(document, dict) and isinstance(document.get("videos"), list):
            return _checked(where, "s", _predicted(document["videos"]), {str(v["video"]) for v in document["videos"]})
        if isinstance(document, dict) and isinstance(document.get("results"), dict):
            return _checked(where, "s", _activitynet(document["results"]), set(document["results"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{where}: a segment cannot be read: {type(error).__name__}: {error}; {_FORMS}", code="unreadable"
        ) from error
    raise ConfigError(f"{where} has no segments; {_FORMS}", code="empty")


def read_labelled(store: ObjectStore, key: str) -> SegmentList:
    """Read labelled segments."""
    where = store.uri(key)
    if not key.endswith(".json"):
        return _csv(where, store.get(key))
    document = _document(store, key)
    database = document.get("database") if isinstance(document, dict) else None
    if not isinstance(database, dict):
        raise ConfigError(
            f"{where} has no `database`; give ActivityNet's JSON, or a CSV file of segments", code="missing"
        )
    try:
        annotations = {str(video): entry.get("annotations", []) for video, entry in database.items()}
        subsets = {str(video): str(entry["subset"]) for video, entry in database.items() if "subset" in entry}
        return _checked(where, "s", _activitynet(annotations), set(annotations), subsets)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{where}: an annotation cannot be read: {type(error).__name__}: {error}", code="unreadable"
        ) from error


def named_alike(found: SegmentList, labelled: SegmentList) -> SegmentList:
    """The found segments, with their videos named as in the labels; videos without labels keep their names.

    Two names refer to the same video if one of them, without video file suffixes, ends with the other: `clips/a/7.mp4`
    is `a/7`, and `v_7.mp4` is `7`, as ActivityNet's files are named. Raises `ConfigError` for a name that matches
    several, in either file.
    """
    by_stem: dict[str, list[str]] = defaultdict(list)
    for video in sorted(labelled.videos):
        by_stem[_parts(video)[-1]].append(video)
    others = found.videos - labelled.videos
    names = {video: _same(video, by_stem, labelled.where) or video for video in others}
    _check_different(found, names, labelled.where)
    stretches = tuple(replace(each, video=names.get(each.video, each.video)) for each in found.stretches)
    return replace(found, stretches=stretches, videos=(found.videos & labelled.videos) | frozenset(names.values()))


def of_subset(labelled: SegmentList, subset: str) -> SegmentList:
    """The videos of one subset of a data set. Raises `ConfigError` if the list has none."""
    videos = frozenset(video for video in labelled.videos if labelled.subsets.get(video) == subset)
    if not videos:
        known = ", ".join(sorted(set(labelled.subsets.values()))) or "does not say to which one its videos belong"
        raise ConfigError(f"{labelled.where} has no videos of {subset!r}; it has {known}", code="unknown")
    kept = tuple(stretch for stretch in labelled.stretches if stretch.video in videos)
    return replace(labelled, videos=videos, stretches=kept)


def _same(video: str, by_stem: Mapping[str, Sequence[str]], where: str) -> str | None:
    mine = _parts(video)
    fitting = by_stem.get(mine[-1]) or by_stem.get(mine[-1].removeprefix("v_"), ())
    fitting = [
        name for name in fitting if all(a == b for a, b in zip(mine[-2::-1], _parts(name)[-2::-1], strict=False))
    ]
    if len(fitting) > 1:
        raise ConfigError(
            f"{video} may be {fitting[0]} or {fitting[1]} of {where}; name their folders in both files", code="conflict"
        )
    return fitting[0] if fitting else None


def _check_different(found: SegmentList, names: Mapping[str, str], where: str) -> None:
    """Raises `ConfigError` if two found videos match the same labelled video."""
    called: dict[str, str] = {}
    for video in sorted(found.videos):
        name = names.get(video, video)
        if (other := called.setdefault(name, video)) != video:
            raise ConfigError(
                f"{other} and {video} of {found.where} may both be {name} of {where}; name their folders in both files",
                code="conflict",
            )


def _parts(video: str) -> tuple[str, ...]:
    path = PurePosixPath(video)
    return (path.with_suffix("") if path.suffix.lower() in VIDEO_SUFFIXES else path).parts or (video,)


def _predicted(videos: Iterable[Mapping[str, Any]]) -> Iterator[Stretch]:
    for video in videos:
        for each in video["segments"]:
            times = float(each["start_s"]), float(each["end_s"])
            yield Stretch(str(video["video"]), str(each["class"]), *times, float(each["score"]))


def _activitynet(videos: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Stretch]:
    for video, segments in videos.items():
        for each in segments:
            begin, end = map(float, each["segment"])
            yield Stretch(str(video), str(each["label"]), begin, end, float(each.get("score", 1.0)))


def _csv(where: str, data: bytes) -> SegmentList:
    try:
        file = CsvFile(where, text_of(data))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where} cannot be read: {error}; it must be a CSV file in UTF-8", code="unreadable"
        ) from error
    rows = list(file)
    names = rows[0].values.keys() if rows else set()
    video = next((name for name in PATH_COLUMNS if name in names), None)
    label = next((name for name in _CLASS if name in names), None)
    pairs: dict[Unit, tuple[str, str]] = {"s": ("start_s", "end_s"), "frames": ("start_frame", "end_frame")}
    unit = next((unit for unit, pair in pairs.items() if names >= set(pair)), None)
    if video is None or label is None or unit is None:
        raise ConfigError(
            f"{where} needs the columns path, label, and start_s and end_s, or start_frame and end_frame; it has "
            f"{', '.join(sorted(names)) or 'no rows'}",
            code="missing",
        )
    stretches, splits, (start, end) = [], {}, pairs[unit]
    for line, row, problem, _ in rows:
        if problem:
            raise ConfigError(f"{where}: {problem}", code="unreadable")
        try:
            times = float(row[start]), float(row[end]) + (unit == "frames")
        except ValueError as error:
            raise ConfigError(f"{where}, line {line}: {start} and {end} must be numbers", code="type") from error
        stretches.append(Stretch(row[video], row[label], *times))
        if split := row.get("split"):
            splits[row[video]] = split
    return _checked(where, unit, stretches, {stretch.video for stretch in stretches}, splits)


def _document(store: ObjectStore, key: str) -> Any:
    try:
        return read_json(store.get(key))
    except ValueError as error:
        raise ConfigError(f"{store.uri(key)} is not JSON: {error}", code="unreadable") from error


def _checked(
    where: str,
    unit: Unit,
    stretches: Iterable[Stretch],
    videos: Iterable[str],
    subsets: Mapping[str, str] | None = None,
) -> SegmentList:
    kept = tuple(stretches)
    for each in kept:
        if not each.video or not each.class_name:
            lacking = "no class" if each.video else "no video"
            raise ConfigError(f"{where}: the segment from {each.begin:g} to {each.end:g} has {lacking}")
        if not (isfinite(each.begin) and isfinite(each.end) and each.begin < each.end):
            raise ConfigError(f"{where}: {each.class_name} in {each.video} goes from {each.begin:g} to {each.end:g}")
        if not isfinite(each.score):
            raise ConfigError(f"{where}: {each.class_name} in {each.video} has the score {each.score:g}")
    return SegmentList(where, unit, kept, frozenset(videos), subsets or {})
