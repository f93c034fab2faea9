"""The plan of training that reuses decodes: each drawn video gives several clips.

Independent draws return to the same video too rarely for its decode to be shared: with 10,000 videos, hardly ever
within the clips that fit into memory. Here the unit of randomness is a *visit*: class, then video, as in
`class_balanced`, then `clips_per_visit` independent places in that video. One decode produces all clips of a visit.

Within each window of W indices, the clips of its W / clips_per_visit visits are mixed so that clips of one visit are
far apart (`dealing.py`).

Everything is determined by (seed, purpose, epoch, index). A window is drawn at once and cached for a while, so a clip
costs O(1) on average.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.view import CatalogView
from essp_common.counter_rng import CounterRng, below, below_each
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import MixSpec
from essp_common.pb.v1.messages_pb2 import Purpose
from essp_engine.planning.class_balanced import ClassBalanced
from essp_engine.planning.dealing import Dealer
from essp_engine.planning.planned_clip import PlannedClip

_PLACES, _ORDER = 1 << 62, 1 << 63
"""Bits that separate the random streams of a phase; the stream of the visits has neither bit."""
_KEPT_WINDOWS = 4


class _Window(NamedTuple):
    """The clips at the indices of a window."""

    clips: list[PlannedClip]
    visit: NDArray[np.int64]
    """The visit of the epoch to which each clip belongs."""
    turn: NDArray[np.int64]
    """The number of each clip within its visit."""


class Pooled(ClassBalanced):
    """`size` clips, `clips_per_visit` of each drawn video, mixed within windows of `window` indices.

    With one clip per visit this is `ClassBalanced`. Raises `ConfigError` unless `clips_per_visit` divides `window`, and
    if the mix does not fit the videos.
    """

    def __init__(
        self,
        view: CatalogView,
        clip: ClipSpec,
        size: int,
        seed: int,
        purpose: Purpose,
        epoch: int,
        clips_per_visit: int,
        window: int,
        mix: MixSpec | None = None,
    ) -> None:
        super().__init__(view, clip, size, seed, purpose, epoch, window, mix)
        if window < clips_per_visit or window % clips_per_visit:
            raise ConfigError(
                f"a window of {window} clips cannot be divided into visits of {clips_per_visit}", code="conflict"
            )
        self._per_visit = clips_per_visit
        self._window = window
        self._places_rng = CounterRng(seed, _PLACES | self._stream)
        self._dealer = Dealer(CounterRng(seed, _ORDER | self._stream), clips_per_visit)
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
        visit, turn = self._dealer.dealt(begin, count, visits)
        clips = self._planned_all(range(begin, begin + count), videos[visit], offsets[visit, turn])
        for i in np.flatnonzero((refused[:, None] | more)[visit, turn]).tolist():
            clips[i] = self._visited(begin + i, first + int(visit[i]), int(turn[i]), 0)
        return _Window(clips, first + visit, turn)
