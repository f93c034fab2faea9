"""What is wrong with a data set, given the rows of its catalog and the measures of its files. Pure.

A finding is about one video (a row of the catalog), some videos together, or a class. A segment of a file answers for
what is in its frames only; what is the matter with the whole file is told once, with its first row.
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
        "Keep one of them, or move all to one split: figures measured on such videos flatter the model.",
    ),
    "group_leak": Kind(
        "error",
        "a group in several splits",
        "Put all videos of a group into one split: the model knows the person or the recording already.",
    ),
    "label_conflict": Kind(
        "error", "the same video with different labels", "Decide which label is right, and drop the other row."
    ),
    "unreadable": Kind(
        "error",
        "files that could not be read",
        "Repair or replace the file, then build the catalog again; `timeout` may only need --timeout-s.",
    ),
    "frame_count": Kind(
        "error",
        "more or fewer frames than the catalog says",
        "The file has changed, or is damaged where the catalog did not look: build the catalog again.",
    ),
    "damaged": Kind(
        "error",
        "frames that do not decode",
        "Get the file again or encode it anew; clips with these frames fail, unless `limits.strict` is off.",
    ),
    "untrained": Kind(
        "error", "classes that are evaluated and never trained", "Add training videos, or drop the class."
    ),
    "unusable": Kind(
        "warning",
        "videos that the catalog leaves out",
        "The reason is beside each; repair them and build the catalog again, or let them be.",
    ),
    "duplicate": Kind("warning", "copies in one split", "Keep one of them: copies count as often as they are there."),
    "near_duplicate": Kind(
        "warning",
        "near-duplicates in one split",
        "Look at them. If they are one video in several sizes or codecs, keep the best one.",
    ),
    "too_short": Kind(
        "warning",
        "shorter than a clip",
        "Their last frame is repeated; take a smaller stride or fewer frames, or leave them out.",
    ),
    "black": Kind("warning", "black stretches", "Cut them off with segments (start_s, end_s in a CSV source)."),
    "frozen": Kind(
        "warning", "frozen stretches", "Nothing moves in these frames: cut them off with segments, or drop the video."
    ),
    "cut": Kind(
        "warning",
        "cuts within a video",
        "A clip across a cut shows two scenes, and its flow is noise: list the scenes as segments of their own.",
    ),
    SALVAGED: Kind(
        "warning",
        "files of which a part is used",
        "They were cut off or are damaged, and the catalog was built with --salvage: get them again if you can.",
    ),
    SIZES: Kind(
        "warning",
        "a size that changes",
        "All frames are scaled to the size of the first one: cut the file there (segments), or encode it anew.",
    ),
    BITS: Kind(
        "warning",
        "grey of more than 8 bits",
        "Distances, temperatures and X-rays lose what is below the upper 8 bits: bring the range that matters to 8 "
        "bits before (ffmpeg -vf curves, or a tool of the camera).",
    ),
    "one_keyframe": Kind(
        "warning",
        "no keyframe to begin at",
        "Each clip is decoded from the start of the file; encode with a keyframe every 1 to 10 s "
        "(ffmpeg -g), or take several clips a visit (sampling: pooled).",
    ),
    "unused_keyframes": Kind(
        "warning",
        "keyframes that cannot be used",
        "Each clip is decoded from the start of the file: decoding from its keyframes gives other frames, or its "
        "timestamps do not tell them apart. Copying it often helps (ffmpeg -i FILE -c copy FILE.mkv); otherwise encode "
        "it anew, or take several clips a visit (sampling: pooled).",
    ),
    "imbalance": Kind(
        "warning",
        "classes of very unequal size",
        "Draw by class (sampling: class_balanced), or report the mean over classes.",
    ),
    "long_gop": Kind(
        "note",
        "keyframes far apart",
        "A clip costs up to so many frames of run-up; encode with more keyframes (ffmpeg -g).",
    ),
    INTERLACED: Kind(
        "note",
        "interlaced video",
        "Each frame shows two moments, line by line, so moving edges are combs, which `flow` sees as well. ESSP, like "
        "ffmpeg and decord, scales such frames whole. To have them progressive, encode anew: ffmpeg -vf bwdif.",
    ),
    TRACKS: Kind(
        "note",
        "several tracks of pictures",
        "The default one is taken, and of several the largest. For another one, copy it out: ffmpeg -i FILE -map 0:v:1 "
        "-c copy FILE.mkv.",
    ),
    CROP: Kind(
        "note",
        "edges that players cut off",
        "Clips have the whole picture (so with PyAV, decord and torchvision). To cut it, encode anew: ffmpeg from 7.1 "
        "on does so by itself, an earlier one with -vf crop.",
    ),
    "variable_rate": Kind(
        "note",
        "a variable frame rate",
        "A stride in frames is no even time here. ESSP cuts segments by timestamps; other tools may not.",
    ),
    "declared_frames": Kind(
        "note",
        "a wrong number of frames in the header",
        "ESSP counts for itself; tools that trust the header take wrong frames.",
    ),
    "pixel_aspect": Kind(
        "note",
        "pixels that are not square",
        "Players stretch these pictures; clips have the pixels as they are stored (so with PyAV, decord and "
        "torchvision). Beside other videos, encode anew: ffmpeg -vf scale=iw*sar:ih,setsar=1.",
    ),
    "odd_size": Kind("note", "an unusual size", "Far smaller or larger than most: look whether it belongs here."),
    "odd_shape": Kind(
        "note",
        "an unusual shape",
        "Its sides have another ratio than most: a resize to a fixed size distorts it; crop instead.",
    ),
}
"""The gravest first."""

LONG_GOP = 300
"""Frames from one keyframe to the next: encoders do not go beyond 250 unless told to."""
_UNEVEN = 10.0
"""Reported where the largest class has this many times as many videos as the smallest."""
_ODD_AREA = 6.0
_ODD_RATIO = 1.6
_SQUARE = 0.02
"""So far a pixel's sides may differ: encoders round sizes to whole blocks."""
_EVALUATION = frozenset({"validation", "val", "test"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    kind: str
    subject: str
    """The id of the video, or what else it is about."""
    what: str
    videos: tuple[str, ...] = ()
    """Ids of all videos that it is about."""
    frames: tuple[int, int] | None = None
    """First and last frame in the file."""
    weight: float = 0.0
    """How grave it is among those of its kind."""
    shows: tuple[tuple[str, int], ...] = ()
    """URI of a file, and which of its stretches is to be seen; -1: a few frames from all over it."""

    @property
    def gravity(self) -> Gravity:
        return KINDS[self.kind].gravity


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a data set is to be used for."""

    frames: int = 16
    stride: int = 1
    """Of a clip."""
    long_gop: int = LONG_GOP

    @property
    def span(self) -> int:
        """Frames from the first to the last one of a clip, both counted."""
        return (self.frames - 1) * self.stride + 1


def find(rows: Sequence[VideoRow], measures: Mapping[str, Measures], wanted: Wanted) -> list[Finding]:
    """All findings, the gravest kind first. `measures`: by URI, of the files that were read."""
    by_file: defaultdict[str, list[VideoRow]] = defaultdict(list)
    for row in rows:
        by_file[row.uri].append(row)
    found = [
        *(
            finding
            for uri, segments in by_file.items()
            for finding in _of_file(uri, segments, measures.get(uri), wanted)
        ),
        *_of_sizes([row for row in rows if row.error is None]),
        *_of_classes([row for row in rows if row.error is None]),
        *_of_groups([row for row in rows if row.error is None]),
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


def _of_notes(uri: str, row: VideoRow, seen: Measures | None) -> Iterator[Finding]:
    """What the catalog notes of the file, and what all of its frames show; the catalog may have looked at a few."""
    notes = dict(lines(row.notes)) | dict(lines(seen.notes if seen is not None else ""))
    for kind, what in notes.items():
        if kind in KINDS:
            yield Finding(kind, row.id, what, (row.id,), shows=((uri, -1),))


def _of_access(uri: str, row: VideoRow, seen: Measures | None, wanted: Wanted) -> Iterator[Finding]:
    """How hard it is to get at a frame, by what the catalog says."""
    show = ((uri, -1),)
    edges = (*row.keyframe_frame, row.frame_count)
    longest = max((after - before for before, after in pairwise(edges)), default=row.frame_count)
    if row.frame_count > wanted.long_gop and (len(row.keyframe_frame) < 2 or not row.seekable):
        marked = max(seen.keyframes if seen is not None else 0, len(row.keyframe_frame))
        kind = "unused_keyframes" if marked > 1 else "one_keyframe"
        which = f"none of {marked} keyframes can be used" if marked > 1 else "one keyframe" if marked else "no keyframe"
        yield Finding(
            kind, row.id, f"{which} in {row.frame_count} frames", (row.id,), weight=row.frame_count, shows=show
        )
    elif longest > wanted.long_gop:
        yield Finding("long_gop", row.id, f"up to {longest} frames", (row.id,), weight=longest, shows=show)
    if row.timestamps:
        yield Finding("variable_rate", row.id, f"{row.fps:.4g} frames/s in the mean", (row.id,), shows=show)


def _of_reading(uri: str, row: VideoRow, seen: Measures) -> Iterator[Finding]:
    """What reading the file contradicts."""
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
        what = f"declares {seen.declared} frames, {row.frame_count} are shown"
        weight = abs(seen.declared - row.frame_count)
        yield Finding("declared_frames", row.id, what, (row.id,), weight=weight)
    aspect = 1 / seen.pixel_aspect if row.rotation % 180 else seen.pixel_aspect
    if abs(log(aspect)) > _SQUARE:
        what = f"{row.width} x {row.height}, to be shown as {round(row.width * aspect)} x {row.height}"
        yield Finding("pixel_aspect", row.id, what, (row.id,), weight=abs(log(aspect)), shows=show)
    if seen.damaged:
        what = f"{seen.damaged} packets or frames, the first at frame {seen.first_damaged}"
        yield Finding("damaged", row.id, what, (row.id,), (seen.first_damaged,) * 2, seen.damaged, show)


def _before_damage(row: VideoRow, seen: Measures) -> Measures:
    """What was read of a file of which a part is used, without what is known to be the matter behind that part."""
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
    """The time of a frame, where the rate is constant."""
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
            what = f"{size}: width to height {its_ratio:.2f}, the median is {ratio:.2f}"
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
            what = f"{counts[split][name]} videos in {split}, none to train on"
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
    """Videos in no split are neither trained nor measured on."""
    return len({row.split for row in rows if row.split}) > 1


def _of_overlaps(uri: str, rows: Sequence[VideoRow]) -> Iterator[Finding]:
    """The first frames of a file that are in two splits."""
    latest: dict[str, VideoRow] = {}
    """Of each split, the segment that ends last so far."""
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
    """Copies and near-duplicates. Of copies, one stands for all when near-duplicates are looked for."""
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
        yield _likeness("near_duplicate", [uri for one in group for uri in stands_for.get(one, [one])], by_file)


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
