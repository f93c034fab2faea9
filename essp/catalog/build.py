"""Building a catalog: list the source, read every file that is new or changed, write one row a video.

A quick build (`ProbeOptions.quick`) takes facts from the index of a file where it can; the next build without `quick`
reads these files again, and gives what it would have given in the first place.

Guarantees: each video that the source names has a row, with the reason in `error` if it is unusable; an interrupted
build continues where it stopped (`journal.py`); a second build reads only files whose uri, size or etag is not in the
catalog; the output is replaced as a whole, at the end. Equal sources give equal catalogs. Neither the entries nor the
rows are objects in memory all at the same time (`spool.py`).

Raises `Unavailable` when a store does not answer for `store_patience_s` (what was read is kept), and `NotFound` or
`ConfigError` when the source does not exist or is not of the given kind.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from itertools import chain, groupby, islice, pairwise
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Any

from essp.catalog.background import background_rows
from essp.catalog.copies import Copies
from essp.catalog.entry import Entry, Segment
from essp.catalog.found import few
from essp.catalog.journal import ROWS, Journal
from essp.catalog.layout import Kind
from essp.catalog.pool import PoolProber
from essp.catalog.progress import Tally, Tell
from essp.catalog.sources import read_source
from essp.catalog.spool import Spool, in_order, joined
from essp.folders import check_file
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import PART, NotACatalog, read_catalog, read_parts, row_problems, write_parts
from essp_common.catalog.notes import DEPTH, OFFSET, SALVAGED, lines
from essp_common.catalog.rows import RowPieces, Rows, VideoRow, extra_of
from essp_common.catalog.targets import Span, Targets, pack, unpack
from essp_common.catalog.timing import Timing
from essp_common.catalog.unproven import PACKETS
from essp_common.errors import ConfigError, EsspError, NotFound
from essp_common.objects.frames import FRAME_RATE, checked_rate
from essp_common.objects.port import ObjectStore
from essp_common.quantities import counted
from essp_common.runtime.failpoints import failpoint
from essp_common.wiring import Adapters, Stores
from essp_engine.decoding.probing import PROBE, SALVAGE, Outcome, ProbeOptions, Prober, gave_up_after_s

_LASTING = ("damaged", "truncated", "empty", "not_video", "limit", "encrypted", "format")
"""Kinds of errors that recur when the same bytes are read again. The next build retries files with other errors."""
_SALVAGEABLE, _HOPELESS = ("truncated", "damaged"), "not one frame of it can be used"
"""`SALVAGEABLE` and `HOPELESS` of `essp_engine.video.probe`, which loads FFmpeg."""
_OFFSET_S = 1e-4
"""How far off frames may be without a note: LeRobot's own tolerance."""
_DISTANCES = f"{DEPTH}: a depth camera; clips of gray16 have its distances"
_NO_END = "; without an end, the segment ends with the file"
_URI = attrgetter("uri")
_SAID = frozenset(
    {"id", "uri", "class_name", "split", "group", "event", "view", "origin_s", "extra", "targets", "error"}
)
"""The columns that the source provides. All others come from the file."""
_FACTS = tuple(f.name for f in fields(VideoRow) if f.name not in _SAID)
_facts_of = attrgetter(*_FACTS)


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of a build."""

    kind: Kind = "auto"
    split: int = 1
    """UCF-101 and HMDB51: the train/test division."""
    group_column: str | None = None
    """CSV: the column that names the group of a video. None: `group`, if the file has this column."""
    view_columns: str | None = None
    """CSV: the columns of the views of each event, separated by commas. None: `path:VIEW`, if the file has these."""
    camera: str | None = None
    """LeRobot: the only camera to list."""
    tolerance_s: float | None = None
    """LeRobot: how far frames may be from their timestamps. None: the nearest frames are taken, and a note says how far
    off they are."""
    fps: float = FRAME_RATE
    """Frames per second of folders of frames."""
    whole: bool = False
    """Write one row a file, with its labelled stretches as targets, if the source lists stretches of files."""
    background: str | None = None
    """The class of the rows for what the labelled segments of a file leave uncovered. None: no such rows."""
    relative: bool | None = None
    """Store URIs relative to the catalog, so that both can be moved together. None: if all videos are in its folder or
    below it."""
    salvage: bool = False
    """Use the frames before the damage in files that are truncated or damaged."""
    pool: Adapters | None = None
    """The servers of the decoders that read the files; None: child processes of this one do."""
    probe: ProbeOptions = field(default_factory=ProbeOptions)


_SUFFIXES = ("parquet", "pq")


@dataclass(frozen=True, slots=True)
class Built:
    """A finished build."""

    store: ObjectStore
    key: str
    """Where the catalog is."""
    kind: Kind
    recognised: str
    """The kind that the source was recognised as, and why."""
    read: int
    """Files opened by this build."""
    reused: int
    """Files whose facts were already known."""
    changed: int
    """Files of those read that the previous catalog had in another version."""
    gone: int
    """Files of the previous catalog that the source no longer names."""
    by_index: int
    """Files of those read whose facts are from their index alone."""
    by_packets: int
    """Files of those read whose facts are from their packets, none of which was decoded."""
    ignored: Mapping[str, int]
    """Files of the source that are not videos by name: suffix -> count."""
    notes: tuple[str, ...]
    """What users should know about the source, such as class folders without a video."""
    elapsed_s: float

    @property
    def catalog(self) -> Catalog:
        """The catalog, which is read for this."""
        return read_catalog(self.store, self.key)


def _check_name(key: str) -> None:
    """Raises `ConfigError` if the name has the suffix of another format: a catalog is always written as Parquet."""
    name = key.rpartition("/")[2]
    stem, dot, suffix = name.rpartition(".")
    if dot and stem and suffix.isalnum() and suffix.lower() not in _SUFFIXES:
        raise ConfigError(
            f"a catalog is a Parquet file, and the name {name} suggests another format; write {stem}.parquet",
            field="--out",
        )


def build(
    source: str,
    out: str,
    roots: Sequence[str],
    options: BuildOptions | None = None,
    progress: Tell | None = None,
    recognised: Callable[[str], None] | None = None,
) -> Built:
    """Build the catalog of `source` at `out` (URIs in the stores at `roots`).

    `recognised` receives the kind that the source was recognised as, before any video is read.
    """
    options = options or BuildOptions()
    options = replace(options, probe=replace(options.probe, sums=True))
    if options.background is not None and options.whole:
        raise ConfigError(
            "writes rows for parts of files, but --whole writes one row a file; use only one of them",
            field="--background",
            code="conflict",
        )
    started = time.monotonic()
    stores = Stores(roots, options.probe.store_patience_s)
    store, key = stores.resolve(out)
    _check_name(key)
    check_file("--out", store, key, "catalog.parquet", ".part-000000")  # a part of the journal without content
    journal = Journal(store, key)
    if options.salvage and options.probe.probe == PROBE:
        options = replace(options, probe=replace(options.probe, probe=SALVAGE))
    next(_previous(store, key), None)  # raises
    counted = Spool(VideoRow)
    """Files that were opened for listing the source."""

    def frame_counts(entries: Sequence[Entry]) -> list[int]:
        files = {_version(entry): entry for entry in entries}
        known = {_version(row): row for row in chain(_previous(store, key), journal, counted) if _version(row) in files}
        known = {version: row for version, row in known.items() if _lasts(options, row)}
        new = {entry.uri: entry for version, entry in files.items() if version not in known}
        fresh = [row for row in _read(new.values(), len(new), roots, options, journal) if _lasts(options, row)]
        counted.extend(fresh)
        known |= {_version(row): row for row in fresh}
        return [known[version].frame_count if (version := _version(entry)) in known else 0 for entry in entries]

    listing = read_source(
        source,
        stores,
        options.kind,
        options.split,
        options.group_column,
        options.whole,
        options.camera,
        options.tolerance_s,
        frame_counts,
        options.view_columns,
        checked_rate(options.fps, "--fps"),
        Copies(store, f"{PurePosixPath(key).with_suffix('')}.videos", roots, options.probe, progress),
    )
    if options.background is not None and any(entry.view for entry in listing.entries):
        raise ConfigError(
            "adds videos of what lies between segments, and these events have several views; leave it out",
            field="--background",
            code="unsupported",
        )
    if recognised is not None:
        recognised(listing.recognised)
    _check_names(listing.entries)
    entries = in_order(Entry, listing.entries, _URI)
    listing = replace(listing, entries=())  # they may be many
    gathered = _Gathered(options)
    by_index = by_packets = 0
    off: list[str] = []

    def read() -> Iterator[VideoRow]:
        nonlocal by_index, by_packets
        reused = gathered.files - gathered.unread
        tally = Tally(gathered.unread, gathered.unread_bytes, reused, started, progress)
        for row in _read(gathered.unread_files(), gathered.unread, roots, options, journal):
            tally.count(row.size_bytes, row.error is not None)
            by_index += PACKETS in row.unproven
            by_packets += bool(row.unproven) and PACKETS not in row.unproven
            yield row

    def parts(rows: Iterator[VideoRow]) -> Iterator[Catalog]:
        for first in rows:
            pieces = RowPieces()
            for row in chain([first], islice(rows, PART - 1)):
                pieces.add(row)
            part = _credible(Catalog.of_columns(pieces.columns(), source))
            off.extend(_off_their_times(part.rows))
            yield part

    try:
        known = gathered.known(entries, chain(counted, journal), _previous(store, key))
        rows = in_order(VideoRow, chain(known, gathered.others(read)), attrgetter("id"))
        write_parts(store, key, parts(rows), source, gathered.ends, relative=options.relative)
    except BaseException:
        journal.save()
        raise
    journal.clear()
    opened = gathered.unread + len(counted)
    return Built(
        store,
        key,
        listing.kind,
        listing.recognised,
        opened,
        gathered.files - opened,
        gathered.changed,
        gathered.gone,
        by_index,
        by_packets,
        listing.ignored,
        (*listing.notes, *_offsets(off)),
        time.monotonic() - started,
    )


class _Gathered:
    """The rows of the new catalog, file by file, and how many files they are of.

    A source may have millions of entries, so entries, known rows and new ones are streams in order of their URIs.
    """

    def __init__(self, options: BuildOptions) -> None:
        self._options = options
        self._waiting = Spool(Entry)
        """The entries whose files have to be read, by file, which several may be segments of."""
        self.files = 0
        """Files in the source."""
        self.unread = self.unread_bytes = 0
        """Those of them that have to be read."""
        self.changed = self.gone = 0
        """Files of the previous catalog that the source has in another version, and those that it does not name."""
        self.ends: tuple[str, ...] = ()
        """The least and the greatest URI of the usable rows."""

    def known(
        self, entries: Iterable[Entry], kept: Iterable[VideoRow], previous: Iterable[VideoRow]
    ) -> Iterator[VideoRow]:
        """The rows of all files that need not be read again. `kept`: of this build, or of one that was interrupted."""
        streams = entries, in_order(VideoRow, kept, _URI), in_order(VideoRow, previous, _URI)
        for own, now, before in joined(_URI, *streams):
            listed = next((entry for entry in own if entry.error is None), None)
            if listed is None:
                self.gone += bool(before and before[0].uri)
                yield from self._rows(own, None)
                continue
            same = (row for row in (*now, *before) if _version(row) == _version(listed))
            file = next((row for row in same if _lasts(self._options, row)), None)
            self.files += 1
            if file is not None:
                yield from self._rows(own, file)
                continue
            self._waiting.extend(own)
            self.unread += 1
            self.unread_bytes += listed.size_bytes
            self.changed += bool(before) and _version(before[-1]) != _version(listed)

    def unread_files(self) -> Iterator[Entry]:
        """An entry of each file that has to be read, once `known` has ended."""
        for _, own in groupby(self._waiting, _URI):
            yield next(entry for entry in own if entry.error is None)

    def others(self, read: Callable[[], Iterable[VideoRow]]) -> Iterator[VideoRow]:
        """The rows of these files, once they were read."""
        files = in_order(VideoRow, read(), _URI)
        for own, found in joined(_URI, self._waiting.drained(), files):
            if not found:
                raise EsspError(f"{own[0].uri} was not read, which is a defect of ESSP; run the command again")
            yield from self._rows(own, found[0])

    def _rows(self, own: Sequence[Entry], file: VideoRow | None) -> Iterator[VideoRow]:
        rows = [_row(entry, file) for entry in own]
        if any(row.error is None for row in rows):
            usable = *self.ends, rows[0].uri
            self.ends = min(usable), max(usable)
        yield from rows
        if self._options.background is not None:
            yield from background_rows(rows, self._options.background)


def _read(
    files: Iterable[Entry], count: int, roots: Sequence[str], options: BuildOptions, journal: Journal
) -> Iterator[VideoRow]:
    """The row of each file, in order of completion. Each row is also added to the journal."""
    asked: dict[str, Entry] = {}

    def uris() -> Iterator[str]:
        for entry in files:
            asked[entry.uri] = entry
            yield entry.uri

    with _prober(count, roots, options) as prober:
        for outcome in prober.read(uris()):
            entry = asked.pop(outcome.uri)
            row = file_row(VideoRow(entry.uri, entry.uri, "", "", entry.size_bytes, entry.etag), outcome)
            journal.add(row)
            failpoint("catalog.read")
            yield row


def _prober(files: int, roots: Sequence[str], options: BuildOptions) -> AbstractContextManager[Prober | PoolProber]:
    if options.pool is not None:
        return PoolProber(options.pool, options.probe)
    return Prober(roots, replace(options.probe, workers=max(1, min(options.probe.workers, files))))


def _version(file: VideoRow | Entry) -> tuple[str, int, str]:
    """Identifies a file and its version: both differ after a change."""
    return file.uri, file.size_bytes, file.etag


def _previous(store: ObjectStore, key: str) -> Iterator[VideoRow]:
    """The rows of the catalog that this build will replace, if one exists. Any other file is not overwritten."""
    try:
        for rows in read_parts(store, key):
            yield from rows
    except NotACatalog as error:
        raise ConfigError(
            f"{store.uri(key)} exists but is not a readable catalog, so it is not overwritten; name another "
            "output, or remove this file first",
            field="--out",
            code="exists",
        ) from error
    except (NotFound, ConfigError):
        return


def _lasts(options: BuildOptions, row: VideoRow) -> bool:
    """Whether reading the file of a row again would give the same facts, or the same error. A timeout lasts until the
    limit is raised. What a quick build did not prove lasts for another one. The row of a file that was salvaged, or
    could be, lasts unless `salvage` has changed."""
    if row.frame_count:
        lasts = options.salvage or SALVAGED not in dict(lines(row.notes))
        return lasts and (options.probe.quick or not row.unproven)
    kind = (row.error or "").partition(":")[0]
    hopeless = not options.salvage or kind not in _SALVAGEABLE or _HOPELESS in (row.error or "")
    return (kind in _LASTING and hopeless) or gave_up_after_s(row.error) >= options.probe.timeout_s


def _run(whole: VideoRow, timing: Timing, segment: Segment, count: int) -> VideoRow:
    """The row with `count` frames from one frame on. Each must be shown at its expected time."""
    found = timing.frames(segment.start, None)
    first, last = (found[0], found[0] + count - 1) if found else (0, whole.frame_count)
    if count < 1 or last >= whole.frame_count:
        ends_s = timing.shown_s(whole.frame_count)
        what = f"{count} frames from {segment.start:.7g} s, but the file has {whole.frame_count}"
        return replace(whole, error=f"segment: {what}, and ends at {ends_s:.7g} s")
    tolerance_s = 0.5 / segment.rate if segment.tolerance_s is None else segment.tolerance_s
    most_s = 0.0
    for step in range(count) if whole.timestamps else (0, count - 1):
        late_s = timing.shown_s(first + step) - (segment.start + step / segment.rate)
        most_s = max(most_s, abs(late_s))
        if abs(late_s) > tolerance_s:
            what = f"frame {step} is shown {1000 * late_s:.3g} ms off its timestamp"
            tolerated = f"{1000 * tolerance_s:.3g} ms are tolerated (--tolerance-s)"
            if segment.tolerance_s is None:
                tolerated = f"half a frame is {1000 * tolerance_s:.3g} ms"
            return replace(whole, error=f"segment: {what}, and {tolerated}")
    notes = whole.notes
    if most_s > _OFFSET_S:
        said = f"{OFFSET}: frames are shown up to {1000 * most_s:.3g} ms off their timestamps; the nearest are used"
        notes = f"{notes}\n{said}".lstrip("\n")
    return replace(whole, first_frame=first, last_frame=last, notes=notes)


def file_row(file: VideoRow, outcome: Outcome) -> VideoRow:
    """The row of a whole file: what was known about it and the outcome of reading it."""
    if outcome.error is not None:  # a file that is not in the catalog yet may never have existed
        return replace(file, error=re.sub(r"^vanished:", "missing:", outcome.error))
    facts: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in outcome.facts.items()
    }
    return replace(file, **facts, last_frame=facts["frame_count"] - 1)


def _check_names(entries: Iterable[Entry]) -> None:
    """Raises `ConfigError` for a name that a catalog cannot hold, before hours of reading."""
    waiting, views = iter(entries), Spool(Entry)
    while some := list(islice(waiting, ROWS)):
        catalog = Catalog(_row(entry, None) for entry in some)
        for problem in row_problems(catalog):
            name = catalog.rows[problem.row].id
            raise ConfigError(f"{name!r:.100}: {problem.column}: {problem.what}; use another name")
        views.extend(entry for entry in some if entry.view)
    for one, another in pairwise(in_order(Entry, views.drained(), attrgetter("event", "view"))):
        if (one.event, one.view) == (another.event, another.view):
            what = f"{another.view!r} is there twice in its event"
            raise ConfigError(f"{another.id!r:.100}: view: {what}; use another name")


def _credible(catalog: Catalog) -> Catalog:
    """The catalog. A video with values that a catalog cannot hold becomes unusable, so that the other rows stay
    readable."""
    found = tuple(row_problems(catalog))
    if not found:
        return catalog
    rows = list(catalog.rows)
    for problem in found:
        row = rows[problem.row]
        unread = VideoRow(row.id, row.uri, row.class_name, row.split, row.size_bytes, row.etag, group=row.group)
        unread = replace(unread, event=row.event, view=row.view, extra="" if problem.column == "extra" else row.extra)
        rows[problem.row] = replace(unread, error=f"damaged: {problem.column}: {problem.what}")
    return Catalog(rows, catalog.source)


def _row(entry: Entry, file: VideoRow | None) -> VideoRow:
    """The catalog's row: what the source says about a video, and what its file contains."""
    row = VideoRow(
        entry.id,
        entry.uri,
        entry.class_name,
        entry.split,
        entry.size_bytes,
        entry.etag,
        group=entry.group,
        event=entry.event,
        view=entry.view,
        extra=extra_of(entry.meta),
        error=entry.error,
    )
    if entry.error is not None or file is None:
        return row
    facts = dict(zip(_FACTS, _facts_of(file), strict=True))
    row = replace(row, **facts | {"notes": _of_the_file(file.notes, entry.depth)})
    if not file.frame_count:
        return replace(row, error=file.error)
    row = _cut(row, entry.segment)
    if origin_s := entry.origin_s if entry.segment is None else _origin_s(row, entry.segment):
        row = replace(row, origin_s=origin_s)
    return row if row.error is not None else _aimed(row, entry)


