"""A whole encoder: from the local descriptors of a clip to the vector that a linear classifier reads.

    sample of the descriptors of all clips ─▶ PCA ─▶ mixture of Gaussians | k-means        (learned once)
    descriptors of a clip ─▶ PCA ─▶ Fisher vector | VLAD | bag of words ─▶ power ─▶ L2

A mixture assigns rows softly, so `fisher_vector` uses a weight, a mean and a deviation for each Gaussian; `vlad` and
`bag_of_words` use the nearest centre. Power and L2 normalisation follow the improved Fisher vector (Perronnin, Sanchez
& Mensink, ECCV 2010).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp_engine.encoders.fitting import Tell, silent
from essp_engine.encoders.kmeans import Codebook, fitted_codebook
from essp_engine.encoders.mixture import Mixture, fitted_mixture
from essp_engine.encoders.pca import Pca, fitted_pca
from essp_engine.encoders.vectors import bag_of_words, fisher_vector, l2, power, vlad

Floats = NDArray[np.float64]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Encoder:
    """The learned parts of an encoder."""

    pca: Pca
    book: Mixture | Codebook
    kind: str
    """fisher_vector, vlad or bag_of_words."""

    def __call__(self, descriptors: NDArray[Any]) -> Floats:
        """`(W,)` vector of `(N, D)` descriptors. Its length is 1, or 0 if N is 0."""
        rows = self.pca(descriptors.astype(np.float64))
        if isinstance(self.book, Mixture):
            vector = fisher_vector(rows, self.book)
        else:
            vector = vlad(rows, self.book) if self.kind == "vlad" else bag_of_words(rows, self.book)
        return l2(power(vector))

    def arrays(self) -> dict[str, Floats]:
        """All arrays, by the names of `shapes`."""
        return {f"pca_{n}": a for n, a in vars(self.pca).items()} | {f"book_{n}": a for n, a in vars(self.book).items()}

    @classmethod
    def of(cls, kind: str, arrays: Mapping[str, NDArray[Any]]) -> Encoder:
        """The inverse of `arrays`."""
        exact = {name: array.astype(np.float64) for name, array in arrays.items()}
        pca = Pca(exact["pca_mean"], exact["pca_axes"])
        if kind == "fisher_vector":
            return cls(pca, Mixture(exact["book_weights"], exact["book_means"], exact["book_variances"]), kind)
        return cls(pca, Codebook(exact["book_centres"]), kind)


def fitted_encoder(
    kind: str, descriptors: NDArray[Any], pca: int, centres: int, seed: int = 0, tell: Tell = silent
) -> Encoder:
    """The encoder of `(N, D)` descriptors. Raises `ValueError` if they are too few for these components or centres."""
    exact = descriptors.astype(np.float64)
    projection = fitted_pca(exact, pca, tell)
    reduced = projection(exact)
    fit = fitted_mixture if kind == "fisher_vector" else fitted_codebook
    return Encoder(projection, fit(reduced, centres, seed, tell), kind)


def shapes(kind: str, width: int, pca: int, centres: int) -> dict[str, Shape]:
    """The shapes of the arrays of an encoder for descriptors of `width` numbers."""
    projection: dict[str, Shape] = {"pca_mean": (width,), "pca_axes": (pca, width)}
    if kind == "fisher_vector":
        return projection | {
            "book_weights": (centres,),
            **dict.fromkeys(("book_means", "book_variances"), (centres, pca)),
        }
    return projection | {"book_centres": (centres, pca)}


def length(kind: str, pca: int, centres: int) -> int:
    """The number of elements of a vector."""
    return {"fisher_vector": centres * (2 * pca + 1), "vlad": centres * pca, "bag_of_words": centres}[kind]
