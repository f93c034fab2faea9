"""What is wrong with a data set, given the rows of its catalog and the measures of its files. Pure.

A finding is about one video (a row of the catalog), several videos together, or a class. A segment of a file has
findings only for its own frames. A finding about the whole file is reported once, with its first row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from typing import Literal

import numpy as np

from essp.catalog.check import duplicates
from essp.catalog.check.measures import Measures, Stretch
from essp_common.catalog.notes import BITS, CROP, INTERLACED, SALVAGED, SIZES, TRACKS, lines
from essp_common.catalog.rows import VideoRow
from essp_common.quantities import percent

Gravity = Literal["error", "warning", "note"]
GRAVITIES: tuple[Gravity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding."""

    gravity: Gravity
    title: str
    remedy: str


KINDS = {
    "leak": Kind(
        "error",
        "the same video in several splits",
        "Keep one of them, or move all to one split: such videos inflate the measured quality of the model.",
    ),
    "group_leak": Kind(
        "error",
        "a group in several splits",
        "Put all videos of a group into one split: otherwise the model already knows the person or the recording.",
    ),
    "label_conflict": Kind(
        "error", "the same video with different labels", "Decide which label is right, and drop the other row."
    ),
    "unreadable": Kind(
        "error",
        "files that could not be read",
        "Repair or replace the file, then build the catalog again; for `timeout`, a larger --timeout-s may be enough.",
    ),
    "frame_count": Kind(
        "error",
        "more or fewer frames than the catalog says",
        "The file has changed, or is damaged in a part that the build did not read: build the catalog again.",
    ),
    "damaged": Kind(
        "error",
        "frames that do not decode",
        "Get the file again or re-encode it; clips with these frames fail, unless `limits.strict` is off.",
    ),
    "untrained": Kind(
        "error", "classes that are evaluated but never trained", "Add training videos, or drop the class."
    ),
    "unusable": Kind(
        "warning",
        "videos that the catalog leaves out",
        "Each has its reason; repair them and build the catalog again, or ignore them.",
    ),
    "views": Kind(
        "warning",
        "events that not all views show",
        "Loops that take all views leave these events out; repair or add the video, and build the catalog again.",
    ),
    "duplicate": Kind("warning", "copies in one split", "Keep one of them: each copy counts again."),
    "near_duplicate": Kind(
        "warning",
        "near-duplicates in one split",
        "Compare them. If they are one video in several sizes or codecs, keep the best one.",
    ),
    "too_short": Kind(
        "warning",
        "shorter than a clip",
        "Their last frame is repeated; use a smaller stride or fewer frames, or leave them out.",
    ),
    "black": Kind("warning", "black stretches", "Cut them off with segments (start_s, end_s in a CSV source)."),
    "frozen": Kind(
        "warning", "frozen stretches", "Nothing moves in these frames: cut them off with segments, or drop the video."
    ),
    "cut": Kind(
        "warning",
        "cuts within a video",
        "A clip across a cut shows two scenes, and its flow is noise: list each scene as a segment.",
    ),
    SALVAGED: Kind(
        "warning",
        "files that are used in part",
        "They are truncated or damaged, and the catalog was built with --salvage: get them again if you can.",
    ),
    SIZES: Kind(
        "warning",
        "a changing frame size",
        "All frames are scaled to the size of the first one: cut the file at the change (segments), or re-encode it.",
    ),
    BITS: Kind(
        "warning",
        "grey of more than 8 bits",
        "Distances, temperatures and X-rays lose all but the upper 8 bits, except in a loop that takes them as gray16. "
        "Otherwise map the range that matters to 8 bits first (ffmpeg -vf curves, or the camera's own tool).",
    ),
    "one_keyframe": Kind(
        "warning",
        "no keyframe to start from",
        "Each clip is decoded from the start of the file; encode with a keyframe every 1 to 10 s "
        "(ffmpeg -g), or take several clips a visit (sampling: pooled).",
    ),
    "unused_keyframes": Kind(
        "warning",
        "unusable keyframes",
        "Each clip is decoded from the start of the file: decoding from its keyframes gives other frames, or its "
        "timestamps are ambiguous. Copying it often helps (ffmpeg -i FILE -c copy FILE.mkv); otherwise encode "
        "it again, or take several clips a visit (sampling: pooled).",
    ),
    "imbalance": Kind(
        "warning",
        "classes of very unequal size",
        "Draw by class (sampling: class_balanced), or report the mean over classes.",
    ),
    "long_gop": Kind(
        "note",
        "keyframes far apart",
        "Decoding a clip may need this number of earlier frames; encode with more keyframes (ffmpeg -g).",
    ),
    INTERLACED: Kind(
        "note",
        "interlaced video",
        "Each frame mixes two moments, line by line, so moving edges look like combs, also in `flow`. ESSP, like "
        "ffmpeg and decord, scales such frames whole. To deinterlace them, re-encode: ffmpeg -vf bwdif.",
    ),
    TRACKS: Kind(
        "note",
        "several video tracks",
        "The default track is used, or the largest of several. To use another, extract it: ffmpeg -i FILE -map 0:v:1 "
        "-c copy FILE.mkv.",
    ),
    CROP: Kind(
        "note",
        "edges that players crop",
        "Clips have the whole picture (as with PyAV, decord and torchvision). To crop it, re-encode: ffmpeg 7.1 or "
        "later crops by default, an earlier version needs -vf crop.",
    ),
    "variable_rate": Kind(
        "note",
        "a variable frame rate",
        "Equal strides in frames are unequal times here; clip.fps chooses frames by time. ESSP cuts segments by "
        "timestamps; other tools may not.",
    ),
    "declared_frames": Kind(
        "note",
        "a wrong number of frames in the header",
        "ESSP counts the frames itself; tools that trust the header select wrong frames.",
    ),
    "pixel_aspect": Kind(
        "note",
        "non-square pixels",
        "Players stretch these pictures; clips have the stored pixels unchanged (as with PyAV, decord and "
        "torchvision). To mix them with other videos, re-encode: ffmpeg -vf scale=iw*sar:ih,setsar=1.",
    ),
    "unproven": Kind(
        "note",
        "facts from the index of the files",
        "Run the same `essp catalog build` without --quick: it decodes these files, completes their rows, and finds "
        "damage. Until then, decoders verify what they read, which takes more time.",
    ),
    "odd_size": Kind(
        "note", "an unusual size", "Far smaller or larger than most: check whether it belongs to this data set."
    ),
    "odd_shape": Kind(
        "note",
        "an unusual shape",
        "Its aspect ratio differs from most: resizing it to a fixed size distorts it; crop instead.",
    ),
}
"""By severity, the gravest first."""

