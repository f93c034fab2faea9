"""Encoders against scikit-image, scikit-learn and loops that follow their definitions."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage.feature import fisher_vector as reference_fisher_vector
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from essp import compute_feature
from essp_common.tensors.packed import pack, unpack
from essp_engine.encoders.bilinear import TensorSketch, tensor_sketch
from essp_engine.encoders.encoder import Encoder, fitted_encoder, length, shapes
from essp_engine.encoders.kmeans import Codebook, fitted_codebook
from essp_engine.encoders.mixture import Mixture, fitted_mixture, improved_mixture, maximised
from essp_engine.encoders.pca import Pca, fitted_pca
from essp_engine.encoders.rows import Entries, Sample, Subsample, descriptors_of, tickets
from essp_engine.encoders.vectors import bag_of_words, fisher_vector, l2, power, vlad
from essp_engine.features.registry import layout_of
from essp_engine.video.synthetic import drifting, texture


def rows_of(seed: int, count: int = 300, width: int = 6, groups: int = 4) -> np.ndarray:
    """Rows around some centres, with numbers of different size."""
    random = np.random.Generator(np.random.Philox(seed))
    centres = random.normal(0, 4, (groups, width))
    noise = random.normal(0, 1, (count, width)) * np.linspace(0.5, 2, width)
    found: np.ndarray = centres[random.integers(0, groups, count)] + noise
    return found


def as_reference(mixture: Mixture) -> GaussianMixture:
    """The same mixture in scikit-learn."""
    made = GaussianMixture(len(mixture.weights), covariance_type="diag")
    made.weights_, made.means_, made.covariances_ = mixture.weights, mixture.means, mixture.variances
    made.precisions_cholesky_ = 1 / np.sqrt(mixture.variances)
    return made


@pytest.mark.parametrize("improved", [False, True])
def test_a_fisher_vector_is_that_of_scikit_image(improved: bool) -> None:
    mixture = fitted_mixture(rows_of(1), 4)
    descriptors = rows_of(2, count=57)
    expected = reference_fisher_vector(descriptors, as_reference(mixture), improved=improved)
    found = fisher_vector(descriptors, mixture)
    found = l2(power(found)) if improved else found
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("at_once", [2**22, 40, 1])
def test_a_mixture_is_that_of_scikit_learn(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After as many steps from the same begin, whether all rows are in memory together, ten of them, or one."""
    monkeypatch.setattr("essp_engine.encoders.rows._AT_ONCE", at_once)
    rows = rows_of(3)
    begin = Mixture(np.full(4, 0.25), rows[:4], np.full((4, 6), 9.0))
    found, steps = begin, 5
    for _ in range(steps):
        found, _ = maximised(rows, 4, found.expected)
    reference = GaussianMixture(
        4,
        covariance_type="diag",
        weights_init=begin.weights,
        means_init=begin.means,
        precisions_init=1 / begin.variances,
        max_iter=steps,
        tol=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it has not converged
        reference.fit(rows)
    np.testing.assert_allclose(found.weights, reference.weights_, rtol=1e-9)
    np.testing.assert_allclose(found.means, reference.means_, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.variances, reference.covariances_, rtol=1e-9)
    assert found.log_likelihood(rows) == pytest.approx(reference.score(rows))
    assert improved_mixture(rows, begin).log_likelihood(rows) >= found.log_likelihood(rows) - 1e-3


def test_rows_are_nearest_to_the_centre_that_is_their_mean() -> None:
    rows = rows_of(4)
    book = fitted_codebook(rows, 5, seed=1)
    number = book.nearest(rows)
    np.testing.assert_allclose([rows[number == k].mean(axis=0) for k in range(5)], book.centres, atol=1e-2)
    assert np.array_equal(number, ((rows[:, None] - book.centres) ** 2).sum(axis=2).argmin(axis=1))
    inertia = ((rows - book.centres[number]) ** 2).sum()
    assert inertia <= 1.1 * KMeans(5, n_init=10, random_state=0).fit(rows).inertia_


def test_centres_are_the_same_with_any_number_of_threads() -> None:
    rows = np.random.Generator(np.random.Philox(4)).normal(size=(2000, 4))
    found = set()
    for threads in (1, 3):
        with threadpool_limits(threads):
            found.add(fitted_codebook(rows, 8).centres.tobytes())
    assert len(found) == 1


def test_equal_rows_make_a_codebook_and_a_mixture() -> None:
    rows = np.ones((5, 2))
    assert np.array_equal(fitted_codebook(rows, 3).centres, np.ones((3, 2)))
    assert np.isfinite(fisher_vector(rows, fitted_mixture(rows, 3))).all()


@pytest.mark.parametrize("make", [fitted_codebook, fitted_mixture, fitted_pca])
def test_too_few_rows_are_refused(make: object) -> None:
    with pytest.raises(ValueError, match=r"2 (descriptors|rows)"):
        make(np.zeros((2, 5)), 3)  # type: ignore[operator]


@pytest.mark.parametrize(("at_once", "count"), [(2**22, 300), (60, 300), (1, 300), (2**22, 5)])
def test_principal_components_are_those_of_scikit_learn(
    at_once: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether all rows are in memory together, ten of them, or one; and of fewer rows than a row has numbers."""
    monkeypatch.setattr("essp_engine.encoders.rows._AT_ONCE", at_once)
    rows = rows_of(5, count=count)
    found, reference = fitted_pca(rows, 3), PCA(3, svd_solver="full").fit(rows)
    signs = np.sign((found.axes * reference.components_).sum(axis=1))
    np.testing.assert_allclose(found(rows), reference.transform(rows) * signs, atol=1e-9)
    assert (found.axes[np.arange(3), np.abs(found.axes).argmax(axis=1)] > 0).all(), "the sign is not a chance"


def test_vlad_and_bag_of_words_are_those_of_loops() -> None:
    book, rows = fitted_codebook(rows_of(6), 5), rows_of(7, count=40)
    residuals, words = np.zeros((5, 6)), np.zeros(5)
    for row in rows:
        nearest = min(range(5), key=lambda k: sum((row - book.centres[k]) ** 2))
        residuals[nearest] += row - book.centres[nearest]
        words[nearest] += 1 / 40
    expected = [own / np.linalg.norm(own) if own.any() else own for own in residuals]
    np.testing.assert_allclose(vlad(rows, book), np.ravel(expected), atol=1e-12)
    np.testing.assert_allclose(bag_of_words(rows, book), words, atol=1e-12)


def test_a_sketch_is_the_convolution_of_two_counts() -> None:
    sketch = tensor_sketch(4, 16, seed=2)
    x = np.array([1.0, -2.0, 0.5, 3.0])
    expected = np.zeros(16)
    for i in range(4):
        for j in range(4):
            place = (sketch.places[0, i] + sketch.places[1, j]) % 16
            expected[place] += int(sketch.signs[0, i]) * int(sketch.signs[1, j]) * x[i] * x[j]
    np.testing.assert_allclose(sketch(x[None])[0], expected, atol=1e-12)
    np.testing.assert_allclose(sketch.pooled(np.stack([x, x])), 2 * expected, atol=1e-12)


@pytest.mark.parametrize("size", [64, 1024])
def test_inner_products_of_sketches_approach_the_squares(size: int) -> None:
    random = np.random.Generator(np.random.Philox(8))
    x, y = (l2(random.normal(0, 1, (40, 32))) for _ in range(2))
    x[:20] = l2(x[:20] + y[:20])  # also pairs that are alike
    exact = (x * y).sum(axis=1) ** 2
    errors = [np.abs((s(x) * s(y)).sum(axis=1) - exact) for s in (tensor_sketch(32, size, seed) for seed in range(5))]
    assert np.mean(errors) <= 2 / np.sqrt(size)


def test_rows_without_a_descriptor_are_left_out() -> None:
    """Of two snippets, whose padding is not at the end of all rows. A descriptor of zeros is one."""
    feature = np.zeros((2, 3, 1, 4), np.float32)
    feature[0, :2, 0] = np.array([[5, 1, 0.25, 0.5], [6, 2, 0, 0]])
    feature[1, 0, 0] = [7, 0, 0.75, 1]
    assert descriptors_of(feature, facts=2).tolist() == [[0.25, 0.5], [0, 0], [0.75, 1]]
    assert descriptors_of(feature, facts=0).shape == (6, 4)
    nothing = descriptors_of(np.zeros((1, 3, 1, 4)), facts=2)
    assert nothing.shape == (0, 2)
    book = Codebook(np.eye(2))
    mixture = Mixture(np.array([0.5, 0.5]), np.eye(2), np.ones((2, 2)))
    for vector, size in (
        (vlad(nothing, book), 4),
        (bag_of_words(nothing, book), 2),
        (fisher_vector(nothing, mixture), 10),
    ):
        assert vector.tolist() == [0] * size


def test_the_tracks_of_the_extractor_are_the_rows_that_are_encoded() -> None:
    frames = np.stack(list(drifting(texture(60, 60, 3), 6, (2, 1))))
    feature = compute_feature(frames, "trajectories", length=3, count=500, scales=1, side=8, method="dis")
    rows = feature.reshape(-1, feature.shape[-1])
    layout = layout_of("trajectories")
    assert layout.facts == 10
    found = descriptors_of(feature, layout.facts)
    assert found.tolist() == rows[rows[:, 6] > 0, 10:].tolist()
    assert 0 < len(found) < 500


@pytest.mark.parametrize("kind", ["fisher_vector", "vlad", "bag_of_words"])
def test_an_encoder_is_made_of_its_parts_and_can_be_stored(kind: str) -> None:
    rows, own = rows_of(14), rows_of(15, count=31)
    encoder = fitted_encoder(kind, rows, pca=3, centres=4, seed=2)
    pca = fitted_pca(rows, 3)
    if kind == "fisher_vector":
        mixture = fitted_mixture(pca(rows), 4, seed=2)
        expected = reference_fisher_vector(pca(own), as_reference(mixture), improved=True)
    else:
        book = fitted_codebook(pca(rows), 4, seed=2)
        expected = l2(power(vlad(pca(own), book) if kind == "vlad" else bag_of_words(pca(own), book)))
    np.testing.assert_allclose(encoder(own), expected, atol=1e-5)
    assert len(encoder(own)) == length(kind, 3, 4)
    assert {name: array.shape for name, array in encoder.arrays().items()} == shapes(kind, 6, 3, 4)
    assert np.array_equal(Encoder.of(kind, unpack(pack(encoder.arrays())))(own), encoder(own))


@given(st.permutations(range(9)), st.integers(1, 70), st.lists(st.integers(0, 8), max_size=3))
def test_entries_are_sampled_alike_in_any_order_in_any_parts_and_resumed(
    order: list[int], most: int, stops: list[int]
) -> None:
    """Whoever samples first from his own share, and whenever the sample is looked at or made anew from its entries."""
    batches = [
        Entries(tickets(f"{number}", count), np.full(count, number), np.full((count, 2), number))
        for number, count in enumerate((3, 0, 9, 1, 20, 4, 7, 12, 5))
    ]
    expected = Entries.joined(batches).lowest(most)
    sample = Sample(most)
    for place, number in enumerate(order):
        if place in stops and (kept := sample.entries()) is not None:
            sample, before = Sample(most), sample
            sample.join(kept, before.seen)
        shared = sample.wanted(batches[number])
        assert len(shared) <= most
        sample.join(shared, len(batches[number]))
    found = sample.entries()
    assert found is not None
    assert all(np.array_equal(getattr(found, name), getattr(expected, name)) for name in vars(expected))
    assert sample.seen == 61
    assert sample.whole == (most >= 61)


@given(st.permutations(range(6)), st.integers(1, 80), st.integers(0, 9))
def test_a_sample_is_bounded_and_the_same_in_any_order(order: list[int], most: int, seed: int) -> None:
    videos = {f"v{number}": rows_of(number, count=3 * number + 1, width=2) for number in range(6)}
    samples = []
    for sequence in (range(6), order):
        sample = Subsample(most, seed)
        for number in sequence:
            sample.add(f"v{number}", videos[f"v{number}"])
        samples.append(sample.rows())
    assert np.array_equal(samples[0], samples[1])
    assert len(samples[0]) == min(most, sum(map(len, videos.values())))
    known = {tuple(row) for rows in videos.values() for row in rows.tolist()}
    assert {tuple(row) for row in samples[0].tolist()} <= known


def test_every_row_is_as_likely_to_be_in_a_sample() -> None:
    """A long video has as many rows in it as is its share of all rows."""
    kept = 0
    for seed in range(200):
        sample = Subsample(10, seed)
        sample.add("long", np.ones((75, 1)))
        sample.add("short", np.zeros((25, 1)))
        kept += int(sample.rows().sum())
    assert abs(kept / 2000 - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 2000)


def test_what_makes_no_sample_is_refused() -> None:
    sample = Subsample(10)
    with pytest.raises(ValueError, match="no descriptors to learn from"):
        sample.rows()
    sample.add("a", np.ones((2, 3)))
    with pytest.raises(ValueError, match="b: rows of 4 numbers cannot follow rows of 3"):
        sample.add("b", np.ones((2, 4)))


def test_what_is_learned_can_be_stored_and_restored() -> None:
    rows = rows_of(9)
    pca, book, mixture, sketch = (
        fitted_pca(rows, 3),
        fitted_codebook(rows, 4),
        fitted_mixture(rows, 4),
        tensor_sketch(6, 8),
    )
    assert pack(vars(fitted_mixture(rows, 4))) == pack(vars(mixture)), "nothing is left to chance"
    assert np.array_equal(Pca(**unpack(pack(vars(pca))))(rows), pca(rows))
    assert all(array.flags.c_contiguous for own in (pca, book, mixture) for array in vars(own).values())
    assert np.array_equal(vlad(rows, Codebook(**unpack(pack(vars(book))))), vlad(rows, book))
    assert np.array_equal(fisher_vector(rows, Mixture(**unpack(pack(vars(mixture))))), fisher_vector(rows, mixture))
    assert np.array_equal(TensorSketch(**unpack(pack(vars(sketch))))(rows), sketch(rows))


def test_normalised_vectors() -> None:
    assert power(np.array([-4.0, 0.0, 9.0])).tolist() == [-2, 0, 3]
    assert l2(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist() == [[0.6, 0.8], [0, 0]]
