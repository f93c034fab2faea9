"""The videos of a catalog: what a source lists, before its videos are opened.

`layouts.py` has all layouts: how each is recognised, and the function that lists it. A source whose kind is not given
has the first layout of that table that fits. `Listing.recognised` reports which one, and why.

A source names every video that it knows: one that is listed but missing, doubled or unlabelled becomes an `Entry` with
an `error`. Files that are not videos by name are counted and not listed.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import PurePosixPath

from essp.catalog import foreign_lists
from essp.catalog.copies import Copies
from essp.catalog.csv_source import read_list
from essp.catalog.entry import Entry, Segment
from essp.catalog.folder_source import FOLDERS
from essp.catalog.found import VIDEO_SUFFIXES, Found, FrameCounts, few, plain, unopened
from essp.catalog.layout import ARCHIVES, LISTS, RECORDINGS, TABLES, Kind, Layout
from essp.catalog.layouts import LAYOUTS
from essp.catalog.lerobot import LEROBOT
from essp.catalog.list_rows import JSON_LINES, PARQUET
from essp.catalog.spool import Spool, in_order
from essp.local_folder import left_out
from essp.uris import as_uri
from essp_common.errors import ConfigError, NotFound
from essp_common.objects.frames import FRAME_RATE, Series, is_series
from essp_common.quantities import counted
from essp_common.wiring import Stores

_LEROBOT = "lerobot://"
_NUMBER = re.compile(r"0*([0-9]+)(\.0*)?")
_USED = frozenset({"", "train", "validation", "test", "autotrain"})
"""Splits that are used by default, and the one that the authors of Hollywood2 call so (docs/catalog.md)."""


@dataclass(frozen=True)
class Listing:
    """All that a source names. Ids are unique."""

    kind: Kind
    entries: Collection[Entry]
    """In order of their ids."""
    ignored: Mapping[str, int]
    """Files that are neither videos nor lists of the source: suffix -> count."""
    recognised: str
    """The kind that the source was recognised as, and why."""
    notes: tuple[str, ...] = ()
    """What users should know about the source."""


def read_source(
    uri: str,
    stores: Stores,
    kind: Kind = "auto",
    split: int = 1,
    group_column: str | None = None,
    whole: bool = False,
    camera: str | None = None,
    tolerance_s: float | None = None,
    frame_counts: FrameCounts = unopened,
    view_columns: str | None = None,
    rate: float = FRAME_RATE,
    copies: Copies | None = None,
) -> Listing:
    """List a source.

    `split`: the train/test division. `group_column`: for a CSV file. `whole`: one entry a file, with its listed
    stretches as targets. `camera`, `tolerance_s`: for LeRobot folders. `frame_counts`: opens videos, for a list that is
    ambiguous otherwise. `view_columns`: the columns of a CSV file with the views of each event. `rate`: frames per
    second of folders of frames. `copies`: where the cameras of MCAP recordings go.

    Raises `NotFound` when the source does not exist or has no video, `ConfigError` when it is not of its kind.
    """
    if uri.startswith(_LEROBOT):
        kind, uri = LEROBOT.name, as_uri(uri.removeprefix(_LEROBOT))
    found = _found(uri, stores, kind, split, camera or "", frame_counts)
    if tolerance_s is not None:
        found.tolerance_s = tolerance_s
    found.rate, found.copies = rate, copies
    own = group_column if view_columns is None else view_columns
    if kind == "csv" or (kind == "auto" and _is_of_its_own(found, own)):
        if not found.given:
            raise ConfigError(f"{uri} is not a file; give the CSV file itself", field="--source", code="type")
        _refuse_of_episodes(uri, camera, tolerance_s)
        listed = read_list(uri, stores, group_column, view_columns, rate=rate)
        _refuse_views(listed.entries, "--whole" if whole else "")
        why = "a list with a column for the path"
        return _complete("csv", listed.entries, {}, uri, why, listed.notes, whole)
    if group_column is not None:
        raise ConfigError(
            f"applies only to a CSV file; {uri} is not a CSV file", field="--group-column", code="unsupported"
        )
    if view_columns is not None:
        raise ConfigError(
            f"applies only to a CSV file; {uri} is not a CSV file", field="--view-columns", code="unsupported"
        )
    kind, why = _kind_of(found, kind)
    layout = LAYOUTS[kind]
    if not layout.episodes:
        _refuse_of_episodes(uri, camera, tolerance_s)
    if whole and layout.episodes:
        raise ConfigError(
            "LeRobot stores several episodes in a file, and each is a row; leave this option out",
            field="--whole",
            code="unsupported",
        )
    ignored = {} if found.given else _ignored(found, layout)
    missed = left_out(uri, VIDEO_SUFFIXES)
    entries = Spool(Entry, layout.read(found))
    if not (found.given or found.camera or layout.copies or layout.complete):  # a part of the content is enough
        entries.extend(found.unlisted(entries))
    folders = {entry.id for entry in entries if is_series(entry.uri)}
    if gaps := sorted(name for name in folders if name in found.frames and found.frames[name].gaps):
        found.notes.append(
            f"numbers are missing in the names of the frames of {counted(len(gaps), 'folder')}, such as {gaps[0]}, or "
            "their steps differ; the frames that are there count as one after the other"
        )
    notes = (*found.notes, *layout.notes(found, entries, missed.empty))
    named = {} if found.given else missed.problems
    entries.extend(Entry(name, "", "", "", error=error) for name, error in named.items())
    return _complete(kind, entries, ignored, uri, why, notes, whole)


def _refuse_of_episodes(uri: str, camera: str | None, tolerance_s: float | None) -> None:
    """Raises `ConfigError` for options that only LeRobot folders have."""
    for option, given in (("--camera", camera), ("--tolerance-s", tolerance_s)):
        if given is not None:
            raise ConfigError(
                f"applies only to a LeRobot folder; {uri} is not a LeRobot folder", field=option, code="unsupported"
            )


def _refuse_views(entries: Iterable[Entry], option: str) -> None:
    """Raises `ConfigError` for views with an option that joins the segments of a file."""
    if option and (first := next((entry for entry in entries if entry.view), None)):
        raise ConfigError(
            f"{first.event} has several views, whose segments belong together; leave this option out",
            field=option,
            code="unsupported",
        )


def _is_of_its_own(found: Found, group_column: str | None) -> bool:
    """Whether the given list is a user's own CSV file: by its name, unless it is in a known format, or by its
    columns."""
    name = found.given.lower()
    if name.endswith(".txt"):
        return foreign_lists.has_paths(found, found.given)
    if not name.endswith((".csv", ".tsv", *JSON_LINES, *PARQUET)):
        return False
    return not any(layout.fits(found) for layout in LAYOUTS.values() if layout.csv and not group_column)


def _found(uri: str, stores: Stores, kind: Kind, split: int, camera: str, frame_counts: FrameCounts) -> Found:
    """The content of the source; for a list, the content of its folder."""
    suffix = PurePosixPath(uri).suffix.lower()
    if suffix and _is_file(uri, stores):
        if kind == "auto":
            foreign_lists.refuse_file(uri)
        if suffix in VIDEO_SUFFIXES:
            raise ConfigError(f"{uri} is one video; give the folder of the class folders, or a CSV file")
        if suffix not in LISTS and not uri.lower().endswith((*ARCHIVES, *TABLES, *RECORDINGS)):
            raise ConfigError(
                f"{uri}: lists of this format are not read; write a CSV file with the columns path, label, split"
            )
        folder, _, name = uri.rpartition("/")
        store = stores.under(folder, videos=True)
        return Found(uri, store, split, name, frame_counts=frame_counts, stores=stores)
    if suffix in (".csv", ".tsv"):
        store, key = stores.resolve(uri)
        store.head(key)  # raises
    store = stores.under(uri, videos=True)
    return Found(uri, store, split, camera=camera, frame_counts=frame_counts, stores=stores)


def _kind_of(found: Found, kind: Kind) -> tuple[Kind, str]:
    """The kind of the source, and why. Raises `NotFound`, and `ConfigError` with what was looked for."""
    if kind != "auto":
        why = LAYOUTS[kind].fits(found) or "as --source says"
        return kind, why
    for name, layout in LAYOUTS.items():
        if why := layout.fits(found):
            return name, why
    foreign_lists.refuse_folder(found)
    looked = "; ".join(f"{name}: {layout.looks}" for name, layout in LAYOUTS.items())
    if found.given:
        raise ConfigError(
            f"{found.uri} is not a known kind of list. Known: csv: columns path, label, split; {looked}. Write a "
            "CSV file, or name the kind with --source"
        )
    ignored = _ignored(found, FOLDERS)
    there = f"it has no video files ({others(ignored)})" if ignored else "there is no such folder, or it is empty"
    hint = f". Known layouts: {looked}" if ignored else ""
    raise NotFound(f"{found.uri}: {there}; give a folder of class folders or a CSV file{hint}")


def _ignored(found: Found, layout: Layout) -> dict[str, int]:
    """Suffix -> count of files that are neither videos nor lists of this kind of source."""
    suffixes = ((key, PurePosixPath(key).suffix.lower()) for key in found.others)
    counts = Counter(suffix or "no suffix" for key, suffix in suffixes if not key.endswith(layout.files))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _is_file(uri: str, stores: Stores) -> bool:
    try:
        store, key = stores.resolve(uri, video=True)
        store.head(key)
    except NotFound:
        return False
    return True


# --- all of them ---


def _complete(
    kind: Kind,
    entries: Iterable[Entry],
    ignored: Mapping[str, int],
    uri: str,
    why: str,
    notes: tuple[str, ...] = (),
    whole: bool = False,
) -> Listing:
    """The listing with unique ids. A second entry of a video stays as a problem. If the entries contradict each other,
    the first one becomes a problem too."""
    entries = Spool(Entry, map(plain, entries))
    labelled = any(entry.class_name for entry in entries)
    without = sum(1 for entry in entries if entry.unlabelled and entry.error is None)
    if without and not labelled and kind != "folders":  # folders already have this note
        what = f"{counted(without, 'video')} of {uri} {'has' if without == 1 else 'have'} no label"
        notes = (*notes, f"{what}, so only prediction is possible")
    listed = map(_unlabelled, entries) if labelled else iter(entries)
    unique = Spool(Entry, _unique(_whole(listed) if whole else listed))
    if not unique:
        raise NotFound(f"{uri}: it lists no video; give a folder of class folders or a CSV file")
    rates, used = Counter[float](), set[str]()
    names: dict[str, set[str]] = {"classes": set(), "splits": set(), "groups": set()}
    for entry in unique:
        if (series := Series.of_key(entry.uri)) is not None:
            rates[series.rate] += 1
        if entry.error is None:
            used.add(entry.split)
        for found, name in zip(names.values(), (entry.class_name, entry.split, entry.group), strict=True):
            found.add(name)
    alike = (note for what, found in names.items() for note in _alike(what, found))
    return Listing(kind, unique, ignored, f"{kind}: {why}", (*notes, *_of_frames(rates), *_unused(used), *alike))


def _unique(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries, in order of their ids, which become unique."""
    for name, held in groupby(in_order(Entry, entries, attrgetter("id")), attrgetter("id")):
        same = list(held)
        said = {(entry.class_name, entry.split, entry.labels) for entry in same if entry.error is None}
        for times, entry in enumerate(same, 1):
            if entry.error is None and len(said) > 1:
                entry = replace(entry, error=f"mislabelled: the source lists it with {_different(said)}")
            elif times > 1:
                entry = replace(entry, error="doubled: the source lists it more than once")
            yield entry if times == 1 else replace(entry, id=f"{name}@{times}")


