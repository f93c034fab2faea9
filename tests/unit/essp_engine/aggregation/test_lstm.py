"""The recurrent network against that of torch, and the strategy on videos that differ in the order of their clips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from essp_common.artifacts.scores import ClipScores
from essp_engine.aggregation import lstm, registry
from essp_engine.aggregation.lstm import LstmClassifier, fitted_lstm
from tests.lanes import often
from tests.unit.essp_engine.aggregation.scored_clips import reached, softmax, with_features

WIDTH, CELLS, CLASSES = 5, 7, 3
LENGTHS = (4, 1, 6, 4, 2)


def a_network(random: np.random.Generator) -> LstmClassifier:
    shapes = ((WIDTH, 4 * CELLS), (CELLS, 4 * CELLS), (4 * CELLS,), (CELLS, CLASSES), (CLASSES,))
    return LstmClassifier(*(random.normal(0, 0.5, shape) for shape in shapes))


def of_torch(net: LstmClassifier, sequences: list[np.ndarray]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The logits of `torch.nn.LSTM` with these weights, sequence by sequence, and the weights that have slopes."""
    weights = [torch.tensor(array, requires_grad=True) for array in vars(net).values()]
    inputs, recurrent, bias, last, offsets = weights
    layer = torch.nn.LSTM(WIDTH, CELLS, batch_first=True).double()
    arrays = {"weight_ih_l0": inputs.T, "weight_hh_l0": recurrent.T, "bias_ih_l0": bias}
    arrays["bias_hh_l0"] = torch.zeros(4 * CELLS, dtype=torch.double)
    states = [torch.func.functional_call(layer, arrays, torch.tensor(each)[None])[1][0][0, 0] for each in sequences]
    return torch.stack(states) @ last + offsets, weights


def test_it_is_the_network_of_torch_with_its_slopes() -> None:
    random = np.random.Generator(np.random.Philox(1))
    net = a_network(random)
    sequences = [random.normal(0, 1, (length, WIDTH)) for length in LENGTHS]
    labels, penalty = np.arange(len(LENGTHS)) % CLASSES, 0.1
    logits, weights = of_torch(net, sequences)
    np.testing.assert_allclose(net(sequences), torch.softmax(logits, 1).detach(), atol=1e-12)

    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels))
    total = loss + penalty / 2 * sum((weights[each] ** 2).sum() for each in (0, 1, 3))
    expected = torch.autograd.grad(total, weights)
    _, slopes = lstm._loss(net, lstm._in_steps(sequences), np.eye(CLASSES)[labels], penalty)
    for name, ours, theirs in zip(vars(slopes), vars(slopes).values(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12, err_msg=name)


def in_order(videos: int, seed: int) -> ClipScores:
    """Clips that show A and then clips that show B are class 0, the other way round class 1; lengths differ. No clip
    tells more alone than another, so scores are noise."""
    random = np.random.Generator(np.random.Philox(seed))
    labels = (np.arange(videos) % 2).tolist()
    features = []
    for label in labels:
        half = int(random.integers(3, 7))
        shown = np.repeat(np.eye(8)[[label, 1 - label]], half, axis=0)
        features.append(shown + random.normal(0, 0.3, shown.shape))
    scores = [softmax(random.normal(0, 1, (len(own), 2))) for own in features]
    return with_features(features, labels, scores)


@pytest.fixture(scope="module")
def known() -> ClipScores:
    return in_order(80, seed=2)


@pytest.fixture(scope="module")
def asked() -> ClipScores:
    """So many that being right for 55 % of them is no chance: more than four standard errors above one half."""
    return in_order(2000, seed=3)


POOLING: dict[str, dict[str, Any]] = {
    "average": {},
    "attention": {},
    "fisher_vector": {"pca": 8, "centres": 4},
    "compact_bilinear": {"size": 64},
    "max": {},
    "top_k": {},
    "linear": {},
    "feature_linear": {},
    "vlad": {"pca": 8, "centres": 4},
    "bag_of_words": {"pca": 8, "centres": 4},
}


@pytest.mark.parametrize("name", often(POOLING, 4))
def test_what_pools_clips_guesses_whether_a_came_before_b(name: str, known: ClipScores, asked: ClipScores) -> None:
    assert 0.45 <= reached(name, known, asked, **POOLING[name]) <= 0.55


def test_the_recurrent_network_tells_whether_a_came_before_b(known: ClipScores, asked: ClipScores) -> None:
    assert reached("lstm", known, asked, hidden=8, pca=8, steps=40) >= 0.95


def test_videos_with_one_clip_and_features_without_any_spread_are_learned_from() -> None:
    part = with_features([np.ones((1, 4))] * 6, [0, 1, 2] * 2)
    strategy = registry.create("lstm", {"steps": 3})
    scores = strategy.predict({"rgb": part}, strategy.fit({"rgb": part})).probabilities
    np.testing.assert_allclose(scores.sum(axis=1), 1)


def test_the_loss_goes_down() -> None:
    random = np.random.Generator(np.random.Philox(4))
    sequences = [random.normal(label, 1, (3, WIDTH)) for label in (0, 1, 2) * 4]
    labels = np.array((0, 1, 2) * 4, dtype=np.int32)

    def loss_after(steps: int) -> float:
        found = fitted_lstm(sequences, labels, CLASSES, cells=CELLS, penalty=0.01, steps=steps)
        return lstm._loss(found, lstm._in_steps(sequences), np.eye(CLASSES)[labels], 0.01)[0]

    assert loss_after(1) > loss_after(3) > loss_after(9)
