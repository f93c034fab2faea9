"""The plan that shows every place of every video: coverage without replacement, in an order that shares decodes.

A video has a place at every `step`-th possible start of a clip, and one at the last possible start, so that no frame is
left out if `step` is at most the span of a clip. All places of all videos, one after the other, form a *pass*.

Neighbouring places are in the same group of pictures, so a visit consists of `clips_per_visit` consecutive places,
which one decode produces. The visits of a video follow each other from its first place. So if a visit has as many
places as a group of pictures has frames, visits begin at keyframes, and nothing is decoded twice. The places of a video
after its last whole visit are its *rest*; the rests of all videos, one after the other, are divided into visits, too.

Each pass goes through the visits in its own order, given by a keyed permutation (`permutation.py`). So each place
occurs once per pass, and neighbouring visits differ from pass to pass. Within each window the clips of its visits are
mixed (`dealing.py`).

An epoch is a pass, unless it has another size; then each epoch continues where the previous one stopped. If a pass ends
inside an epoch, or `clips_per_visit` does not divide it, some visits are shorter, or span two parts of the videos. That
costs a decode, but no place is lost or doubled.

Everything is determined by (seed, purpose, epoch, index). A window is computed at once and cached for a while, so a
clip costs O(1) on average; otherwise only two numbers are kept for each video.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.view import CatalogView
from essp_common.counter_rng import CounterRng
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import MOST_CLIPS
from essp_common.pb.v1.messages_pb2 import Purpose
from essp_engine.planning.dealing import Dealer
from essp_engine.planning.permutation import Permutation
from essp_engine.planning.planned_clip import PlanBase, PlannedClip

_VISITS, _ORDER = 1 << 61, 1 << 63
"""Bits that separate the random streams."""
_KEPT = 4
_AHEAD = 1024
"""Visits ordered at once: a few cost as much as many."""


class Exhaustive(PlanBase):
    """Clips at every `step`-th place of every video, each once in `size` clips (None: one for each place).

    `clips_per_visit` neighbouring ones are issued together, and mixed with others within `window` indices. There are no
    replacements, because each place has its own turn. Raises `ConfigError` unless `clips_per_visit` divides `window`,
    and if there are more places than an epoch may have clips.
    """

    def __init__(
        self,
        view: CatalogView,
        clip: ClipSpec,
        size: int | None,
        seed: int,
        purpose: Purpose,
        epoch: int,
        step: int,
        clips_per_visit: int,
        window: int,
    ) -> None:
        super().__init__(view, clip, 0, window)
        if window < clips_per_visit or window % clips_per_visit:
            raise ConfigError(
                f"a window of {window} clips cannot be divided into visits of {clips_per_visit}", code="conflict"
            )
        counts = -(-(self._starts.astype(np.int64) - 1) // step) + 1
        visits, rests = np.divmod(counts, clips_per_visit)
        self._visits_to, self._rests_to = np.cumsum(visits), np.cumsum(rests)
        """Cumulative number of whole visits, and of places in rests, up to and including each video."""
        self._in_visits = int(self._visits_to[-1]) * clips_per_visit
        self._places = self._in_visits + int(self._rests_to[-1])
        self._size = size or self._places
        if self._size > MOST_CLIPS:
            raise ConfigError(
                f"with {step} there are {self._places} places for clips, and an epoch has {MOST_CLIPS} "
                "at most; raise step, or set sampling.clips_per_epoch",
                field="sampling.step",
                code="range",
            )
        self._step = step
        self._per_visit = clips_per_visit
        self._window = window
        self._begin = epoch * self._size
        stream = purpose << 32
        self._visits_rng = CounterRng(seed, _VISITS | stream)
        self._orders: Callable[[int, int], NDArray[np.int64]] = lru_cache(maxsize=_KEPT)(self._order)
        self._dealer = Dealer(CounterRng(seed, _ORDER | stream | epoch), clips_per_visit)
        self._windows: Callable[[int], list[PlannedClip]] = lru_cache(maxsize=_KEPT)(self._make_window)

    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        self._check(index)
        if attempt:
            raise LookupError("this plan has each place of each video in turn; none stands in for another")
        number, place = divmod(index, self._window)
        return self._windows(number)[place]

    def _stretch(self, start: int, stop: int) -> list[PlannedClip]:
        clips: list[PlannedClip] = []
        while start < min(stop, self._size):
            number, place = divmod(start, self._window)
            found = self._windows(number)[place : place + stop - start]
            clips += found
            start += len(found)
        return clips

    def _make_window(self, number: int) -> list[PlannedClip]:
        begin = number * self._window
        count = min(self._window, self._size - begin)
        visits = -(-count // self._per_visit)
        visit, turn = self._dealer.dealt(begin, count, visits)
        # The window shows `count` steps of the walk; a visit is as many consecutive steps as it has turns.
        sizes = np.bincount(visit, minlength=visits)
        steps = (np.cumsum(sizes) - sizes)[visit] + turn
        return self._at(range(begin, begin + count), self._walk(self._begin + begin, count)[steps])

    def _walk(self, begin: int, count: int) -> NDArray[np.int64]:
        """The numbers of the places at `count` steps of the walk through all passes: places in visits first, then
        places in rests."""
        first, last = begin // self._places, (begin + count - 1) // self._places
        edges = [begin, *(number * self._places for number in range(first + 1, last + 1)), begin + count]
        parts = [self._pass(number, *edge) for number, edge in enumerate(pairwise(edges), first)]
        return np.concatenate(parts)

    def _pass(self, number: int, begin: int, end: int) -> NDArray[np.int64]:
        """The places at the steps `begin..end` of the walk, which all belong to one pass."""
        steps = np.arange(begin - number * self._places, end - number * self._places)
        visit, place = np.divmod(steps, self._per_visit)
        first, last = int(visit[0]) // _AHEAD, int(visit[-1]) // _AHEAD
        order = [self._orders(number, block) for block in range(first, last + 1)]
        visits: NDArray[np.int64] = np.concatenate(order)[visit - first * _AHEAD]
        return visits * self._per_visit + place

    def _order(self, number: int, block: int) -> NDArray[np.int64]:
        """The visits of a pass, by number: a block of `_AHEAD` of them in their order."""
        whole = self._places // self._per_visit
        visits = np.arange(block * _AHEAD, (block + 1) * _AHEAD)
        inside = visits < whole  # the remainder of the division comes last
        visits[inside] = Permutation(self._visits_rng, number, whole)(visits[inside])
        return visits

    def _at(self, indices: range, places: NDArray[np.int64]) -> list[PlannedClip]:
        visit, turn = np.divmod(places, self._per_visit)
        rest = places - self._in_visits
        whole = rest < 0
        videos = np.where(whole, _owners(self._visits_to, visit), _owners(self._rests_to, rest))
        visits_before = np.where(videos > 0, self._visits_to[videos - 1], 0)
        rests_before = np.where(videos > 0, self._rests_to[videos - 1], 0)
        # A rest begins where the last visit of its video ends.
        visit = np.where(whole, visit, self._visits_to[videos]) - visits_before
        steps = visit * self._per_visit + np.where(whole, turn, rest - rests_before)
        offsets = np.minimum(steps * self._step, self._starts[videos].astype(np.int64) - 1)
        return self._planned_all(indices, videos, offsets)


def _owners(ends: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The owner of each number; numbers after the last end belong to the last owner."""
    return np.minimum(np.searchsorted(ends, numbers, side="right"), len(ends) - 1)
