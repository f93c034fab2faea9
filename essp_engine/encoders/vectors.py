"""One vector for any number of descriptors of a video; zeros if there are no descriptors.

The vectors follow their definitions. For a linear classifier, apply `power` and `l2` to them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp_engine.encoders.kmeans import Codebook
from essp_engine.encoders.mixture import Mixture

Floats = NDArray[np.float64]


def fisher_vector(rows: Floats, mixture: Mixture) -> Floats:
    """`(k + 2kD,)` Fisher vector of `(N, D)` descriptors (Perronnin, Sanchez & Mensink, ECCV 2010).

    The gradients of the mean log likelihood with respect to the weights, the means and the standard deviations of a
    mixture of k Gaussians, whitened. Order and signs are as in `skimage.feature.fisher_vector`, where the last part is
    the negative of the paper's; inner products of vectors are the same.
    """
    gaussians, width = mixture.means.shape
    if not len(rows):
        return np.zeros(gaussians + 2 * gaussians * width)
    posteriors = mixture.posteriors(rows)
    share = posteriors.mean(axis=0)[:, None]
    first = posteriors.T @ rows / len(rows)
    second = posteriors.T @ rows**2 / len(rows)
    weight = np.sqrt(mixture.weights)[:, None]
    by_weight = share - mixture.weights[:, None]
    by_mean = first - share * mixture.means
    by_deviation = share * (mixture.variances - mixture.means**2) + 2 * first * mixture.means - second
    return np.concatenate(
        [
            (by_weight / weight).ravel(),
            (by_mean / (weight * np.sqrt(mixture.variances))).ravel(),
            (by_deviation / (np.sqrt(2) * weight * mixture.variances)).ravel(),
        ]
    )


def vlad(rows: Floats, book: Codebook) -> Floats:
    """`(kD,)` vector of locally aggregated descriptors (Jegou et al., CVPR 2010): for each centre, the sum of the
    differences between its descriptors and the centre, normalised to a length of 1 (Arandjelovic & Zisserman, CVPR
    2013); zeros for a centre without descriptors."""
    residuals = np.zeros(book.centres.shape)
    number = book.nearest(rows)
    np.add.at(residuals, number, rows - book.centres[number])
    return l2(residuals).ravel()


def bag_of_words(rows: Floats, book: Codebook) -> Floats:
    """`(k,)` share of the descriptors that are nearest to each centre (Sivic & Zisserman, ICCV 2003)."""
    counts = np.bincount(book.nearest(rows), minlength=len(book.centres))
    return counts / max(1, len(rows))


def power(vector: NDArray[Any], exponent: float = 0.5) -> Floats:
    """Each number to the power of `exponent`, with its sign: many small numbers then count more compared with few large
    ones."""
    powered: Floats = np.sign(vector) * np.abs(vector) ** exponent
    return powered


def l2(vectors: NDArray[Any]) -> Floats:
    """Vectors along the last axis, normalised to a length of 1; zeros stay zeros."""
    length = np.sqrt((np.asarray(vectors, np.float64) ** 2).sum(axis=-1, keepdims=True))
    return np.asarray(vectors / np.where(length > 0, length, 1), np.float64)