LONG_GOP = 300
"""Frames from one keyframe to the next: encoders do not exceed 250 by default."""
_UNEVEN = 10.0
"""Reported if the largest class has this many times as many videos as the smallest."""
_ODD_AREA = 6.0
_ODD_RATIO = 1.6
_SQUARE = 0.02
"""The allowed difference between the sides of a pixel: encoders round sizes to whole blocks."""
_EVALUATION = frozenset({"validation", "val", "test"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    kind: str
    subject: str
    """The id of the video, or the name of whatever else has the fault."""
    what: str
    videos: tuple[str, ...] = ()
    """Ids of all videos that have the fault."""
    frames: tuple[int, int] | None = None
    """First and last frame in the file."""
    weight: float = 0.0
    """How grave the finding is among those of its kind."""
    shows: tuple[tuple[str, int], ...] = ()
    """URI of a file and the index of the stretch to show. -1: a few frames from all over the file."""

    @property
    def gravity(self) -> Gravity:
        return KINDS[self.kind].gravity


@dataclass(frozen=True, slots=True)
class Wanted:
    """The intended use of a data set."""

    frames: int = 16
    stride: int = 1
    """Frames of a clip."""
    long_gop: int = LONG_GOP

    @property
    def span(self) -> int:
        """Frames from the first to the last frame of a clip, including both."""
        return (self.frames - 1) * self.stride + 1


def find(rows: Sequence[VideoRow], measures: Mapping[str, Measures], wanted: Wanted) -> list[Finding]:
    """All findings, the gravest kind first. `measures`: the files that were read, by URI."""
    by_file: defaultdict[str, list[VideoRow]] = defaultdict(list)
    for row in rows:
        by_file[row.uri].append(row)
    found = [
        *(
            finding
            for uri, segments in by_file.items()
            for finding in _of_file(uri, segments, measures.get(uri), wanted)
        ),
        *_of_quick_builds([row for row in rows if row.error is None]),
        *_of_sizes([row for row in rows if row.error is None]),
        *_of_classes([row for row in rows if row.error is None]),
        *_of_groups([row for row in rows if row.error is None]),
        *_of_events(rows),
        *(finding for uri, segments in by_file.items() for finding in _of_overlaps(uri, segments)),
        *_of_likenesses(by_file, measures),
    ]
    order = {kind: place for place, kind in enumerate(KINDS)}
    return sorted(found, key=lambda one: (order[one.kind], -one.weight, one.subject, one.frames or (0, 0)))


def _of_file(uri: str, rows: Sequence[VideoRow], seen: Measures | None, wanted: Wanted) -> Iterator[Finding]:
    usable = [row for row in rows if row.error is None]
    for row in rows:
        if row.error is not None:
            yield Finding("unusable", row.id, row.error, (row.id,))
        elif (length := row.last_frame - row.first_frame + 1) < wanted.span:
            what = f"{length} frames; a clip of {wanted.frames} frames at stride {wanted.stride} takes {wanted.span}"
            yield Finding("too_short", row.id, what, (row.id,), weight=-length, shows=((uri, -1),))
    if usable:
        yield from _of_access(uri, usable[0], seen, wanted)
        yield from _of_notes(uri, usable[0], seen)
    if usable and seen is not None:
        yield from _of_reading(uri, usable[0], seen)
        for row in usable:
            for place, stretch in enumerate(seen.stretches):
                yield from _of_stretch(uri, row, place, stretch)


def _of_events(rows: Sequence[VideoRow]) -> Iterator[Finding]:
    """Events with a view that is missing or unusable."""
    events: defaultdict[str, dict[str, VideoRow]] = defaultdict(dict)
    for row in rows:
        if row.view:
            events[row.event][row.view] = row
    views = sorted({view for shown in events.values() for view in shown})
    for event, shown in events.items():
        usable = [view for view, row in shown.items() if row.error is None]
        if lacking := [view for view in views if view not in usable]:
            ids = tuple(row.id for row in shown.values())
            what = "is missing or unusable" if len(lacking) == 1 else "are missing or unusable"
            yield Finding("views", event, f"{' and '.join(lacking)} {what}", ids)


def _of_quick_builds(rows: Sequence[VideoRow]) -> Iterator[Finding]:
    """The videos whose rows were made without decoding; together, because these may be all."""
    unproven = [row for row in rows if row.unproven]
    if unproven:
        lacking = sorted({fact for row in unproven for fact in row.unproven.split()})
        what = f"{len(unproven)} of {len(rows)} videos; not verified: {', '.join(lacking)}"
        yield Finding("unproven", "the catalog", what, tuple(row.id for row in unproven))


def _of_notes(uri: str, row: VideoRow, seen: Measures | None) -> Iterator[Finding]:
    """What the catalog notes about the file, and what all its frames show; the build may have read only a few."""
    notes = dict(lines(row.notes)) | dict(lines(seen.notes if seen is not None else ""))
    for kind, what in notes.items():
        if kind in KINDS:
            yield Finding(kind, row.id, what, (row.id,), shows=((uri, -1),))


def _of_access(uri: str, row: VideoRow, seen: Measures | None, wanted: Wanted) -> Iterator[Finding]:
    """How expensive it is to reach a frame, according to the catalog."""
    show = ((uri, -1),)
    edges = (*row.keyframe_frame, row.frame_count)
    longest = max((after - before for before, after in pairwise(edges)), default=row.frame_count)
    if row.frame_count > wanted.long_gop and (len(row.keyframe_frame) < 2 or not row.seekable):
        marked = max(seen.keyframes if seen is not None else 0, len(row.keyframe_frame))
        kind = "unused_keyframes" if marked > 1 else "one_keyframe"
        which = f"all {marked} keyframes are unusable" if marked > 1 else "one keyframe" if marked else "no keyframe"
        yield Finding(
            kind, row.id, f"{which} in {row.frame_count} frames", (row.id,), weight=row.frame_count, shows=show
        )
    elif longest > wanted.long_gop:
        yield Finding("long_gop", row.id, f"up to {longest} frames", (row.id,), weight=longest, shows=show)
    if row.timestamps:
        yield Finding("variable_rate", row.id, f"{row.fps:.4g} frames/s in the mean", (row.id,), shows=show)


def _of_reading(uri: str, row: VideoRow, seen: Measures) -> Iterator[Finding]:
    """What contradicts the catalog in the file as it was read."""
    show = ((uri, -1),)
    if SALVAGED in dict(lines(row.notes)):
        seen = _before_damage(row, seen)
    if seen.error is not None:
        yield Finding("unreadable", row.id, seen.error, (row.id,))
        return
    held = seen.frames if seen.decoded else seen.packets
    if (seen.decoded or row.lookahead) and held != row.frame_count:
        what = f"{held} {'frames' if seen.decoded else 'packets'}, the catalog says {row.frame_count}"
        yield Finding("frame_count", row.id, what, (row.id,), weight=abs(held - row.frame_count), shows=show)
    elif seen.declared and seen.declared != row.frame_count:
        what = f"the header declares {seen.declared} frames, but the file shows {row.frame_count}"
        weight = abs(seen.declared - row.frame_count)
        yield Finding("declared_frames", row.id, what, (row.id,), weight=weight)
    aspect = 1 / seen.pixel_aspect if row.rotation % 180 else seen.pixel_aspect
    if abs(log(aspect)) > _SQUARE:
        what = f"{row.width} x {row.height}, displayed as {round(row.width * aspect)} x {row.height}"
        yield Finding("pixel_aspect", row.id, what, (row.id,), weight=abs(log(aspect)), shows=show)
    if seen.damaged:
        what = f"{seen.damaged} packets or frames, the first at frame {seen.first_damaged}"
        yield Finding("damaged", row.id, what, (row.id,), (seen.first_damaged,) * 2, seen.damaged, show)


def _before_damage(row: VideoRow, seen: Measures) -> Measures:
    """The measures of a file that is used in part, without what is known to be wrong after that part."""
    known = (seen.error or "").partition(":")[0] in ("truncated", "damaged") or seen.first_damaged >= row.frame_count
    held = seen.frames if seen.decoded else seen.packets
    return replace(
        seen,
        error=None if known else seen.error,
        damaged=0 if known else seen.damaged,
        declared=0,
        frames=row.frame_count if known or held >= row.frame_count else seen.frames,
        packets=row.frame_count if known or held >= row.frame_count else seen.packets,
    )


def _of_stretch(uri: str, row: VideoRow, place: int, stretch: Stretch) -> Iterator[Finding]:
    first, last = max(stretch.first, row.first_frame), min(stretch.last, row.last_frame)
    if first > last or (stretch.kind == "cut" and first == last):
        return
    show = ((uri, place),)
    if stretch.kind == "cut":
        yield Finding("cut", row.id, f"before frame {last}{_at(row, last)}", (row.id,), (first, last), shows=show)
        return
    length, whole = last - first + 1, row.last_frame - row.first_frame + 1
    extent = "all" if length == whole else percent(length / whole, 0)
    what = f"frames {first} to {last}{_at(row, first)}, {extent} of the video"
    yield Finding(stretch.kind, row.id, what, (row.id,), (first, last), length / whole, show)


def _at(row: VideoRow, frame: int) -> str:
    """The time of a frame, if the frame rate is constant."""
    return f" ({row.start_s + frame / row.fps:.2f} s)" if row.fps and not row.timestamps else ""


def _of_sizes(rows: Sequence[VideoRow]) -> Iterator[Finding]:
    if len(rows) < 3:
        return
    areas = np.array([row.width * row.height for row in rows], np.float64)
    ratios = np.array([row.width / max(row.height, 1) for row in rows])
    area, ratio = float(np.median(areas)), float(np.median(ratios))
    for row, its_area, its_ratio in zip(rows, areas.tolist(), ratios.tolist(), strict=True):
        size, show = f"{row.width} x {row.height}", ((row.uri, -1),)
        off = max(its_area / area, area / max(its_area, 1.0))
        if off >= _ODD_AREA:
            what = f"{size}: {off:.0f} times {'larger' if its_area > area else 'smaller'} than the median"
            yield Finding("odd_size", row.id, what, (row.id,), weight=off, shows=show)
        off = max(its_ratio / ratio, ratio / max(its_ratio, 1e-9))
        if off >= _ODD_RATIO:
            what = f"{size}: width to height is {its_ratio:.2f}, the median is {ratio:.2f}"
            yield Finding("odd_shape", row.id, what, (row.id,), weight=off, shows=show)


def _of_classes(rows: Sequence[VideoRow]) -> Iterator[Finding]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        counts[row.split][row.class_name] += 1
    trained = counts["train"] or counts[""]
    if not trained:
        return
    (largest, most), *_, (smallest, least) = [*trained.most_common(), *trained.most_common()[-1:]]
    if most >= _UNEVEN * least:
        what = f"{most} videos of {largest!r}, {least} of {smallest!r}"
        yield Finding("imbalance", "training split", what, weight=most / least)
    for split in sorted(_EVALUATION & set(counts)):
        for name in sorted(set(counts[split]) - set(trained)):
            what = f"{counts[split][name]} videos in {split}, but no training video"
            yield Finding("untrained", name or "(unlabelled)", what, weight=counts[split][name])


def _of_groups(rows: Sequence[VideoRow]) -> Iterator[Finding]:
    groups: defaultdict[str, list[VideoRow]] = defaultdict(list)
    for row in rows:
        if row.group:
            groups[row.group].append(row)
    for name, members in groups.items():
        if _several_splits(members):
            yield Finding("group_leak", name, _splits(members), tuple(row.id for row in members), weight=len(members))


def _several_splits(rows: Sequence[VideoRow]) -> bool:
    """Videos without a split are used neither to train nor to measure."""
    return len({row.split for row in rows if row.split}) > 1


def _of_overlaps(uri: str, rows: Sequence[VideoRow]) -> Iterator[Finding]:
    """The first frames of a file that are in two splits."""
    latest: dict[str, VideoRow] = {}
    """The segment of each split that ends last so far."""
    usable = [row for row in rows if row.error is None and row.split]
    for row in sorted(usable, key=lambda row: (row.first_frame, row.id)):
        for split, other in latest.items():
            if split != row.split and other.last_frame >= row.first_frame:
                frames = row.first_frame, min(row.last_frame, other.last_frame)
                what = f"frames {frames[0]} to {frames[1]} are in {split} and in {row.split}"
                yield Finding("leak", row.id, what, (other.id, row.id), frames, shows=((uri, -1),))
                return
        if row.split not in latest or row.last_frame > latest[row.split].last_frame:
            latest[row.split] = row


def _of_likenesses(by_file: Mapping[str, Sequence[VideoRow]], measures: Mapping[str, Measures]) -> Iterator[Finding]:
    """Copies and near-duplicates. One copy represents all in the search for near-duplicates."""
    read = {
        uri: seen
        for uri, seen in measures.items()
        if seen.error is None and any(row.error is None for row in by_file.get(uri, ()))
    }
    copies = duplicates.copies({uri: seen.digest for uri, seen in read.items()})
    stands_for = {group[0]: group for group in copies}
    others = {uri for group in copies for uri in group[1:]}
    near = duplicates.near({uri: (seen.shown, seen.moved) for uri, seen in read.items() if uri not in others})
    for group in copies:
        yield _likeness("duplicate", group, by_file)
    for group in near:
        uris = [uri for one in group for uri in stands_for.get(one, [one])]
        events = {row.event for uri in uris for row in by_file[uri]}
        if len(events) > 1 or "" in events:  # two eyes are meant to see the same
            yield _likeness("near_duplicate", uris, by_file)


def _likeness(kind: str, uris: Sequence[str], by_file: Mapping[str, Sequence[VideoRow]]) -> Finding:
    rows = [row for uri in uris for row in by_file[uri] if row.error is None]
    what = "are copies, byte for byte" if kind == "duplicate" else "look the same, frame by frame"
    if _several_splits(rows):
        kind, what = "leak", f"{what}: {_splits(rows)}"
    elif len({row.class_name for row in rows}) > 1 and len({_labels(by_file[uri]) for uri in uris}) > 1:
        names = sorted({row.class_name for row in rows})
        kind, what = "label_conflict", f"{what}: {', '.join(map(repr, names[:5]))}"
    else:
        what = f"{len(uris)} files {what}"
    ids = tuple(row.id for row in rows)
    alike = [next(row.id for row in rows if row.uri == uri) for uri in uris[1:4] if uri != rows[0].uri]
    what += f" (as {', '.join(alike)}{', ...' if len(uris) > 4 else ''})"
    return Finding(kind, ids[0], what, ids, weight=len(ids), shows=tuple((uri, -1) for uri in uris[:4]))


def _labels(rows: Iterable[VideoRow]) -> frozenset[str]:
    return frozenset(row.class_name for row in rows)


def _splits(rows: Sequence[VideoRow]) -> str:
    counts = Counter(row.split or "(none)" for row in rows)
    return ", ".join(f"{count} in {split}" for split, count in sorted(counts.items()))
