"""A user's own list as the source of a catalog: one row a video, or a segment of one. A list is a CSV file, JSON lines,
or a Parquet file (`list_rows.py`).

The columns may be in any order. Only the first is required. Other columns are kept unchanged:

    path | file | video | file_name | filename | file_path | filepath | video_path | clip
                             below the list's folder, or absolute, or a URI in a configured store
    label | class            absent: the videos are unlabelled
    labels                   several, separated by `|`; the first one is the class, unless `label` names it
    split                    absent: all `train`; `val` is kept as `validation`
    start_s, end_s           seconds, [start, end)
    start_frame, end_frame   frames in display order, both included
    group                    what videos share, such as the person; an option may name another column
    event, view              rows with the same event show it from several sides; `csv_views.py` has another form
    frame_labels             a text file with a name for each frame, a line a frame; an empty line: no name
    fps                      of a folder of frames: frames per second
    values:NAME              a `.npy` file with numbers for each frame along its first axis

An empty start is the beginning of the file, and an empty end is its end. In a CSV file, fields are separated by commas,
semicolons or tabs; the text is UTF-8.
"""

from __future__ import annotations

import io
import re
import tokenize
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from math import isfinite
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from essp.catalog.csv_views import OF_A_VIEW, columns_of_views
from essp.catalog.entry import Entry, Segment
from essp.catalog.found import few, is_video, lines_of
from essp.catalog.list_rows import open_list
from essp.catalog.spool import Spool, in_order, joined
from essp.frame_folders import as_series
from essp.listed_files import FORMS, LABEL_COLUMNS, PATH_COLUMNS, asked
from essp.uris import listed_uri
from essp_common.catalog.split_names import SPLIT_NAMES, canonical_split
from essp_common.catalog.targets import Targets, pack
from essp_common.errors import ConfigError, NotFound, PermanentError
from essp_common.objects.documents import CsvRow, text_of
from essp_common.objects.frames import FRAME_RATE, Series, is_series
from essp_common.objects.keys import escaped
from essp_common.objects.port import ObjectInfo
from essp_common.wiring import Stores

_UNITS = r"(_?(s|sec|second|time|timestamp|frame|ms)s?)?"
_LIKE_BOUNDS = {
    "start": re.compile(rf"(start|begin){_UNITS}|(time|t|frame)_(start|begin)"),
    "end": re.compile(rf"(end|stop){_UNITS}|(time|t|frame)_(end|stop)"),
}
"""Names that other data sets use for the ends of segments, such as `stop_frame` in EPIC-Kitchens."""
_BETWEEN = "|"
_SEVERAL = re.compile(r"[,;]")
_NO_CLASS = frozenset({"nan", "none", "null", "n/a", "na", "<na>", "#n/a"})
"""What programs write for a missing value."""
_VALUES = "values:"
_NO_ARRAY = (
    *(ValueError, TypeError, OverflowError, MemoryError, SyntaxError, RecursionError),  # for a bad header
    *(tokenize.TokenError, zipfile.BadZipFile, EOFError),
)
_RATE = "fps"
_LOOKUPS = 16  # files looked up at once: over S3 each costs a round trip
_AT_ONCE = 1024

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Columns:
    path: str
    label: str | None
    split: str | None
    start: str | None
    end: str | None
    unit: Literal["s", "frame"]
    group: str | None
    labels: str | None
    frame_labels: str | None
    values: Mapping[str, str]
    """Name -> column of the files with a value for each frame."""
    event: str | None = None
    view: str | None = None
    """The column that names the view of each row, if each view of an event has its own row."""
    views: Mapping[str, _Places] = field(default_factory=dict)
    """View -> its columns, if all views of an event are in one row."""
    further: Mapping[str, str] = field(default_factory=dict)
    """Column in lower case -> column as written, for the columns that are kept unchanged."""


@dataclass(frozen=True, slots=True)
class _Places:
    """The columns that differ between the views of a row."""

    path: str
    start: str | None
    end: str | None


class Listed(NamedTuple):
    """What a list says."""

    entries: Iterable[Entry]
    """In order of their URIs."""
    notes: tuple[str, ...]
    """What users should know about how its columns were understood."""
    splits: bool
    """Whether a column has the splits; otherwise all are for training."""
    labels: bool
    """Whether a column has the labels."""


