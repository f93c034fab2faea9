"""Clips of a predict job that are made and scored again, because a predictor left before it had saved their scores.

A predictor frees the bytes of clips that it has not saved only if it waits for more, so these are few
(`essp_predictor/stream.py`). The predictor that takes over its share asks for them. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from essp_common.topics import BLOCK_CLIPS


class Rescored:
    """Notices them."""

    def __init__(self) -> None:
        self._scored_by: dict[tuple[str, int], str] = {}
        """Consumer and block of clips -> the predictor that has last reported clips of it."""
        self._again: Counter[str] = Counter()
        """By predictor that has left: clips that no event names yet."""

    def scored(self, consumer: str, indices: Iterable[int], worker: str) -> None:
        """A predictor is done with these clips."""
        self._scored_by |= dict.fromkeys(((consumer, index // BLOCK_CLIPS) for index in indices), worker)

    def lost(self, consumer: str, index: int, worker: str) -> None:
        """A predictor asks for a clip whose bytes are gone."""
        before = self._scored_by.get((consumer, index // BLOCK_CLIPS), worker)
        if before != worker:
            self._again[before] += 1

    def take(self) -> dict[str, int]:
        """Return, once, how many clips are made again, by the predictor that had scored them."""
        again, self._again = self._again, Counter()
        return dict(again)
