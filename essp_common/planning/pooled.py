"""The plan of training that reuses decodes: each video that is drawn gives several clips.

Independent draws meet the same video too seldom for its decode to be shared: with 10,000 videos, hardly ever within the
clips that fit into memory. Here the unit of chance is a *visit*: class, then video, as in `class_balanced`, then
`clips_per_visit` independent places in that video. A visit's clips are made by one decode.

Within each window of W indices, the clips of its n = W / clips_per_visit visits are dealt out in turns. In each turn
every visit has one clip, in an order of its own: the first half of the visits, mixed, then the second half, mixed. So

- two clips of a visit are at least n / 2 indices apart,
- any n / 2 clips in a row are of different visits, and so are the n clips of a turn,
- where n is a multiple of 16, all clips of a visit have the same index modulo 8: 2, 4 or 8 ranks that take every
  second, fourth or eighth clip (`share.py`) have whole visits each, and no two of them decode for the same visit.

Everything follows from (seed, purpose, epoch, index). A window is drawn at once and kept for a while, so a clip costs
O(1) on average.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.table import CatalogView
from essp_common.errors import ConfigError
from essp_common.job.spec import ClipSpec
from essp_common.planning.class_balanced import ClassBalanced
from essp_common.planning.counter_rng import CounterRng, below, below_each
from essp_common.planning.planned_clip import PlannedClip

_PLACES, _ORDER = 1 << 62, 1 << 63
"""Bits that tell the streams of random numbers of a phase apart; those of the visits have neither."""
_KEPT_WINDOWS = 4
_LANES = 8
"""Ranks that can have whole visits."""


class _Window(NamedTuple):
    """What is at the indices of a window."""

    clips: list[PlannedClip]
    visit: NDArray[np.int64]
    """Which visit of the epoch each clip belongs to."""
    turn: NDArray[np.int64]
    """Which clip of its visit it is."""


class Pooled(ClassBalanced):
    """See `plan.pooled`."""

    def __init__(
        self,
        view: CatalogView,
        clip: ClipSpec,
        size: int,
        seed: int,
        stream: int,
        clips_per_visit: int,
        window: int,
    ) -> None:
        super().__init__(view, clip, size, seed, stream, window)
        if window < clips_per_visit or window % clips_per_visit:
            raise ConfigError(f"a window of {window} clips cannot be divided into visits of {clips_per_visit}")
        self._per_visit = clips_per_visit
        self._window = window
        self._places_rng = CounterRng(seed, _PLACES | stream)
        self._order_rng = CounterRng(seed, _ORDER | stream)
        self._ahead = window
        self._block = lambda number: self._windows(number).clips
        self._windows: Callable[[int], _Window] = lru_cache(maxsize=_KEPT_WINDOWS)(self._draw_window)

    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        self._check(index)
        number, place = divmod(index, self._window)
        window = self._windows(number)
        if not attempt:
            return window.clips[place]
        return self._visited(index, int(window.visit[place]), int(window.turn[place]), attempt)

    def _visited(self, index: int, visit: int, turn: int, attempt: int) -> PlannedClip:
        video, words = self._video(visit, attempt)
        if turn:
            words = self._places_rng.words(visit * self._per_visit + turn, attempt)
        return self._planned(index, attempt, video, below(words, int(self._starts[video])))

    def _draw_window(self, number: int) -> _Window:
        begin = number * self._window
        count = min(self._window, self._size - begin)
        visits = -(-count // self._per_visit)
        first = number * (self._window // self._per_visit)
        words, videos, refused = self._drawn_videos(first, first + visits)
        table = self._places_rng.table(first * self._per_visit, (first + visits) * self._per_visit)
        place_words = table[:, 0].reshape(visits, self._per_visit)
        place_words[:, 0] = words  # as in `class_balanced`
        offsets, more = below_each(place_words, self._starts[videos].astype(np.uint64)[:, None])
        visit, turn = self._dealt(begin, count, visits)
        clips = self._planned_all(range(begin, begin + count), videos[visit], offsets[visit, turn])
        for i in np.flatnonzero((refused[:, None] | more)[visit, turn]).tolist():
            clips[i] = self._visited(begin + i, first + int(visit[i]), int(turn[i]), 0)
        return _Window(clips, first + visit, turn)

    def _dealt(self, begin: int, count: int, visits: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which visit of the window, and which clip of it, is at each of `count` places."""
        if self._per_visit == 1:  # visits are drawn independently, so there is nothing to mix
            return np.arange(count), np.zeros(count, np.int64)
        turns = -(-count // visits)
        keys = self._order_rng.table(begin, begin + turns * visits)[:, 0].reshape(turns, visits)
        half = visits // 2
        lanes = gcd(half, visits - half, _LANES)
        halves = (_mixed(keys[:, :half], lanes), half + _mixed(keys[:, half:], lanes))
        order = np.concatenate(halves, axis=1).reshape(-1)[:count]
        return order, np.repeat(np.arange(turns), visits)[:count]


def _mixed(keys: NDArray[np.uint64], lanes: int) -> NDArray[np.int64]:
    """The columns of each row in the order of their keys, each lane (the columns that are equal modulo `lanes`) apart:
    what is drawn for a lane stays in it. Columns are drawn independently, so that biases nothing."""
    turns, columns = keys.shape
    by_lane = np.argsort(keys.reshape(turns, columns // lanes, lanes), axis=1)
    return (by_lane * lanes + np.arange(lanes)).reshape(turns, columns)
