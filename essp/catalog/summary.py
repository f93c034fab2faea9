"""What is in a catalog, as plain figures: the content of `essp catalog show`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from essp_common.catalog.table import Catalog, VideoRow
from essp_common.catalog.timing import Timing
from essp_common.planning.splits import straddling

COLUMNS = (
    *("id", "uri", "class_name", "split", "size_bytes", "container", "codec", "pixel_format", "width", "height"),
    *("fps", "duration_s", "start_s", "timestamps", "time_base"),
    *("frame_count", "first_frame", "last_frame", "seekable", "keyframe_frame", "group", "error"),
)
"""The columns that a summary needs."""

GOP_BOUNDS = (1, 12, 30, 60, 120, 250)
"""Upper ends of the classes in which GOP lengths are counted; one more is for longer ones."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of something there is. Segments count by themselves, their file's bytes once."""

    videos: int
    frames: int
    hours: float
    bytes: int


@dataclass(frozen=True, slots=True)
class GopLengths:
    """Frames from one keyframe to the next, over all usable files: what a random clip's run-up costs."""

    shortest: int
    median: int
    longest: int
    counts: dict[str, int]
    """`2-12` -> groups of so many frames."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Videos that cannot be used for one kind of reason."""

    kind: str
    videos: int
    examples: tuple[str, ...]
    """Some of them, as `id: reason`."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a catalog. All but `problems` are of the usable videos."""

    source: str
    rows: int
    usable: Amount
    splits: dict[str, Amount]
    classes: dict[str, dict[str, int]]
    """Class -> split -> usable videos; every class of the catalog."""
    codecs: dict[str, int]
    """`container/codec/pixel format` -> videos; the most frequent first, like the next two."""
    sizes: dict[str, int]
    """`WxH` -> videos."""
    frame_rates: dict[str, int]
    seekable: int
    """Videos that can be entered at their keyframes; others are decoded from the start."""
    gop: GopLengths | None
    """None without a usable video."""
    groups: dict[str, int]
    """Split -> groups with videos in it; empty without groups."""
    straddling: dict[str, tuple[str, ...]]
    """Groups that have videos in several splits -> those splits."""
    variable_rate: int
    """Videos whose frame rate varies."""
    problems: tuple[Problem, ...]


def summarize(catalog: Catalog, examples: int = 3) -> Summary:
    """The figures of a catalog, with so many examples of each problem."""
    usable = [row for row in catalog.rows if row.error is None]
    splits: defaultdict[str, list[VideoRow]] = defaultdict(list)
    classes: dict[str, Counter[str]] = {name: Counter() for name in catalog.classes}
    for row in usable:
        splits[row.split].append(row)
        classes[row.class_name][row.split] += 1
    return Summary(
        source=catalog.source,
        rows=len(catalog.rows),
        usable=_amount(usable),
        splits={name: _amount(splits[name]) for name in sorted(splits)},
        classes={name: dict(sorted(counts.items())) for name, counts in classes.items()},
        codecs=_ranked(f"{row.container}/{row.codec}/{row.pixel_format}" for row in usable),
        sizes=_ranked(f"{row.width}x{row.height}" for row in usable),
        frame_rates=_ranked("variable" if row.timestamps else f"{row.fps:.5g}" for row in usable),
        seekable=sum(row.seekable for row in usable),
        gop=_gop_lengths(usable),
        groups={name: len(found) for name in sorted(splits) if (found := {row.group for row in splits[name]} - {""})},
        straddling=straddling(splits.items()),
        variable_rate=sum(bool(row.timestamps) for row in usable),
        problems=_problems(catalog.rows, examples),
    )


def _amount(rows: Sequence[VideoRow]) -> Amount:
    frames = [row.last_frame - row.first_frame + 1 for row in rows]
    timings = [(Timing(row), row) for row in rows if row.fps]
    seconds = sum(timing.shown_s(row.last_frame + 1) - timing.shown_s(row.first_frame) for timing, row in timings)
    return Amount(len(rows), sum(frames), seconds / 3600, sum({row.uri: row.size_bytes for row in rows}.values()))


def _ranked(values: Iterable[str]) -> dict[str, int]:
    counts = Counter(values)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _gop_lengths(usable: Sequence[VideoRow]) -> GopLengths | None:
    lengths: Counter[int] = Counter()
    for row in {row.uri: row for row in usable}.values():
        # A file that can be entered only at its start is one long group.
        starts = row.keyframe_frame if row.seekable and row.keyframe_frame else (0,)
        lengths.update(end - start for start, end in pairwise((*starts, row.frame_count)))
    if not lengths:
        return None
    ordered = sorted(lengths.elements())
    bounds = [0, *GOP_BOUNDS]
    counts = {_span(low + 1, high): sum(lengths[n] for n in range(low + 1, high + 1)) for low, high in pairwise(bounds)}
    counts[f">{GOP_BOUNDS[-1]}"] = sum(count for n, count in lengths.items() if n > GOP_BOUNDS[-1])
    return GopLengths(ordered[0], ordered[len(ordered) // 2], ordered[-1], counts)


def _span(low: int, high: int) -> str:
    return str(high) if low == high else f"{low}-{high}"


def _problems(rows: Iterable[VideoRow], examples: int) -> tuple[Problem, ...]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.error is not None:
            kind, _, reason = row.error.partition(": ")
            found[kind].append(f"{row.id}: {reason or kind}")
    ranked = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(Problem(kind, len(lines), tuple(lines[:examples])) for kind, lines in ranked)
