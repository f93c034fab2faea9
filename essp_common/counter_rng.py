"""Counter-based random numbers: the words at (seed, stream, index) are a pure function, computed without earlier words.

Philox 4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11) turns a key and a 256-bit counter into
four 64-bit words. The key is (seed, stream), so phases never share words; the counter is (index, attempt, redraw), so
every index has its own words. NumPy guarantees that its Philox gives the same words in every version (NEP 19).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

WORDS = 4
"""Words of one index, before any redraw."""
_BLOCK = 64  # indices generated at once: starting a generator costs as much as some hundred words
_WORD = 1 << 64


class CounterRng:
    """Random words by index. Thread-safe."""

    def __init__(self, seed: int, stream: int) -> None:
        """`seed` and `stream`: 64 bits each; equal pairs give equal words."""
        self._key = np.array([seed, stream], dtype=np.uint64)
        self._block: Callable[[int, int], list[int]] = lru_cache(maxsize=16)(self._make_block)

    def words(self, index: int, attempt: int = 0) -> Iterator[int]:
        """The 64-bit words of an index: first `WORDS` of them, then, if they were rejected, an endless supply."""
        block, place = divmod(index, _BLOCK)
        words = self._block(block, attempt)
        yield from words[place * WORDS : (place + 1) * WORDS]
        redraw = 1
        while True:
            yield from self._generate(index, attempt, redraw, 1)
            redraw += 1

    def table(self, start: int, stop: int) -> NDArray[np.uint64]:
        """The first words of the indices `start..stop`: (stop - start, `WORDS`)."""
        counter = np.array([start, 0, 0, 0], dtype=np.uint64)
        words = np.random.Philox(counter=counter, key=self._key).random_raw((stop - start) * WORDS)
        return words.reshape(-1, WORDS)

    def _make_block(self, block: int, attempt: int) -> list[int]:
        return self._generate(block * _BLOCK, attempt, 0, _BLOCK)

    def _generate(self, index: int, attempt: int, redraw: int, indices: int) -> list[int]:
        # The generator steps its counter before each block of words, so an index has counter index + 1.
        counter = np.array([index, attempt, redraw, 0], dtype=np.uint64)
        words: list[int] = np.random.Philox(counter=counter, key=self._key).random_raw(indices * WORDS).tolist()
        return words


def below(words: Iterator[int], bound: int) -> int:
    """An unbiased integer in [0, bound), using as few words as possible (nearly always one).

    Lemire, "Fast random integer generation in an interval", ACM TOMACS 29(1), 2019.
    """
    product = next(words) * bound
    if product % _WORD < bound:
        refuse = _WORD % bound
        while product % _WORD < refuse:
            product = next(words) * bound
    return product // _WORD


def below_each(words: NDArray[np.uint64], bounds: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """`below` for one word each, for bounds under 2**32; also which of them `below` might reject (hardly ever any)."""
    low_half = (words & np.uint64(0xFFFFFFFF)) * bounds
    high = ((words >> np.uint64(32)) * bounds + (low_half >> np.uint64(32))) >> np.uint64(32)
    return high.astype(np.int64), words * bounds < bounds
