"""Principal components: descriptors in fewer, uncorrelated numbers, as diagonal covariances assume."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essp_engine.encoders.fitting import Tell, silent
from essp_engine.encoders.rows import in_parts

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pca:
    """A projection onto the axes of highest variance."""

    mean: Floats
    """(D,)"""
    axes: Floats
    """(k, D) orthonormal, the highest variance first. The element of each axis with the largest size is positive."""

    def __call__(self, rows: NDArray[np.floating]) -> Floats:
        """`(N, D)` -> `(N, k)`."""
        projected: Floats = np.concatenate([(part - self.mean) @ self.axes.T for part in in_parts(rows, rows.shape[1])])
        return projected


def fitted_pca(rows: NDArray[np.floating], components: int, tell: Tell = silent) -> Pca:
    """The projection of `(N, D)` rows, which may have less than double precision.

    Raises `ValueError` if `components` exceeds the number of rows or of columns.
    """
    if not 1 <= components <= min(rows.shape):
        raise ValueError(
            f"{rows.shape[0]} rows of {rows.shape[1]} numbers have fewer than {components} principal components"
        )
    tell("principal components", 0, 1)
    mean = rows.mean(axis=0, dtype=np.float64)
    if len(rows) <= rows.shape[1]:
        axes = np.linalg.svd(rows - mean, full_matrices=False)[2][:components]
    else:  # in parts: rows in half precision would take four times the memory in double precision
        scatter = np.zeros((rows.shape[1], rows.shape[1]))
        for part in in_parts(rows, rows.shape[1]):
            scatter += (part - mean).T @ (part - mean)
        axes = np.linalg.eigh(scatter)[1].T[::-1][:components]
    largest = axes[np.arange(components), np.abs(axes).argmax(axis=1)]
    # The same layout as after loading: another memory layout is multiplied in another order.
    return Pca(mean, np.ascontiguousarray(axes * np.sign(largest)[:, None]))
