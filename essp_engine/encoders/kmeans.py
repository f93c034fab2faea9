"""k-means: the centres of a codebook, by scikit-learn (Lloyd, 1982; initialised as in Arthur & Vassilvitskii, 2007)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essp_engine.encoders.fitting import Tell, silent
from essp_engine.encoders.rows import in_parts

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Codebook:
    """Centres that descriptors are assigned to."""

    centres: Floats
    """(k, D)"""

    def nearest(self, rows: Floats) -> NDArray[np.intp]:
        """`(N,)` index of the nearest centre of each row; among equal ones, the first."""
        squares = (self.centres**2).sum(axis=1)
        parts = in_parts(rows, len(self.centres))
        return np.concatenate([(squares - 2 * part @ self.centres.T).argmin(axis=1) for part in parts])


def fitted_codebook(rows: Floats, centres: int, seed: int = 0, tell: Tell = silent) -> Codebook:
    """The codebook of `(N, D)` rows. Raises `ValueError` if there are fewer rows than centres.

    Equal rows and seeds give equal centres, with any number of cores. Threads would add up in the order in which they
    finish, so only one thread is used.
    """
    # The master reads strategies without fitting any, and has neither library.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    if not 1 <= centres <= len(rows):
        raise ValueError(f"{len(rows)} descriptors are too few for {centres} centres; take fewer centres")
    tell("centres", 0, 1)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # equal rows give equal centres
        found = KMeans(centres, n_init=1, random_state=seed % 2**32).fit(rows)
    return Codebook(found.cluster_centers_)