def _of_frames(rates: Mapping[float, int]) -> Iterator[str]:
    """The rate at which folders of frames are shown, which their pictures do not say."""
    if rates:
        said = ", ".join(f"{count:,} at {rate:g}" for rate, count in sorted(rates.items()))
        yield f"folders of frames are read as videos, by frames per second: {said}; --fps says another rate"


def _unused(splits: Collection[str]) -> Iterator[str]:
    """What to do about splits that no job and no loop uses by default; folds are meant to be named."""
    if other := sorted(split for split in set(splits) - _USED if not split.lower().startswith("fold")):
        yield (
            f"splits called {few(other)} are not used by default: call them train, validation and "
            "test, or name them in a job (data.train, data.validation, data.test) or as split= of essp.Loader"
        )


def _unlabelled(entry: Entry) -> Entry:
    """The entry, as a problem if it has no label: the empty name would be a class among the others."""
    if not entry.unlabelled or entry.error is not None:
        return entry
    cure = "to predict on such videos, build a catalog of them alone"
    return replace(entry, error=f"unlabelled: other videos have a label, but {entry.unlabelled}; {cure}")


def _different(said: Collection[tuple[str, str, tuple[str, ...]]]) -> str:
    """What a source says about one video and contradicts elsewhere."""
    for what, names in (
        ("classes", {class_name for class_name, _, _ in said}),
        ("splits", {split for _, split, _ in said}),
    ):
        if len(names) > 1:
            return f"several {what}: {few(sorted(map(ascii, names)))}"
    return "several sets of labels"


