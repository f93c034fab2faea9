"""The order within a window in which visits of several clips are mixed: for each index, a clip and its visit.

The clips of the n visits of a window are dealt out in turns. Each turn has one clip of every visit, in its own order:
the first half of the visits, shuffled, then the second half, shuffled. So

- two clips of a visit are at least n / 2 indices apart,
- any n / 2 consecutive clips are from different visits, and so are the n clips of a turn,
- if n is a multiple of 16, all clips of a visit have the same index modulo 8: 2, 4 or 8 ranks that take every second,
  fourth or eighth clip (`share.py`) have whole visits each, and no two of them decode for the same visit.
"""

from __future__ import annotations

from math import gcd

import numpy as np
from numpy.typing import NDArray

from essp_common.counter_rng import CounterRng

_LANES = 8
"""The largest number of ranks that can have whole visits."""


class Dealer:
    """Deals out the clips of visits, `per_visit` of each."""

    def __init__(self, rng: CounterRng, per_visit: int) -> None:
        self._rng = rng
        self._per_visit = per_visit

    def dealt(self, begin: int, count: int, visits: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The visit and the clip of that visit at each of the `count` indices of the window that starts at index
        `begin`."""
        if self._per_visit == 1:  # visits are drawn independently, so there is nothing to mix
            return np.arange(count), np.zeros(count, np.int64)
        turns = -(-count // visits)
        keys = self._rng.table(begin, begin + turns * visits)[:, 0].reshape(turns, visits)
        half = visits // 2
        lanes = gcd(half, visits - half, _LANES)
        halves = (_mixed(keys[:, :half], lanes), half + _mixed(keys[:, half:], lanes))
        order = np.concatenate(halves, axis=1).reshape(-1)[:count]
        return order, np.repeat(np.arange(turns), visits)[:count]


def _mixed(keys: NDArray[np.uint64], lanes: int) -> NDArray[np.int64]:
    """The columns of each row sorted by their keys, separately for each lane (the columns that are equal modulo
    `lanes`), so a visit stays in its lane. Columns are drawn independently, so this introduces no bias."""
    turns, columns = keys.shape
    by_lane = np.argsort(keys.reshape(turns, columns // lanes, lanes), axis=1)
    return (by_lane * lanes + np.arange(lanes)).reshape(turns, columns)
