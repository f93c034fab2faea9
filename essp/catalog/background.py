"""Rows of what no label is for: the stretches of a video between those that its source labels.

They make a class of their own, the background, from which a training draws clips as from any class. A stretch shorter
than a second is left out, since people do not label more exactly than that. So is all of a file of which a row cannot
be used, since what that row labels may be anywhere in it; and of a file whose rows are in several splits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from essp_common.catalog.rows import VideoRow
from essp_common.catalog.targets import Targets, pack, unpack

_SEGMENT = re.compile(r"#[\d.]+-[\d.]*s?(?::.*)?$", re.DOTALL)
"""Of an id, behind that of the file, which may have such signs as well."""
_SHORTEST_S = 1.0
_FPS = 25.0
"""Of a video that does not say how many frames a second it has."""


def background_rows(rows: Iterable[VideoRow], class_name: str) -> list[VideoRow]:
    """A row of this class for each stretch of a file that has labelled segments and that none of them covers."""
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
                extra="",
                targets=pack(Targets(labels=(class_name,))) if first.targets else b"",
            )


def _between(covered: Sequence[tuple[int, int]], frames: int) -> Iterator[tuple[int, int]]:
    """The frames [begin, end) that lie in none of these, which are sorted and include their ends."""
    reached = 0
    for begin, last in [*covered, (frames, frames)]:
        if begin > reached:
            yield reached, begin
        reached = max(reached, last + 1)
