"""The order of records: a pure function of (records, seed, epoch, index), independent of the readers.

Without replacement, an epoch is a permutation of all records. Any piece of it is a uniform sample, and so is any piece
of a piece: that is the third theorem of OneAccess. So tiers of memory may hold samples of any size, each drawn from the
tier below, and the batches are the same for all sizes. A tier sorts its piece by place and reads it in one pass; the
batches are taken in the order of the permutation.

With replacement, an epoch is a sequence of samples that are drawn independently, each from all records; within a sample
no record occurs twice. The sample size is part of the plan.

The paper draws by reservoir sampling (Vitter, "Random sampling with a reservoir", ACM TOMS 11(1), 1985), which goes
through all keys for each sample. Here keys are drawn until there are enough distinct ones: the distribution is the same
(any subset is as likely as any other, in any order), at a cost proportional to the sample.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from essp_common.counter_rng import WORDS, CounterRng, below_each

_SAMPLES = 1 << 32
"""Random number streams of an epoch: 0 for its permutation, then one for each sample."""
MOST_RECORDS = 1 << 32

Places = NDArray[np.int64]


def permutation(records: int, seed: int, epoch: int) -> Places:
    """All places `0..records`, in uniformly random order. Takes 25 bytes and 0.1 to 0.3 us per record."""
    return _by_chance(CounterRng(seed, epoch * _SAMPLES), records)


def sample(records: int, size: int, seed: int, epoch: int, number: int) -> Places:
    """`size` distinct places of `0..records`: any set of them, in any order, is equally likely."""
    if not 0 <= size <= records:
        raise ValueError(f"{size} different records cannot be drawn from {records}")
    rng = CounterRng(seed, epoch * _SAMPLES + 1 + number)
    if 2 * size > records:
        return _by_chance(rng, records)[:size]
    drawn = np.empty(0, np.int64)
    counter = 0
    while len(drawn) < size:
        blocks = -(-(size - len(drawn)) // 3)  # some will be rejected or are duplicates
        words = rng.table(counter, counter + blocks).reshape(-1)
        counter += blocks
        places, refused = below_each(words, np.array([records], np.uint64))
        drawn = _first_of_each(np.concatenate((drawn, places[~refused])))
    return drawn[:size]


def _by_chance(rng: CounterRng, records: int) -> Places:
    """All places, sorted by a random word each."""
    words = rng.table(0, -(-records // WORDS)).reshape(-1)[:records]
    order = np.argsort(words)
    ascending = words[order]
    if (ascending[1:] == ascending[:-1]).any():  # the order of equal words differs between machines
        order = np.argsort(words, kind="stable")
    return order


def _first_of_each(places: Places) -> Places:
    """The distinct places, in the order of first occurrence."""
    return places[np.sort(np.unique(places, return_index=True)[1])]


class Draws:
    """The order of every epoch of a data set. Thread-safe for one epoch at a time."""

    def __init__(self, records: int, seed: int, sample_size: int = 0) -> None:
        """`sample_size`: draw with replacement, by independent samples of this size; 0: without replacement.

        Raises `ValueError` for too many records or a sample larger than the data set.
        """
        if not 0 < records < MOST_RECORDS:
            raise ValueError(f"records are drawn from 1 to {MOST_RECORDS - 1}, not from {records}")
        if not 0 <= sample_size <= records:
            raise ValueError(f"a sample has at most as many records as there are: {records}, not {sample_size}")
        self.records = records
        self._seed = seed
        self._sample_size = sample_size
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    def piece(self, epoch: int, begin: int, end: int) -> Places:
        """The places at the indices `begin..end` of an epoch, which has one index per record."""
        if not self._sample_size:
            return self._permutation(epoch)[begin:end]
        size = self._sample_size
        samples = range(begin // size, -(-min(end, self.records) // size))
        drawn = [sample(self.records, size, self._seed, epoch, number) for number in samples]
        whole = np.concatenate(drawn) if drawn else np.empty(0, np.int64)
        first = begin - begin // size * size
        return whole[first : first + min(end, self.records) - begin]

    def _permutation(self, epoch: int) -> Places:
        if epoch != self._epoch:
            self._order, self._epoch = permutation(self.records, self._seed, epoch), epoch
        return self._order
