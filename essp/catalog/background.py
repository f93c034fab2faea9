"""Rows for the unlabelled parts of videos: the stretches between the segments that the source labels.

They form a class, the background, from which training draws clips as from any other class. Stretches shorter than a
second are left out, because people do not label more precisely than that. A file is left out entirely if one of its
rows is unusable, because the content of that row may be anywhere in the file, or if its rows are in several splits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from essp_common.catalog.rows import VideoRow
from essp_common.catalog.targets import Targets, pack, unpack

_SEGMENT = re.compile(r"#[\d.]+-[\d.]*s?(?::.*)?$", re.DOTALL)
"""The part of an id after the id of the file, which may contain these characters too."""
_SHORTEST_S = 1.0
_FPS = 25.0
"""The frame rate that is assumed for a video that does not state one."""


def background_rows(rows: Iterable[VideoRow], class_name: str) -> list[VideoRow]:
    """A row of this class for each stretch that the labelled segments of a file leave uncovered."""
    by_file = sorted(rows, key=lambda row: (row.uri, row.id))
    return [row for _, own in groupby(by_file, lambda row: row.uri) for row in _of_file(list(own), class_name)]


def _of_file(rows: Sequence[VideoRow], class_name: str) -> Iterator[VideoRow]:
    first = rows[0]
    if any(row.error is not None for row in rows) or len({row.split for row in rows}) > 1:
        return
    covered = [(row.first_frame, row.last_frame) for row in rows]
    covered += [span[:2] for row in rows for span in unpack(row.targets, names_only=True).spans]
    shortest = _SHORTEST_S * (first.fps if first.fps > 0 else _FPS)
    for begin, end in _between(sorted(covered), first.frame_count):
        if end - begin >= shortest:
            yield replace(
                first,
                id=f"{_SEGMENT.split(first.id, maxsplit=1)[0]}#{begin}-{end - 1}:{class_name}",
                class_name=class_name,
                first_frame=begin,
                last_frame=end - 1,
                event="",
                view="",
                origin_s=0.0,
                extra="",
                targets=pack(Targets(labels=(class_name,))) if first.targets else b"",
            )


def _between(covered: Sequence[tuple[int, int]], frames: int) -> Iterator[tuple[int, int]]:
    """The frame ranges [begin, end) outside `covered`, whose ranges are sorted and include both ends."""
    reached = 0
    for begin, last in [*covered, (frames, frames)]:
        if begin > reached:
            yield reached, begin
        reached = max(reached, last + 1)
