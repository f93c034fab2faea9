"""Strategies that learn from features, from clips to scores, against pipelines of scikit-learn, scikit-image and torch.

Nothing of ESSP is in a pipeline, the random numbers of a sketch and the weights of a recurrent network apart. Features
lie in groups far apart, so that any k-means and any mixture of Gaussians finds the same ones; the order in which it
numbers them makes no difference to the classifier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from skimage.feature import fisher_vector
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.kernel_approximation import PolynomialCountSketch
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import normalize

from essp_common.artifacts.scores import ClipScores
from essp_engine.aggregation import registry
from essp_engine.aggregation.port import State
from tests.unit.essp_engine.aggregation.scored_clips import with_features

VIDEOS, ASKED, WIDTH, COMPONENTS, GROUPS, CLASSES = 48, 30, 8, 5, 4, 3
PENALTY = 0.01
CLOSE = 1e-4
"""The two classifiers end where their slopes are below 1e-6 and 1e-10."""

Rows = list[np.ndarray]
"""`(T, D)` features of each video, in double precision."""
Encode = Callable[[Rows, Rows, State], tuple[np.ndarray, np.ndarray]]
"""Features of the videos to learn from and of those that are asked for -> `(V, W)` vectors of both."""


def grouped(videos: int, seed: int) -> ClipScores:
    """The class decides how often each group is seen, and a little where in the group."""
    random = np.random.Generator(np.random.Philox(seed))
    centres = np.random.Generator(np.random.Philox(99)).normal(0, 12, (GROUPS, WIDTH))
    often = np.array([[5, 2, 1, 2], [2, 5, 2, 1], [1, 2, 4, 3]]) / 10
    labels = (np.arange(videos) % CLASSES).tolist()
    features = []
    for label in labels:
        group = random.choice(GROUPS, int(random.integers(5, 12)), p=often[label])
        features.append(centres[group] + 0.3 * label + random.normal(0, 1, (len(group), WIDTH)))
    return with_features(features, labels)


def rows_of(part: ClipScores) -> Rows:
    assert part.features is not None
    return np.split(part.features.astype(np.float64), part.first[1:-1])


def reduced(known: Rows, asked: Rows) -> tuple[Rows, Rows]:
    pca = PCA(COMPONENTS, svd_solver="full").fit(np.concatenate(known))
    return [pca.transform(rows) for rows in known], [pca.transform(rows) for rows in asked]


def signed_root(vectors: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.sign(vectors) * np.sqrt(np.abs(vectors))
    return found


def means(known: Rows, asked: Rows, state: State) -> tuple[np.ndarray, np.ndarray]:
    first, second = (normalize([rows.mean(axis=0) for rows in videos]) for videos in (known, asked))
    return first, second


def fisher_vectors(known: Rows, asked: Rows, state: State) -> tuple[np.ndarray, np.ndarray]:
    known, asked = reduced(known, asked)
    mixture = GaussianMixture(GROUPS, covariance_type="diag", random_state=0).fit(np.concatenate(known))
    first, second = (
        np.stack([fisher_vector(rows, mixture, improved=True) for rows in videos]) for videos in (known, asked)
    )
    return first, second


def codebook(known: Rows) -> KMeans:
    return KMeans(GROUPS, n_init=10, random_state=0).fit(np.concatenate(known))


def vlads(known: Rows, asked: Rows, state: State) -> tuple[np.ndarray, np.ndarray]:
    known, asked = reduced(known, asked)
    book = codebook(known)

    def vlad(rows: np.ndarray) -> np.ndarray:
        sums = np.zeros((GROUPS, COMPONENTS))
        for row, word in zip(rows, book.predict(rows), strict=True):
            sums[word] += row - book.cluster_centers_[word]
        found: np.ndarray = signed_root(normalize(sums).ravel())
        return found

    first, second = (normalize([vlad(rows) for rows in videos]) for videos in (known, asked))
    return first, second


def bags_of_words(known: Rows, asked: Rows, state: State) -> tuple[np.ndarray, np.ndarray]:
    known, asked = reduced(known, asked)
    book = codebook(known)

    def bag(rows: np.ndarray) -> np.ndarray:
        words = book.predict(rows).tolist()
        return signed_root(np.array([words.count(word) / len(words) for word in range(GROUPS)]))

    first, second = (normalize([bag(rows) for rows in videos]) for videos in (known, asked))
    return first, second


def sketches(known: Rows, asked: Rows, state: State) -> tuple[np.ndarray, np.ndarray]:
    """By the tensor sketch of scikit-learn, with the places and signs that were drawn here."""
    sketch = PolynomialCountSketch(degree=2, coef0=0, n_components=int(state["rgb/sketch.size"][0]))
    sketch.fit(known[0])
    sketch.indexHash_, sketch.bitHash_ = state["rgb/sketch.places"], state["rgb/sketch.signs"]
    first, second = (
        normalize([signed_root(sketch.transform(rows).sum(axis=0)) for rows in videos]) for videos in (known, asked)
    )
    return first, second


WITH_CODEBOOK = {"pca": COMPONENTS, "centres": GROUPS}


@pytest.mark.parametrize(
    ("name", "params", "encode"),
    [
        ("feature_linear", {}, means),
        ("fisher_vector", WITH_CODEBOOK, fisher_vectors),
        ("vlad", WITH_CODEBOOK, vlads),
        ("bag_of_words", WITH_CODEBOOK, bags_of_words),
        ("compact_bilinear", {"size": 32}, sketches),
    ],
)
def test_a_classifier_of_vectors_is_what_other_libraries_make(
    name: str, params: dict[str, Any], encode: Encode
) -> None:
    known, asked = grouped(VIDEOS, seed=1), grouped(ASKED, seed=2)
    strategy = registry.create(name, {"penalty": PENALTY, **params})
    state = strategy.fit({"rgb": known})
    first, second = encode(rows_of(known), rows_of(asked), state)
    classifier = LogisticRegression(C=1 / (PENALTY * VIDEOS), tol=1e-10, max_iter=100_000)
    expected = classifier.fit(first, known.means.class_id).predict_proba(second)
    assert expected.max(axis=1).min() < expected.max(axis=1).max() - 0.1, "which depends on the video"
    np.testing.assert_allclose(strategy.predict({"rgb": asked}, state).probabilities, expected, atol=CLOSE)


def test_the_recurrent_network_reads_what_scikit_learn_reduces_as_torch_reads_it() -> None:
    known, asked = grouped(VIDEOS, seed=3), grouped(ASKED, seed=4)
    strategy = registry.create("lstm", {"pca": COMPONENTS, "hidden": 6, "steps": 10})
    state = strategy.fit({"rgb": known})
    net = {n.removeprefix("rgb/network."): torch.tensor(a) for n, a in state.items() if n.startswith("rgb/network.")}
    layer = torch.nn.LSTM(COMPONENTS, 6, batch_first=True).double()
    layer.load_state_dict({n.removeprefix("lstm."): a for n, a in net.items() if n.startswith("lstm.")})
    first, second = reduced(rows_of(known), rows_of(asked))
    scale = np.concatenate(first).std()
    with torch.no_grad():
        last = torch.stack([layer(torch.tensor(rows / scale)[None])[1][0][0, 0] for rows in second])
        expected = torch.softmax(last @ net["linear.weight"].T + net["linear.bias"], dim=1)
    np.testing.assert_allclose(strategy.predict({"rgb": asked}, state).probabilities, expected, atol=1e-9)


def test_streams_are_scored_apart_and_fused_by_their_mean() -> None:
    rgb, flow = grouped(VIDEOS, seed=5), grouped(VIDEOS, seed=6)
    strategy = registry.create("feature_linear", {})
    alone = [strategy.predict({"a": part}, strategy.fit({"a": part})).probabilities for part in (rgb, flow)]
    both = strategy.predict({"rgb": rgb, "flow": flow}, strategy.fit({"rgb": rgb, "flow": flow})).probabilities
    np.testing.assert_allclose(both, (alone[0] + alone[1]) / 2, rtol=1e-9)