def read_list(
    uri: str,
    stores: Stores,
    group_column: str | None = None,
    view_columns: str | None = None,
    known: Iterable[File] = (),
    rate: float = FRAME_RATE,
) -> Listed:
    """The rows of a list, with the sizes of their files.

    `group_column`: the column that names groups. `view_columns`: the columns of the views of each event. `known`: files
    that need not be looked up, in order of their URIs. `rate`: frames per second of folders of frames, where no column
    `fps` says it.

    Raises `NotFound`, and `ConfigError` for columns that make no sense.
    """
    file = open_list(uri, stores)
    views = columns_of_views(uri, file.columns, view_columns)
    columns = _columns(uri, file.columns, group_column, views)
    folder = uri.rpartition("/")[0]
    entries = Spool(Entry, (entry for row in file for entry in _entries(row, columns, folder)))
    notes = tuple(_notes(columns, entries))
    agreeing: Iterable[Entry] = _agreeing(entries) if columns.view else entries
    with _lookup_threads(stores) as pool:
        if columns.frame_labels or columns.values:
            agreeing = _each(pool, partial(_aimed, folder=folder, stores=stores), agreeing)
        complete = Spool(Entry, with_files(agreeing, stores, pool, known, rate))
    return Listed(complete, notes, columns.split is not None, columns.label is not None or columns.labels is not None)


def looked_up(entries: Iterable[Entry], stores: Stores) -> Iterator[Entry]:
    """The entries with the size and etag of their files. A missing file is a problem of its rows."""
    with _lookup_threads(stores) as pool:
        yield from with_files(entries, stores, pool, ())


@contextmanager
def _lookup_threads(stores: Stores) -> Iterator[ThreadPoolExecutor]:
    """Threads that ask stores. After an error, or Ctrl-C, none of them waits for a store that does not answer."""
    with ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="catalog-lookup") as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stores.stop_waiting()
            raise


def _columns(uri: str, header: Sequence[str], group_column: str | None, views: Mapping[str, str]) -> _Columns:
    names = {name.lower() for name in header}

    def find(candidates: Iterable[str]) -> str | None:
        return next((name for name in candidates if name in names), None)

    path = next(iter(views.values()), None) or find(PATH_COLUMNS)
    if path is None:
        there = ", ".join(map(escaped, header)) or "none"
        raise ConfigError(
            f"{uri} has no column for the videos (one of {', '.join(PATH_COLUMNS)}); its columns: {there}"
            f"{_cure(header)}"
        )
    if without_unit := find(("start", "end")):
        raise ConfigError(
            f"{uri}: column {without_unit!r} has no unit; name it {without_unit}_s or {without_unit}_frame"
        )
    seconds, frames = (
        find(name for bound in bounds for name in (bound, *(f"{bound}{OF_A_VIEW}{view.lower()}" for view in views)))
        for bounds in (("start_s", "end_s"), ("start_frame", "end_frame"))
    )
    if seconds and frames:
        raise ConfigError(f"{uri} has segments both in seconds and in frames; keep one pair of columns")
    unit: Literal["s", "frame"] = "frame" if frames else "s"
    group = (group_column or "group").strip().lower()
    if group_column is not None and group not in names:
        raise ConfigError(
            f"{uri} has no column {group_column!r}; its columns: {', '.join(header)}",
            field="--group-column",
            code="unknown",
        )
    values = {name.removeprefix(_VALUES): name for name in sorted(names) if name.startswith(_VALUES)}
    labels, frame_labels = find(["labels"]), find(["frame_labels"])
    label, split, start, end = find(LABEL_COLUMNS), find(["split"]), find([f"start_{unit}"]), find([f"end_{unit}"])
    places = {
        view: _Places(
            column,
            find([f"start_{unit}{OF_A_VIEW}{view.lower()}"]) or start,
            find([f"end_{unit}{OF_A_VIEW}{view.lower()}"]) or end,
        )
        for view, column in views.items()
    }
    view = find(["view"]) if "event" in names and not views else None
    event = find(["event"]) if views or view else None
    # A column that an option names as the group is also kept under its own name.
    own_group = {group} if group_column is None else set[str]()
    known = {path, label, split, start, end, labels, frame_labels, event, view, *own_group, *values.values()}
    known |= {column for place in places.values() for column in (place.path, place.start, place.end)}
    further = {name.lower(): name for name in header if name and name.lower() not in known}
    for what, missing in ((("start", "end"), end), (("end", "start"), start)):
        other = find([f"{what[0]}_{unit}"])
        if missing is None and other is not None and (like := _like_bounds(further, what[1])):
            raise ConfigError(
                f"{uri} has a column {other!r} but no {what[1]}_{unit}; if the values are in {' or '.join(like)}, "
                f"rename that column to {what[1]}_{unit}"
            )
    own = (path, label, split, start, end, unit, find([group]), labels, frame_labels, values)
    return _Columns(*own, event, view, places, further)