def _origin_s(row: VideoRow, segment: Segment) -> float:
    """When the event of a row begins: where its segment was said to begin, which may lie between two frames.

    Frames that are counted (`Segment.frames`) begin with the first of them, even if that is a little off its time.
    """
    by_frames = segment.unit == "frame" or segment.frames is not None
    return Timing(row).shown_s(row.first_frame) if by_frames else segment.start


def _of_the_file(notes: str, depth: bool) -> str:
    """The notes without those on an episode: a row of the previous catalog may be one of the file's others. A depth
    camera has a note, because files do not say so."""
    said = [line for line in notes.splitlines() if not line.startswith((f"{OFFSET}: ", f"{DEPTH}: "))]
    return "\n".join([*said, *([_DISTANCES] if depth else [])])


def _off_their_times(rows: Rows) -> list[str]:
    """The ids of the rows with frames that are off their timestamps."""
    if not any(OFFSET in notes for notes in rows.names("notes")):
        return []
    return [row.id for row in rows if row.error is None and OFFSET in dict(lines(row.notes))]


def _offsets(off: Sequence[str]) -> tuple[str, ...]:
    """How many rows these are, for the notes of the build."""
    if not off:
        return ()
    return (
        f"{counted(len(off), 'row')} with frames off their timestamps ({few(off)}); the nearest are used, and "
        f"row.notes says how far off they are. With --tolerance-s {_OFFSET_S:g} such rows have errors, as in LeRobot",
    )


