"""k-means: the centres of a codebook (Lloyd, 1982), begun as k-means++ does (Arthur & Vassilvitskii, 2007).

Random numbers come from a counter with the seed as its key, so equal rows and seeds give equal centres.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essp_engine.encoders.fitting import Tell, silent

Floats = NDArray[np.float64]

_MOST_STEPS = 100
_AT_ONCE = 2**22
"""Distances that are in memory together."""


@dataclass(frozen=True)
class Codebook:
    """Centres that descriptors are assigned to."""

    centres: Floats
    """(k, D)"""

    def nearest(self, rows: Floats) -> NDArray[np.intp]:
        """`(N,)` number of the nearest centre of each row; of equal ones, the first."""
        found = np.empty(len(rows), dtype=np.intp)
        for start in range(0, len(rows), step := max(1, _AT_ONCE // len(self.centres))):
            found[start : start + step] = _distances(rows[start : start + step], self.centres).argmin(axis=1)
        return found


def fitted_codebook(rows: Floats, centres: int, seed: int = 0, tell: Tell = silent) -> Codebook:
    """The codebook of `(N, D)` rows. Raises `ValueError` if there are fewer rows than centres."""
    return improved_codebook(rows, first_centres(rows, centres, seed, tell), tell)


def first_centres(rows: Floats, centres: int, seed: int = 0, tell: Tell = silent) -> Floats:
    """`(k, D)` rows that are far from each other: each is drawn with the square of its distance to those before."""
    if not 1 <= centres <= len(rows):
        raise ValueError(f"{len(rows)} descriptors are too few for {centres} centres; take fewer centres")
    random = np.random.Generator(np.random.Philox(key=seed))
    chosen = [int(random.integers(len(rows)))]
    nearest = _distances(rows, rows[chosen])[:, 0]
    while len(chosen) < centres:
        sums = np.cumsum(nearest)
        drawn = random.random() * sums[-1]
        number = int(np.searchsorted(sums, drawn, side="right")) if sums[-1] > 0 else len(chosen)
        chosen.append(min(number, len(rows) - 1))
        nearest = np.minimum(nearest, _distances(rows, rows[chosen[-1:]])[:, 0])
        tell("where centres begin", len(chosen), centres)
    return rows[chosen]


def improved_codebook(rows: Floats, centres: Floats, tell: Tell = silent) -> Codebook:
    """Move each centre to the mean of its rows until none changes its centre, or 100 times.

    A centre without rows takes the row that is farthest from its own centre.
    """
    book, before = Codebook(centres), None
    columns = np.ascontiguousarray(rows.T)  # sums of columns take a fraction of the time of `np.add.at`
    for step in range(_MOST_STEPS):
        tell("centres", step, _MOST_STEPS)
        number = book.nearest(rows)
        if before is not None and np.array_equal(number, before):
            break
        counts = np.bincount(number, minlength=len(centres))
        sums = np.column_stack([np.bincount(number, column, len(centres)) for column in columns])
        moved = sums / np.maximum(counts, 1)[:, None]
        if not counts.all():
            own = ((rows - book.centres[number]) ** 2).sum(axis=1)
            empty = np.flatnonzero(counts == 0)
            moved[empty] = rows[np.argsort(-own, kind="stable")[: len(empty)]]
        book, before = Codebook(moved), number
    return book


def _distances(rows: Floats, centres: Floats) -> Floats:
    """`(N, k)` squared distances."""
    found = (rows**2).sum(axis=1)[:, None] - 2 * rows @ centres.T + (centres**2).sum(axis=1)
    positive: Floats = np.maximum(found, 0)
    return positive
