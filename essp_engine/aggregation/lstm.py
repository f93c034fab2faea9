"""A classifier of sequences in torch: one layer of long short-term memory and a linear layer on its last state.

Master and aggregator do not load torch, except an aggregator whose job has the strategy `lstm`: so this module is
imported only where the strategy learns or predicts. It learns from all sequences at once, from fixed initial weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[np.float64]]

_REMEMBERS = 1.0
"""The initial bias of the forget gate: the gate is open, so gradients reach the first clips (Jozefowicz et al.,
2015)."""
_AT_ONCE = 512
"""Sequences whose steps are all in memory together."""


class LstmClassifier(nn.Module):
    """Logits of C classes for sequences of D numbers, with H cells."""

    def __init__(self, width: int, cells: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, cells)
        self.linear = nn.Linear(cells, classes)

    def forward(self, sequences: PackedSequence) -> Tensor:
        """`(V, C)` for V sequences."""
        _, (state, _) = self.lstm(sequences)
        logits: Tensor = self.linear(state[-1])
        return logits


def fitted_lstm(
    sequences: Sequence[Floats], labels: NDArray[np.int32], classes: int, cells: int, penalty: float, steps: int
) -> Arrays:
    """The state of the network after `steps` steps that minimise the mean log loss of `sequences`, each `(T, D)`, plus
    `penalty / 2` times the squares of all weights except biases.

    The loss is not convex: the result depends on the initial weights, which depend only on the sizes.
    """
    network = _first(sequences[0].shape[1], cells, classes)
    truth, parts = torch.from_numpy(labels).long(), range(0, len(sequences), _AT_ONCE)
    batches = [
        (_packed(sequences[begin : begin + _AT_ONCE], torch.float32), truth[begin : begin + _AT_ONCE])
        for begin in parts
    ]
    weights = [parameter for name, parameter in network.named_parameters() if "weight" in name]
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = penalty / 2 * torch.stack([own.square().sum() for own in weights]).sum()
        total.backward()  # type: ignore[no-untyped-call]
        for clips, classes_of_clips in batches:
            own = nn.functional.cross_entropy(network(clips), classes_of_clips, reduction="sum") / len(labels)
            own.backward()  # type: ignore[no-untyped-call]
            total = total + own.detach()
        return total.detach()

    with threadpool_limits(1):  # several add up in another order, and from there on another way leads down
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return {name: array.double().numpy() for name, array in network.state_dict().items()}


def probabilities(state: Arrays, sequences: Sequence[Floats]) -> Floats:
    """`(V, C)` by a network of this state, of V sequences `(T, D)` with a T >= 1 of its own each."""
    inputs, cells = state["lstm.weight_ih_l0"], state["lstm.weight_hh_l0"].shape[1]
    network = LstmClassifier(inputs.shape[1], cells, len(state["linear.bias"])).double()
    network.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    with torch.inference_mode():
        found: Floats = network.forward(_packed(sequences, torch.float64)).softmax(dim=1).numpy()
    return found


def _first(width: int, cells: int, classes: int) -> LstmClassifier:
    network, random = LstmClassifier(width, cells, classes), torch.Generator().manual_seed(0)
    most = cells**-0.5  # as torch begins
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "bias" in name:
                parameter.zero_()
            else:
                parameter.uniform_(-most, most, generator=random)
        network.lstm.get_parameter("bias_ih_l0")[cells : 2 * cells] = _REMEMBERS
    return network


def _packed(sequences: Sequence[Floats], kind: torch.dtype) -> PackedSequence:
    return pack_sequence([torch.from_numpy(each).to(kind) for each in sequences], enforce_sorted=False)