def _aimed(row: VideoRow, entry: Entry) -> VideoRow:
    """The row with its training targets in addition to its class, in frames of the file."""
    if not (entry.series or entry.labels or entry.spans) and entry.frames is None:
        return row
    frames = row.last_frame - row.first_frame + 1
    series = unpack(entry.series).series
    if not entry.first_view:
        series = {name: values for name, values in series.items() if len(values) == frames}
    for name, values in series.items():
        if len(values) != frames:
            return replace(row, error=f"targets: {name} has {len(values)} values, but there are {frames} frames")
    if entry.frames is not None and abs(entry.frames - row.frame_count) > 1:  # the last line may be an empty one
        what = f"{entry.frames} lines, but the file has {row.frame_count} frames"
        return replace(row, error=f"targets: {entry.files.get('')} has {what}")
    spans = []
    for segment, name in entry.spans:
        cut = _cut(row, segment)
        if cut.error is not None:
            return replace(row, error=cut.error.replace("segment:", f"targets: {name}:", 1))
        spans.append(Span(cut.first_frame, cut.last_frame, name))
    try:
        as_listed = entry.first_view and not (entry.labels or spans)
        more = entry.series if as_listed else pack(Targets(entry.labels, tuple(spans), series))
        return replace(row, targets=more)
    except ConfigError as error:
        return replace(row, error=str(error))


