"""The default plan of training: draw a class, then a video, then an offset in the video, each uniformly at random.

A job that mixes sources draws the source before that, by its share (`cells.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.view import CatalogView
from essp_common.counter_rng import CounterRng, below, below_each
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import MixSpec
from essp_common.pb.v1.messages_pb2 import Purpose
from essp_engine.planning.cells import Cells
from essp_engine.planning.planned_clip import PlanBase, PlannedClip, snippet_begins

_SNIPPETS = 1 << 61
"""A bit that separates the random stream for a clip's later snippets from the others."""
_AHEAD = 1024
"""Clips drawn at once: a few draws cost as much as many."""


class ClassBalanced(PlanBase):
    """`size` clips: for each a class, then a video of it, then a place in the video, all drawn uniformly.

    With a `mix`, the source of the video is drawn first, by its share. Classes without a usable video are left out
    (`plan.empty_classes`). The n-th replacement at an index is a video of the same class, and source, that no earlier
    attempt took. Raises `ConfigError` if the mix does not fit the videos.
    """

    def __init__(
        self,
        view: CatalogView,
        clip: ClipSpec,
        size: int,
        seed: int,
        purpose: Purpose,
        epoch: int,
        locality: int = 0,
        mix: MixSpec | None = None,
    ) -> None:
        super().__init__(view, clip, size, locality)
        self._stream = purpose << 32 | epoch
        """The random stream of the phase."""
        self._rng, self._snippets_rng = CounterRng(seed, self._stream), CounterRng(seed, _SNIPPETS | self._stream)
        self._cells = Cells(view, mix)
        self._ahead = _AHEAD
        self._block: Callable[[int], list[PlannedClip]] = lru_cache(maxsize=2)(self._draw)

    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        self._check(index)
        video, words = self._video(index, attempt)
        return self._planned(index, attempt, video, below(words, int(self._starts[video])))

    def _stretch(self, start: int, stop: int) -> list[PlannedClip]:
        clips: list[PlannedClip] = []
        while start < stop:
            block, place = divmod(start, self._ahead)
            end = min(stop, (block + 1) * self._ahead)
            clips += self._block(block)[place : place + end - start]
            start = end
        return clips

    def _draw(self, block: int) -> list[PlannedClip]:
        start, stop = block * _AHEAD, min(self._size, (block + 1) * _AHEAD)
        words, videos, refused = self._drawn_videos(start, stop)
        offsets, more = below_each(words, self._starts[videos].astype(np.uint64))
        clips = self._planned_all(range(start, stop), videos, offsets)
        for i in np.flatnonzero(refused | more).tolist():
            clips[i] = self.clip(start + i)
        return clips

    def _later(self, index: int, attempt: int, video: int, offset: int) -> tuple[int, ...]:
        """Starts of the later snippets: each anywhere in its part of the video, independent of the others."""
        del offset
        begins = snippet_begins(int(self._whole[video]), self._snippets) + int(self._first[video])
        first_draw, width = index * (self._snippets - 1), int(self._starts[video])
        return tuple(
            begin + below(self._snippets_rng.words(draw, attempt), width)
            for draw, begin in enumerate(begins[1:].tolist(), first_draw)
        )

    def _video(self, draw: int, attempt: int) -> tuple[int, Iterator[int]]:
        """The video of a draw, or its replacement; and the remaining words."""
        words = self._rng.words(draw)
        cell = self._cells.drawn(words)
        place = below(words, int(self._cells.counts[cell]))
        if attempt:
            place, words = self._replacement(draw, attempt, cell, place)
        return int(self._cells.videos[self._cells.begins[cell] + place]), words

    def _drawn_videos(self, start: int, stop: int) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.bool_]]:
        """For the draws `start..stop`: the next word, the video, and whether `_video` might give another video."""
        cells, words = self._cells, self._rng.table(start, stop)
        drawn, refused = cells.drawn_each(words)
        place, more = below_each(words[:, cells.used], cells.counts[drawn])
        return words[:, cells.used + 1], cells.videos[cells.begins[drawn] + place].astype(np.int64), refused | more

    def _replacement(self, draw: int, attempt: int, cell: int, place: int) -> tuple[int, Iterator[int]]:
        """The place, within its cell, of a video that no earlier attempt at this draw took; and the remaining words."""
        places = int(self._cells.counts[cell])
        if attempt >= places:
            raise LookupError(f"{self._cells.name(cell)} has no other video ({places} in all)")
        taken = [place]
        for number in range(1, attempt + 1):
            words = self._rng.words(draw, number)
            place = below(words, places - number)
            for other in sorted(taken):
                place += place >= other
            taken.append(place)
        return place, words
