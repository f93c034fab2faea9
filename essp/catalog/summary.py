"""The content of a catalog, as plain figures, for `essp catalog show`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.notes import lines
from essp_common.catalog.rows import Rows
from essp_common.catalog.splits import straddling
from essp_common.catalog.timing import Timing

COLUMNS = (
    *("id", "uri", "class_name", "split", "size_bytes", "container", "codec", "pixel_format", "width", "height"),
    *("fps", "duration_s", "start_s", "timestamps", "time_base"),
    *("frame_count", "first_frame", "last_frame", "seekable", "keyframe_frame", "group", "event", "view"),
    *("notes", "error"),
)
"""The columns that a summary needs."""

GOP_BOUNDS = (1, 12, 30, 60, 120, 250)
"""Upper bounds of the bins for GOP lengths; one more bin is for longer groups."""


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of videos. Each segment counts, but the bytes of its file count once."""

    videos: int
    frames: int
    hours: float
    bytes: int


@dataclass(frozen=True, slots=True)
class GopLengths:
    """Frames from one keyframe to the next, over all usable files: the run-up that a random clip costs."""

    shortest: int
    median: int
    longest: int
    counts: dict[str, int]
    """`2-12` -> number of groups with this number of frames."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Videos that cannot be used for one kind of reason, or usable videos with a peculiarity."""

    kind: str
    videos: int
    examples: tuple[str, ...]
    """Some of them, as `id: reason`."""


@dataclass(frozen=True, slots=True)
class Events:
    """The events that several views show."""

    count: int
    whole: int
    """Events that can be used with all views."""
    views: dict[str, int]
    """View -> usable videos of it."""
    partial: tuple[str, ...]
    """Some of the other events, as `event: what is wrong with its views`."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a catalog. All but `problems` describe usable videos."""

    source: str
    rows: int
    usable: Amount
    splits: dict[str, Amount]
    classes: dict[str, dict[str, int]]
    """Class -> split -> usable videos; includes every class of the catalog."""
    codecs: dict[str, int]
    """`container/codec/pixel format` -> videos; the most frequent first, as in the next two."""
    sizes: dict[str, int]
    """`WxH` -> videos."""
    frame_rates: dict[str, int]
    seekable: int
    """Videos whose keyframes can be entry points; other videos are decoded from the start."""
    gop: GopLengths | None
    """None if no video is usable."""
    groups: dict[str, int]
    """Split -> number of groups with videos in it; empty without groups."""
    straddling: dict[str, tuple[str, ...]]
    """Groups that have videos in several splits -> these splits."""
    events: Events | None
    """None: no video has a view."""
    variable_rate: int
    """Videos whose frame rate varies."""
    notes: tuple[Problem, ...]
    """Peculiarities of usable files, such as interlacing; each file counts once."""
    problems: tuple[Problem, ...]


def summarize(catalog: Catalog, examples: int = 3) -> Summary:
    """The figures of a catalog, with at most `examples` examples of each problem."""
    usable = catalog.rows.where(catalog.rows.usable)
    splits = {name: usable.where(usable.has("split", name)) for name in usable.names("split")}
    varies = usable.lengths("timestamps") > 0
    return Summary(
        source=catalog.source,
        rows=len(catalog.rows),
        usable=_amount(usable),
        splits={name: _amount(rows) for name, rows in splits.items()},
        classes=_classes(catalog, splits),
        codecs=_ranked(_codecs(usable)),
        sizes=_ranked(_sizes(usable)),
        frame_rates=_ranked(_frame_rates(usable, varies)),
        seekable=int(usable.numbers("seekable").sum()),
        gop=_gop_lengths(usable),
        groups={name: rows.groups for name, rows in splits.items() if rows.groups},
        straddling=straddling(splits.items()),
        events=_events(catalog.rows, examples),
        variable_rate=int(varies.sum()),
        notes=_notes(_files(usable), examples),
        problems=_problems(catalog.rows.where(~catalog.rows.usable), examples),
    )