def _mostly_beyond(start: float, end: float, of_file: float) -> bool:
    """Labels sometimes end slightly after their file. If half of one does, it belongs to another file or another
    unit."""
    return end - of_file > (end - start) / 2


def _cut(row: VideoRow, segment: Segment | None) -> VideoRow:
    """The row with the segment's frames. Seconds refer to the times at which frames are shown (`Timing`)."""
    whole = replace(row, first_frame=0, last_frame=row.frame_count - 1, error=None)
    if segment is None:
        return whole
    if segment.unit == "s":
        timing = Timing(row)
        if not timing.known:
            return replace(whole, error="segment: in seconds, but the file has no frame rate")
        if segment.frames is not None:
            return _run(whole, timing, segment, segment.frames)
        frames, ends_s = timing.frames(segment.start, segment.end), timing.shown_s(row.frame_count)
        if not frames:
            return replace(whole, error=f"segment: begins at {segment.start:g} s, but the file ends at {ends_s:g} s")
        if segment.end is not None and _mostly_beyond(segment.start, segment.end, ends_s):
            what = f"most of {segment.start:g} s to {segment.end:g} s is after the end of the file at {ends_s:g} s"
            return replace(whole, error=f"segment: {what}{_NO_END}")
        return replace(whole, first_frame=frames[0], last_frame=frames[-1])
    first, last = int(segment.start), row.frame_count - 1
    if segment.end is not None:
        last = min(last, int(segment.end))
    if first <= last and segment.end is not None and _mostly_beyond(first, segment.end + 1, row.frame_count):
        what = f"most of the frames {first} to {segment.end:g} is after the end of the file, which has"
        return replace(whole, error=f"segment: {what} {row.frame_count}{_NO_END}")
    if first > last:
        return replace(whole, error=f"segment: begins at frame {first}, but the file has {row.frame_count} frames")
    return replace(whole, first_frame=first, last_frame=last)