def _cure(header: Sequence[str]) -> str:
    """What to do about a file without column names, if the cause is known."""
    if any("\0" in name for name in header):
        return ". It is UTF-16 without a byte order mark: save it as UTF-8"
    if header and header[0].startswith(("#", "sep=")):
        return ". Its first line is a comment: remove it"
    if any(is_video(name) for name in header):
        return ". Its first line already describes a video: write the column names above it, such as path,label"
    return ""


def _like_bounds(names: Iterable[str], what: str) -> list[str]:
    """The columns whose names suggest that they hold the starts, or the ends, of segments."""
    return sorted(name for name in names if _LIKE_BOUNDS[what].fullmatch(name.replace(" ", "_")))


def _notes(columns: _Columns, entries: Iterable[Entry]) -> Iterator[str]:
    """Likely mistakes in columns that are kept unchanged or are absent."""
    further = columns.further
    if columns.label is None and columns.labels is None:
        other = f"; columns with other names: {few(sorted(further.values()))}" if further else ""
        yield (
            "there is no column `label`, so the videos are unlabelled and only prediction is possible; to train, "
            f"rename the column with their classes to `label`{other}"
        )
    if nothing := sorted({entry.class_name for entry in entries if entry.class_name.lower() in _NO_CLASS}):
        yield f"classes are called {few(nothing)}; if that means that a video has no class, leave its field empty"
    if columns.label == "label" and "class" in further:
        yield "the column `label` has the classes; the column `class` is kept unchanged"
    alone = columns.labels is not None and not any(len(entry.labels) > 1 for entry in entries)
    listing = (label for entry in entries for label in entry.labels if _SEVERAL.search(label))
    if alone and (one := next(listing, None)):
        yield f"each video has one of the `labels`, such as {one!r}; if it is several, separate them by {_BETWEEN!r}"
    if columns.split is None and (splits := sorted(_of_splits(entries))):
        yield (
            f"there is no column `split`, so all videos are for training; {few(splits)} has names of splits: rename it "
            "to `split`, or name it in a job as data.split_column"
        )
    bounds = [*_like_bounds(further, "start"), *_like_bounds(further, "end")]
    if columns.start is None and columns.end is None and bounds:
        yield (
            f"rows are whole videos, because {few(bounds)} cannot define segments; for segments, name the columns "
            "start_s and end_s (seconds), or start_frame and end_frame"
        )


def _of_splits(entries: Iterable[Entry]) -> Set[str]:
    """The columns kept unchanged that contain only names of splits."""
    found: Set[str] | None = None
    for meta in (entry.meta for entry in entries if entry.meta):  # a row without a path has none
        found = {name for name in (meta if found is None else found) if str(meta[name]).lower() in SPLIT_NAMES}
        if not found:
            break
    return found or frozenset()


def _entries(row: CsvRow, columns: _Columns, folder: str) -> Iterator[Entry]:
    """The video of a row, or its views."""
    if not columns.views:
        entry = _entry(row, columns, folder)
        event, view = (row.values[column] if column else "" for column in (columns.event, columns.view))
        yield _of_event(entry, event, view, row.line) if columns.view else entry
        return
    event = row.values[columns.event] if columns.event else ""
    for place, (view, own) in enumerate(columns.views.items()):
        one = replace(columns, path=own.path, start=own.start, end=own.end)
        entry = _entry(row, one, folder)
        event = event or entry.id
        yield replace(_of_event(entry, event, view, row.line), first_view=not place)


