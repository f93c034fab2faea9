"""Compact bilinear pooling (Gao et al., CVPR 2016): products of all pairs of features, in few numbers.

The outer product of a feature with itself has D * D numbers. Its tensor sketch (Pham & Pagh, KDD 2013) has d: the
feature is added up at random positions with random signs, twice, and the two sums are convolved by the fast Fourier
transform. On average over the random numbers, the inner product of two sketches is the inner product of the outer
products, that is, the square of the features' inner product. Its variance falls with d.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TensorSketch:
    """The random numbers of a sketch."""

    places: NDArray[np.int64]
    """(2, D), each below `d`: the positions."""
    signs: NDArray[np.int8]
    """(2, D), -1 or 1: the signs."""
    size: NDArray[np.int64]
    """(1,): d, the length of a sketch."""

    def __call__(self, features: NDArray[np.floating]) -> Floats:
        """`(N, D)` -> `(N, d)` sketches of the outer products."""
        size = int(self.size[0])
        spectra = []
        for place, sign in zip(self.places, self.signs, strict=True):
            counts = np.zeros((len(features), size))
            np.add.at(counts.T, place, (features * sign).T)
            spectra.append(np.fft.rfft(counts, axis=1))
        return np.fft.irfft(spectra[0] * spectra[1], n=size, axis=1)

    def pooled(self, features: NDArray[np.floating]) -> Floats:
        """`(d,)`: the sum over N places of the sketches of their features."""
        summed: Floats = self(features).sum(axis=0)
        return summed


def tensor_sketch(width: int, size: int, seed: int = 0) -> TensorSketch:
    """The sketch for features of `width` numbers. Equal seeds give equal sketches."""
    random = np.random.Generator(np.random.Philox(key=seed))
    places = random.integers(0, size, (2, width))
    signs = (2 * random.integers(0, 2, (2, width)) - 1).astype(np.int8)
    return TensorSketch(places, signs, np.array([size]))
