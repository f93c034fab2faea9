"""Pieces of records, cut into batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from essp.records.held import Held, Places
from essp.records.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive records of one piece."""

    held: Held
    places: Places
    """-1: a damaged record."""
    indices: Places
    """Indices in the rank's share of the epoch."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The records of one batch."""

    parts: tuple[Part, ...]
    stop: int
    """Index in the epoch after the last record, including damaged ones."""

    @property
    def places(self) -> Places:
        """The places of all records."""
        return _joined([part.places for part in self.parts])

    @property
    def indices(self) -> Places:
        """The indices of all records."""
        return _joined([part.indices for part in self.parts])


class Feed:
    """Batches of one loop, epoch after epoch. Used from one thread."""

    def __init__(self, pieces: Pieces, batch_size: int, size: int, start: tuple[int, int]) -> None:
        """Takes ownership of `pieces`, which begin at `start`. `size`: records of an epoch."""
        self._pieces = pieces
        self._batch_size = batch_size
        self._size = size
        self.position = start
        """Epoch and index of the batch after the last one taken."""

    def epoch(self) -> Iterator[Taken]:
        """The remaining batches of the epoch of `position`."""
        epoch, _ = self.position
        waiting: list[Part] = []
        count, last = 0, False
        while not last:
            piece = self._pieces.next()
            begin, last = 0, piece.last
            while count + len(piece.places) - begin >= self._batch_size:
                stop = begin + self._batch_size - count
                waiting.append(_part(piece, begin, stop))
                over = last and stop == len(piece.places)
                yield self._taken(epoch, waiting, self._size if over else int(piece.indices[stop - 1]) + 1)
                waiting, count, begin = [], 0, stop
            if begin < len(piece.places):
                waiting.append(_part(piece, begin, len(piece.places)))
                count += len(piece.places) - begin
        if waiting:
            yield self._taken(epoch, waiting, self._size)
        self.position = (epoch + 1, 0)

    def close(self) -> None:
        """Release the pieces. Idempotent."""
        self._pieces.close()

    def _taken(self, epoch: int, parts: list[Part], stop: int) -> Taken:
        self.position = (epoch, stop)
        return Taken(tuple(parts), stop)


def _joined(pieces: list[Places]) -> Places:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _part(piece: Piece, begin: int, stop: int) -> Part:
    return Part(piece.held, piece.places[begin:stop], piece.indices[begin:stop])
