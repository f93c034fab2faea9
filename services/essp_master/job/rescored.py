"""Clips of a predict job that are made and scored again, because a predictor left before it had saved their scores.

A predictor frees the bytes of clips that it has not saved only if it waits for more, so these are few, and among the
last that were scored (`essp_predictor/stream.py`). The predictor that takes over its share asks for them. Pure.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

from essp_common.topics import BLOCK_CLIPS

_MOST = 2**16
"""Blocks that are remembered: two million clips. A job may have a hundred times as many."""


class Rescored:
    """Notices them."""

    def __init__(self) -> None:
        self._scored_by: OrderedDict[tuple[str, int], str] = OrderedDict()
        """Consumer and block of clips -> the predictor that has last reported clips of it; of the newest blocks."""
        self._again: Counter[str] = Counter()
        """By predictor that has left: clips that no event names yet."""

    def scored(self, consumer: str, indices: Iterable[int], worker: str) -> None:
        """A predictor is done with these clips."""
        for block in {index // BLOCK_CLIPS for index in indices}:
            self._scored_by[consumer, block] = worker
            self._scored_by.move_to_end((consumer, block))
        while len(self._scored_by) > _MOST:
            self._scored_by.popitem(last=False)

    def lost(self, consumer: str, index: int, worker: str) -> None:
        """A predictor asks for a clip whose bytes are gone."""
        before = self._scored_by.get((consumer, index // BLOCK_CLIPS), worker)
        if before != worker:
            self._again[before] += 1

    def take(self) -> dict[str, int]:
        """Return, once, how many clips are made again, by the predictor that had scored them."""
        again, self._again = self._again, Counter()
        return dict(again)
