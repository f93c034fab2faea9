"""Principal components: descriptors in fewer numbers without correlation, as diagonal covariances assume them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essp_engine.encoders.fitting import Tell, silent

Floats = NDArray[np.float64]

_AT_ONCE = 2**22
"""Numbers that are in memory in double precision together."""


@dataclass(frozen=True)
class Pca:
    """A projection onto the axes of highest variance."""

    mean: Floats
    """(D,)"""
    axes: Floats
    """(k, D) orthonormal, the highest variance first; of each, the number of largest size is positive."""

    def __call__(self, rows: NDArray[np.floating]) -> Floats:
        """`(N, D)` -> `(N, k)`."""
        projected: Floats = np.concatenate([(part - self.mean) @ self.axes.T for part in _parts(rows)])
        return projected


def fitted_pca(rows: NDArray[np.floating], components: int, tell: Tell = silent) -> Pca:
    """The projection of `(N, D)` rows, which may have less than double precision.

    Raises `ValueError` for more components than rows or numbers of a row.
    """
    if not 1 <= components <= min(rows.shape):
        raise ValueError(f"{rows.shape[0]} rows of {rows.shape[1]} numbers have no {components} principal components")
    mean = rows.mean(axis=0, dtype=np.float64)
    # The triangle of a QR decomposition has the axes of all rows, and part after part it is exact and small.
    triangle = np.zeros((0, rows.shape[1]))
    parts = list(_parts(rows))
    for number, part in enumerate(parts):
        tell("principal components", number, len(parts))
        triangle = np.asarray(np.linalg.qr(np.concatenate([triangle, part - mean]), mode="r"))
    axes = np.linalg.svd(triangle, full_matrices=False)[2][:components]
    largest = axes[np.arange(components), np.abs(axes).argmax(axis=1)]
    return Pca(mean, axes * np.sign(largest)[:, None])


def _parts(rows: NDArray[np.floating]) -> Iterator[NDArray[np.floating]]:
    """Some rows after the other; of no rows one part without any."""
    step = max(1, _AT_ONCE // rows.shape[1])
    return (rows[begin : begin + step] for begin in range(0, max(1, len(rows)), step))
