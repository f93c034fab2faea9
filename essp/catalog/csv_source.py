"""A CSV file as the source of a catalog: one row a video, or a segment of one.

Columns, in any order, of which only the first is required; others are ignored:

    path | file | video      below the CSV's folder, or absolute, or a URI in a configured store
    label | class            absent: the videos are unlabelled
    split                    absent: all `train`; `val` is kept as `validation`
    start_s, end_s           seconds, [start, end)
    start_frame, end_frame   frames in display order, both included
    group                    what videos share, such as the person; another column may be named for it

An empty start is the beginning and an empty end is the end of the file. Fields are separated by commas, in a
`.tsv` file by tabs; the text is UTF-8.
"""

from __future__ import annotations

import csv
import io
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import PurePosixPath
from typing import Literal

from essp.catalog.entry import Entry, Segment
from essp.catalog.foreign_lists import is_kinetics, kinetics, refuse_lists_of_labels, text_list
from essp_common.errors import ConfigError, NotFound
from essp_common.planning.splits import canonical_split
from essp_common.wiring import Stores

_PATH = ("path", "file", "video")
_LABEL = ("label", "class")
_LOOKUPS = 16  # files asked for at once: over S3 each costs a round trip


@dataclass(frozen=True, slots=True)
class _Columns:
    path: str
    label: str | None
    split: str | None
    start: str | None
    end: str | None
    unit: Literal["s", "frame"]
    group: str | None


def read_csv(uri: str, stores: Stores, suffixes: frozenset[str], group_column: str | None = None) -> list[Entry]:
    """The rows of a CSV file. Raises `NotFound`, and `ConfigError` for columns that make no sense.

    `suffixes`: of videos, for lists that do not name their files. `group_column`: the column that names groups.
    """
    text = _text(uri, stores)
    refuse_lists_of_labels(uri, text)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if uri.endswith(".tsv") else ",")
    header = [name.strip() for name in reader.fieldnames or ()]
    folder = uri.rpartition("/")[0]
    if is_kinetics(name.lower() for name in header) and group_column is None:
        reader.fieldnames = [name.lower() for name in header]
        below = stores.under(folder, videos=True)
        return list(
            kinetics(reader, below, [i for i in below.list() if PurePosixPath(i.key).suffix.lower() in suffixes])
        )
    columns = _columns(uri, header, group_column)
    reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
    entries = [_entry(row, columns, folder, reader.line_num) for row in reader if any(row.values())]
    return _with_sizes(entries, stores)


def read_text_list(uri: str, stores: Stores) -> list[Entry]:
    """The videos of a text file in the form of mmaction2. Raises `NotFound`, and `ConfigError` for another form."""
    return _with_sizes(list(text_list(uri, _text(uri, stores), uri.rpartition("/")[0])), stores)


def _text(uri: str, stores: Stores) -> str:
    store, key = stores.resolve(uri)
    try:
        return store.get(key).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{uri} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error


def _columns(uri: str, header: Sequence[str], group_column: str | None) -> _Columns:
    names = {name.lower() for name in header}

    def find(candidates: Iterable[str]) -> str | None:
        return next((name for name in candidates if name in names), None)

    path = find(_PATH)
    if path is None:
        there = ", ".join(header) or "none"
        raise ConfigError(f"{uri} has no column for the videos (one of {', '.join(_PATH)}); its columns: {there}")
    if without_unit := find(("start", "end")):
        raise ConfigError(
            f"{uri}: column {without_unit!r} has no unit; name it {without_unit}_s or {without_unit}_frame"
        )
    seconds, frames = find(("start_s", "end_s")), find(("start_frame", "end_frame"))
    if seconds and frames:
        raise ConfigError(f"{uri} gives segments both in seconds and in frames; keep one pair of columns")
    unit: Literal["s", "frame"] = "frame" if frames else "s"
    group = (group_column or "group").strip().lower()
    if group_column is not None and group not in names:
        raise ConfigError(f"{uri} has no column {group_column!r} (--group-column); its columns: {', '.join(header)}")
    return _Columns(
        path, find(_LABEL), find(["split"]), find([f"start_{unit}"]), find([f"end_{unit}"]), unit, find([group])
    )


def _entry(row: Mapping[str, str | None], columns: _Columns, folder: str, line: int) -> Entry:
    def value(column: str | None) -> str:
        return (row.get(column) or "").strip() if column else ""

    path = value(columns.path)
    label = value(columns.label)
    if not path:
        return Entry(f"line {line}", "", label, "", error=f"unnamed: line {line} names no file")
    uri = _uri(path, folder)
    split = canonical_split(value(columns.split)) if columns.split else "train"
    entry = Entry(uri.removeprefix(folder + "/"), uri, label, split, group=value(columns.group))
    if columns.label and not label:
        return replace(entry, error=f"unlabelled: line {line} has no {columns.label}")
    start, end = value(columns.start), value(columns.end)
    if not start and not end:
        return entry
    try:
        segment = _segment(start, end, columns.unit)
    except ValueError as error:
        return replace(entry, id=f"{entry.id}#{start}-{end}", error=f"segment: line {line}: {error}")
    return replace(entry, id=f"{entry.id}#{segment}", segment=segment)


def _segment(start: str, end: str, unit: Literal["s", "frame"]) -> Segment:
    number = float if unit == "s" else int
    try:
        segment = Segment(number(start or 0), number(end) if end else None, unit)
    except ValueError as error:
        raise ValueError(f"{start!r} to {end!r} are not {'seconds' if unit == 's' else 'frame numbers'}") from error
    last = segment.start if segment.end is None else segment.end
    empty = last < segment.start or (unit == "s" and segment.end == segment.start)
    if segment.start < 0 or empty or not isfinite(segment.start + last):
        raise ValueError(f"{start or 0} to {end} holds no frame")
    return segment


def _uri(path: str, folder: str) -> str:
    if "://" in path:
        return path
    if path.startswith("/"):
        return f"file://{path}"
    scheme, _, place = folder.partition("://")
    return f"{scheme}://{posixpath.normpath(posixpath.join(place, path))}"


def _with_sizes(entries: Sequence[Entry], stores: Stores) -> list[Entry]:
    """The entries with size and etag of their files; a file that is not there is a problem of its rows."""

    def look(uri: str) -> tuple[int, str, str | None]:
        try:
            store, key = stores.resolve(uri, video=True)
            info = store.head(key)
        except NotFound as error:
            return 0, "", f"vanished: {error}"
        return info.size_bytes, info.etag, None

    uris = sorted({entry.uri for entry in entries if entry.uri})
    with ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="catalog-lookup") as pool:
        found = dict(zip(uris, pool.map(look, uris), strict=True))
    complete = []
    for entry in entries:
        size_bytes, etag, error = found.get(entry.uri, (0, "", None))
        complete.append(replace(entry, size_bytes=size_bytes, etag=etag, error=entry.error or error))
    return complete