def _of_event(entry: Entry, event: str, view: str, line: int) -> Entry:
    """The entry as a view of an event. A row with neither event nor view is a video of its own."""
    if not event and not view:
        return entry
    if not event or not view:
        missing = "view" if event else "event"
        return replace(entry, id=f"line {line}", error=f"unnamed: line {line} has no {missing}")
    error = entry.error
    if error is not None and error.startswith("unnamed:"):
        error = f"missing: line {line} has no video of view {view}"
    return replace(entry, id=f"{event}/{view}", event=event, view=view, error=error)


def _agreeing(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries; views of an event whose rows give it several classes or splits are problems."""
    said: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for entry in entries:
        if entry.event and entry.error is None:
            said[entry.event].add((entry.class_name, entry.split))
    for entry in entries:
        if entry.error is None and len(said.get(entry.event, ())) > 1:
            yield replace(entry, error=f"mislabelled: the rows of event {entry.event} differ in label or split")
        else:
            yield entry


def _entry(row: CsvRow, columns: _Columns, folder: str) -> Entry:
    def value(column: str | None) -> str:
        return row.values[column] if column else ""

    given = row.values if row.given is None else row.given
    path, label, line = value(columns.path), value(columns.label), row.line
    if not path:
        return Entry(f"line {line}", "", label, "", error=f"unnamed: line {line} does not name a file")
    uri = listed_uri(path, folder)
    split = canonical_split(value(columns.split)) if columns.split else "train"
    labels = tuple(dict.fromkeys(name for name in map(str.strip, value(columns.labels).split(_BETWEEN)) if name))
    label = label or (labels[0] if labels else "")
    if labels and label not in labels:
        labels = label, *labels
    files = {**{name: value(column) for name, column in columns.values.items()}, "": value(columns.frame_labels)}
    entry = Entry(
        uri.removeprefix(folder + "/"),
        uri,
        label,
        split,
        group=value(columns.group),
        labels=labels,
        files={name: file for name, file in files.items() if file},
        meta={shown: given.get(name) for name, shown in columns.further.items()},
    )
    if row.problem:
        return replace(entry, error=f"fields: {row.problem}")
    if (columns.label or columns.labels) and not label:
        entry = replace(entry, unlabelled=f"line {line} has no {columns.label or columns.labels}")
    start, end = value(columns.start), value(columns.end)
    if not start and not end:
        return entry
    try:
        segment = _segment(start, end, columns.unit)
    except ValueError as error:
        return replace(entry, id=f"{entry.id}#{start}-{end}", error=f"segment: line {line}: {error}")
    return replace(entry, id=f"{entry.id}#{segment}", segment=segment)


def _aimed(entry: Entry, folder: str, stores: Stores) -> Entry:
    """The entry with the values for each frame from the files that its row names."""
    if entry.error is not None or not entry.files:
        return entry
    spans, frames = entry.spans, entry.frames
    series: dict[str, NDArray[Any]] = {}
    for name, path in entry.files.items():
        try:
            _, data = asked(listed_uri(path, folder), stores, lambda store, key: store.get(key))
            if name:
                series[name] = _array(data)
            else:
                lines = lines_of(text_of(data))
                spans, frames = _stretches(lines), len(lines)
        except (PermanentError, ConfigError, ValueError, EOFError) as error:
            return replace(entry, error=f"targets: {path}: {error}")
    try:
        return replace(entry, spans=spans, series=pack(Targets(series=series)), frames=frames)
    except ConfigError as error:
        return replace(entry, error=str(error))


def _array(data: bytes) -> NDArray[Any]:
    try:
        values = np.load(io.BytesIO(data), allow_pickle=False)
    except _NO_ARRAY as error:
        raise ValueError(f"it is not a NumPy array ({error})") from error
    if not isinstance(values, np.ndarray):
        raise ValueError("it holds several arrays; save only the intended one with numpy.save")
    if not values.ndim:
        raise ValueError("it holds a single value, not one for each frame")
    return values


def _stretches(lines: Sequence[str]) -> tuple[tuple[Segment, str], ...]:
    """The names of frames as stretches of frames of the file."""
    spans = []
    begin = 0
    for name, run in groupby(lines):
        end = begin + len(list(run))
        if name:
            spans.append((Segment(begin, end - 1, "frame"), name))
        begin = end
    return tuple(spans)


def _segment(start: str, end: str, unit: Literal["s", "frame"]) -> Segment:
    number = float if unit == "s" else _frame
    try:
        segment = Segment(number(start or "0"), number(end) if end else None, unit)
        last = segment.start if segment.end is None else segment.end
        finite = isfinite(segment.start + last)
    except (ValueError, OverflowError) as error:
        wanted = "seconds" if unit == "s" else "frame numbers"
        point = "; write decimals with a point" if "," in start + end else ""
        raise ValueError(f"{start!r} to {end!r} are not {wanted}{point}") from error
    empty = last < segment.start or (unit == "s" and segment.end == segment.start)
    if segment.start < 0 or empty or not finite:
        raise ValueError(f"{start or 0} to {end} contains no frame")
    return segment


def _frame(text: str) -> int:
    """The number of a frame. Also accepts 12.0, which programs write if another row has no value. Raises
    `ValueError`."""
    return int(text.removesuffix(".0"))


class File(NamedTuple):
    """What a store says about a video."""

    uri: str
    size_bytes: int = 0
    etag: str = ""
    error: str | None = None
    refused: ConfigError | None = None


def with_files(
    entries: Iterable[Entry],
    stores: Stores,
    pool: ThreadPoolExecutor,
    known: Iterable[File],
    rate: float = FRAME_RATE,
) -> Iterator[Entry]:
    """The entries with the size and etag of their files, in order of their URIs. A missing file is a problem of its
    rows.

    Raises `ConfigError` if no file at all may be read.
    """

    def look(listed: Sequence[list[Any]]) -> tuple[list[Entry], File]:
        own, held = listed
        uri = own[0].uri
        if held or not uri:
            return own, held[0] if held else File(uri)
        try:
            said = [stated for entry in own if (stated := _rate(entry))]
            there, info = _asked_as_frames(uri, stores, said[-1] if said else rate)
        except (PermanentError, ConfigError) as error:  # a server may refuse one file and serve the others
            kind = "missing" if isinstance(error, NotFound) else error.kind  # it may never have existed
            file = File(uri, error=f"{kind}: {error}", refused=error if isinstance(error, ConfigError) else None)
            return own, file
        return own, File(there, info.size_bytes, info.etag)

    by_uri = joined(attrgetter("uri"), in_order(Entry, entries, attrgetter("uri")), known)
    refused, readable = None, False
    for own, file in _each(pool, look, (listed for listed in by_uri if listed[0])):
        refused, readable = refused or file.refused, readable or bool(file.uri and not file.refused)
        for entry in own:
            yield replace(
                entry,
                id=entry.id if file.uri == entry.uri or is_series(file.uri) else _form_of(file.uri, entry),
                uri=file.uri,
                size_bytes=file.size_bytes,
                etag=file.etag,
                error=entry.error or file.error,
            )
    if refused is not None and not readable:
        raise refused


def _asked_as_frames(uri: str, stores: Stores, rate: float) -> tuple[str, ObjectInfo]:
    """The URI of a file, and what its store says about it; if there is no such file, of the frames in such a folder."""
    missing: NotFound | None = None
    if Series.of_pattern(uri) is None:
        try:
            return asked(uri, stores, lambda store, key: store.head(key))
        except NotFound as error:
            missing = error
    for form in dict.fromkeys((uri, *(form(uri) for form in FORMS))):
        if (series := as_series(form, stores, rate)) is not None:
            store, key = stores.resolve(series, video=True)
            return series, store.head(key)
    raise missing or NotFound(uri)


def _rate(entry: Entry) -> float:
    """The frame rate that the row of a folder of frames says; 0: none."""
    try:
        rate = float(next((value for name, value in entry.meta.items() if name.lower() == _RATE), 0))
    except (TypeError, ValueError):
        return 0.0
    return rate if isfinite(rate) and rate > 0 else 0.0


def _each(pool: ThreadPoolExecutor, function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """The result for each item, in their order. A list may have a million items, and a pool would queue them all at
    once."""
    waiting = iter(items)
    while some := list(islice(waiting, _AT_ONCE)):
        yield from pool.map(function, some)


def _form_of(uri: str, entry: Entry) -> str:
    """The id of an entry in the form of its file's URI, so that no file is listed twice."""
    return next(form(entry.id) for form in FORMS if form(entry.uri) == uri)
