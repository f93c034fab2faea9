"""Principal components: descriptors in fewer numbers without correlation, as diagonal covariances assume them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pca:
    """A projection onto the axes of highest variance."""

    mean: Floats
    """(D,)"""
    axes: Floats
    """(k, D) orthonormal, the highest variance first; of each, the number of largest size is positive."""

    def __call__(self, rows: NDArray[np.floating]) -> Floats:
        """`(N, D)` -> `(N, k)`."""
        projected: Floats = (rows - self.mean) @ self.axes.T
        return projected


def fitted_pca(rows: Floats, components: int) -> Pca:
    """The projection of `(N, D)` rows. Raises `ValueError` for more components than rows or numbers of a row."""
    if not 1 <= components <= min(rows.shape):
        raise ValueError(f"{rows.shape[0]} rows of {rows.shape[1]} numbers have no {components} principal components")
    mean = rows.mean(axis=0)
    _, _, axes = np.linalg.svd(rows - mean, full_matrices=False)
    axes = axes[:components]
    largest = axes[np.arange(components), np.abs(axes).argmax(axis=1)]
    return Pca(mean, axes * np.sign(largest)[:, None])