def _alike(what: str, found: Iterable[str]) -> Iterator[str]:
    """Names that are surely meant to be the same."""
    forms: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(found):
        forms[_form(name)].append(name)
    if several := [" and ".join(map(ascii, names)) for names in forms.values() if len(names) > 1]:
        yield (
            f"{what} that differ only in case, in blanks, in how a number is written, or in how their letters are "
            f"encoded: {'; '.join(several[:3])}"
            f"{'; ...' if len(several) > 3 else ''}; if they are one, give it one name"
        )


def _form(name: str) -> str:
    """The form in which similar names are equal: `01` and `1.0`, which some programs write for a number, are also
    equal."""
    text = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    if not text.isascii():
        text = "".join(char for char in text if unicodedata.category(char) != "Cf")  # such as a zero-width space
    number = _NUMBER.fullmatch(text)
    return number[1] if number else text


def _whole(entries: Iterable[Entry]) -> Iterator[Entry]:
    """One entry a file, with its segments as spans. An entry with an error stays separate."""
    for _, held in groupby(in_order(Entry, entries, attrgetter("uri")), attrgetter("uri")):
        parts = []
        for entry in held:
            if entry.error is None:
                parts.append(entry)
            else:
                yield entry
        if parts:
            yield _joined(parts)


def _joined(parts: Sequence[Entry]) -> Entry:
    first = parts[0]
    if all(part.segment is None for part in parts) and len(parts) == 1:
        return first
    shown = [(part.segment or Segment(0, None, "s"), part.labels or (part.class_name,)) for part in parts]
    shown = [(segment, names) for segment, names in shown if names != ("",)]
    joined = replace(
        first,
        id=first.id.rpartition(f"#{first.segment}")[0] if first.segment is not None else first.id,
        segment=None,
        labels=tuple(sorted({name for _, names in shown for name in names})),
        spans=tuple((segment, name) for segment, names in shown for name in names),
    )
    for what, found in (("split", {part.split for part in parts}), ("group", {part.group for part in parts})):
        if len(found) > 1:
            return replace(joined, error=f"{what}: its segments are in several {what}s; leave out --whole")
    return joined


def others(ignored: Mapping[str, int]) -> str:
    """The files that are not videos, in words."""
    kinds = ", ".join(f"{suffix} {count}" for suffix, count in list(ignored.items())[:5])
    return counted(sum(ignored.values()), "other file") + (f": {kinds}" if kinds else "")
