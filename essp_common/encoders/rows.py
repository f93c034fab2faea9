"""The descriptors that encoders learn from: rows of the videos without padding, and a bounded sample of all of them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def unpadded(rows: NDArray[Any]) -> NDArray[Any]:
    """`(N, D)` rows without the zeros that follow the last descriptor. A row of zeros before it is a descriptor."""
    filled = np.flatnonzero(rows.any(axis=1))
    return rows[: filled[-1] + 1] if len(filled) else rows[:0]


class Subsample:
    """At most `most` rows of all that are added, each as likely as any other, in memory for no more than these.

    Which rows are kept depends on the seed and on the names of the videos, not on the order in which they come, so
    workers that finish in another order learn the same codebook. A row keeps a random number that is made from the name
    of its video and its place there; those with the lowest numbers are the sample.
    """

    def __init__(self, most: int, seed: int = 0) -> None:
        self._most = most
        self._seed = seed
        self._tickets = np.zeros(0, dtype=np.int64)
        self._rows: Floats | None = None

    def add(self, video: str, rows: NDArray[Any]) -> None:
        """The `(N, D)` rows of one video. Raises `ValueError` if they have another width than those before."""
        if self._rows is not None and rows.shape[1] != self._rows.shape[1]:
            raise ValueError(f"the rows of {video} have {rows.shape[1]} numbers, those before {self._rows.shape[1]}")
        key = hashlib.sha256(f"{self._seed}/{video}".encode()).digest()
        random = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
        tickets = np.concatenate([self._tickets, random.integers(0, 2**63 - 1, len(rows))])
        together = rows.astype(np.float64)
        if self._rows is not None:
            together = np.concatenate([self._rows, together])
        kept = np.argsort(tickets, kind="stable")[: self._most]
        self._tickets, self._rows = tickets[kept], together[kept]

    def rows(self) -> Floats:
        """The sample, `(n, D)`, in a random order. Raises `ValueError` if nothing was added."""
        if self._rows is None or not len(self._rows):
            raise ValueError("there are no descriptors to learn from")
        return self._rows