def _classes(catalog: Catalog, splits: Mapping[str, Rows]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {name: {} for name in catalog.classes}
    for split, rows in splits.items():
        codes, names = rows.words("class_name")
        for code, videos in zip(*_counted(codes), strict=True):
            counts[names.value(code)][split] = videos
    return counts


def _amount(rows: Rows) -> Amount:
    first, last = (rows.numbers(name).astype(np.int64) for name in ("first_frame", "last_frame"))
    files = _files(rows)
    seconds = _seconds(rows, last - first + 1)
    return Amount(len(rows), int((last - first + 1).sum()), seconds / 3600, int(files.numbers("size_bytes").sum()))


def _files(rows: Rows) -> Rows:
    """One row of each file."""
    _, first = np.unique(rows.alike("uri"), return_index=True)
    return rows.where(first)


def _seconds(rows: Rows, frames: NDArray[np.int64]) -> float:
    fps, varies = rows.numbers("fps"), rows.lengths("timestamps") > 0
    steady = (fps > 0) & ~varies
    timings = ((Timing(row), row) for row in rows.where(varies & (fps > 0)))
    return float((frames[steady] / fps[steady]).sum()) + sum(
        timing.shown_s(row.last_frame + 1) - timing.shown_s(row.first_frame) for timing, row in timings
    )


def _events(rows: Rows, examples: int) -> Events | None:
    views = [name for name in rows.names("view") if name]
    if not views:
        return None
    held = rows.where(~rows.has("view", ""))
    codes, words = held.words("view")
    errors, reasons = held.words("error")
    event = held.alike("event")
    count = int(event.max(initial=-1)) + 1
    usable = np.zeros((count, len(words)), np.bool_)
    usable[event[errors < 0], codes[errors < 0]] = True
    wanted = np.array([words.value(code) in views for code in range(len(words))], np.bool_)
    whole: NDArray[np.bool_] = np.asarray(usable[:, wanted].all(axis=1))
    why: dict[int, list[str]] = {}
    for row in np.flatnonzero((errors >= 0) & ~whole[event]).tolist():
        why.setdefault(int(event[row]), []).append(f"{words.value(codes[row])}: {reasons.value(errors[row])}")
    _, first = np.unique(event, return_index=True)
    there = np.zeros((count, len(words)), np.bool_)
    there[event, codes] = True
    partial = []
    for number in np.flatnonzero(~whole)[:examples].tolist():
        missing = [words.value(code) for code in np.flatnonzero(~there[number] & wanted).tolist()]
        said = [*(f"{view}: there is none" for view in sorted(missing)), *why.get(number, [])]
        partial.append(f"{held.text('event', int(first[number]))}: {'; '.join(said)}")
    counts = {words.value(code): int(usable[:, code].sum()) for code in range(len(words)) if wanted[code]}
    return Events(count, int(whole.sum()), dict(sorted(counts.items())), tuple(partial))


def _codecs(rows: Rows) -> Iterator[tuple[str, int]]:
    columns = [rows.words(name) for name in ("container", "codec", "pixel_format")]
    codes = np.stack([codes.astype(np.int64) for codes, _ in columns])
    found, videos = np.unique(codes, axis=1, return_counts=True)
    for each, count in zip(found.T.tolist(), videos.tolist(), strict=True):
        yield "/".join(words.value(code) for code, (_, words) in zip(each, columns, strict=True)), count


def _sizes(rows: Rows) -> Iterator[tuple[str, int]]:
    sizes = rows.numbers("width").astype(np.int64) << 32 | rows.numbers("height")
    for each, count in zip(*_counted(sizes), strict=True):
        yield f"{each >> 32}x{each & 0xFFFFFFFF}", count


def _frame_rates(rows: Rows, varies: NDArray[np.bool_]) -> Iterator[tuple[str, int]]:
    yield "variable", int(varies.sum())
    for fps, count in zip(*_counted(rows.numbers("fps")[~varies]), strict=True):
        yield f"{fps:.5g}", count


def _counted(values: NDArray[Any]) -> tuple[list[Any], list[int]]:
    found, counts = np.unique(values, return_counts=True)
    return found.tolist(), counts.tolist()


def _ranked(found: Iterable[tuple[str, int]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for name, count in found:
        counts[name] += count
    return dict(sorted((+counts).items(), key=lambda item: (-item[1], item[0])))


def _gop_lengths(usable: Rows) -> GopLengths | None:
    files = _files(usable)
    if not len(files):
        return None
    counts, owners, frames = files.lists("keyframe_frame")
    entered = files.numbers("seekable") & (counts > 0)
    frames, owners = frames[entered[owners]], owners[entered[owners]]
    # A file that can be entered only at its start is one long group.
    whole = np.flatnonzero(~entered)
    starts = np.concatenate([frames.astype(np.int64), np.zeros(len(whole), np.int64)])
    owners = np.concatenate([owners, whole])
    order = np.argsort(owners, kind="stable")
    starts, owners = starts[order], owners[order]
    ends = np.append(starts[1:], 0)
    last = np.append(owners[1:] != owners[:-1], True)
    ends[last] = files.numbers("frame_count")[owners[last]]
    lengths = np.sort(ends - starts)
    edges = np.searchsorted(lengths, [0, *GOP_BOUNDS], "right")
    bounds = [0, *GOP_BOUNDS]
    held = {_span(low + 1, high): int(n) for (low, high), n in zip(pairwise(bounds), np.diff(edges), strict=True)}
    held[f">{GOP_BOUNDS[-1]}"] = len(lengths) - int(edges[-1])
    return GopLengths(int(lengths[0]), int(lengths[len(lengths) // 2]), int(lengths[-1]), held)


def _span(low: int, high: int) -> str:
    return str(high) if low == high else f"{low}-{high}"


def _notes(rows: Rows, examples: int) -> tuple[Problem, ...]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    codes, words = rows.words("notes")
    for row, code in enumerate(codes.tolist()):
        for kind, what in lines(words.value(code)):
            found[kind].append(f"{rows.text('id', row)}: {what}")
    return _ranked_problems(found, examples)


def _problems(rows: Rows, examples: int) -> tuple[Problem, ...]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    codes, words = rows.words("error")
    for row, code in enumerate(codes.tolist()):
        kind, _, reason = words.value(code).partition(": ")
        found[kind].append(f"{rows.text('id', row)}: {reason or kind}")
    return _ranked_problems(found, examples)


def _ranked_problems(found: Mapping[str, Sequence[str]], examples: int) -> tuple[Problem, ...]:
    ranked = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(Problem(kind, len(told), tuple(told[:examples])) for kind, told in ranked)
