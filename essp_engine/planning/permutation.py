"""A keyed permutation of 0..n-1 that is computed element by element, without storing n numbers.

A Feistel network permutes pairs of numbers below s, where s is the smallest power of two with s * s >= n; its round
function need not be invertible (Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom
functions", SIAM J. Comput. 17(2), 1988). A result that is not below n is permuted again until it is (Black and Rogaway,
"Ciphers with arbitrary finite domains", CT-RSA 2002): at most four times on average, because s * s < 4 n + 4. The
rounds mix with the finaliser of SplitMix64. It is good enough for shuffling, but not cryptographic.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from essp_common.counter_rng import CounterRng

_ROUNDS = 6


class Permutation:
    """One of the orders of 0..size-1, selected by the random numbers of an index."""

    def __init__(self, rng: CounterRng, index: int, size: int) -> None:
        words = rng.words(index)
        self._keys = [np.array([next(words)], np.uint64) for _ in range(_ROUNDS)]
        self._size = np.uint64(size)
        self._half = np.uint64((max(size - 1, 1).bit_length() + 1) // 2)
        self._mask = (np.uint64(1) << self._half) - np.uint64(1)

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers at these places."""
        found = places.astype(np.uint64)
        beyond = np.arange(len(found))
        while len(beyond):
            found[beyond] = self._permuted(found[beyond])
            beyond = beyond[found[beyond] >= self._size]
        return found.astype(np.int64)

    def _permuted(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = numbers >> self._half, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right + key) & self._mask)
        return left << self._half | right


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each word with its bits mixed (Stafford's variant 13, as in SplitMix64)."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
