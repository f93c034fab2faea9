"""A classifier of sequences: one layer of long short-term memory and a linear layer on its last state.

The cells are those of Hochreiter & Schmidhuber ("Long short-term memory", Neural Computation 1997) with the forget gate
of Gers et al. (2000), as `torch.nn.LSTM` has them. It is written in NumPy since the images of master, aggregator and
predictor's fusion have no torch; a network of this size on features that are there already takes seconds. It learns
from all sequences at once, downhill by `classifier.lowest`, from weights that are always the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from essp_engine.encoders.classifier import lowest, softmax

Floats = NDArray[np.float64]

_REMEMBERS = 1.0
"""The bias of the forget gate at first: it is open, so slopes reach the first clips (Jozefowicz et al., 2015)."""


@dataclass(frozen=True)
class LstmClassifier:
    """Scores of C classes of sequences of D numbers, by H cells. The gates are input, forget, cell and output."""

    inputs: Floats
    """(D, 4 H) weights of what is read."""
    recurrent: Floats
    """(H, 4 H) weights of the state before."""
    bias: Floats
    """(4 H,)"""
    weights: Floats
    """(H, C) weights of the last state."""
    offsets: Floats
    """(C,)"""

    def __call__(self, sequences: Sequence[Floats]) -> Floats:
        """V sequences, each `(T, D)` with a T >= 1 of its own -> `(V, C)` probabilities."""
        return softmax(_read(self, _in_steps(sequences)).state @ self.weights + self.offsets)


def fitted_lstm(
    sequences: Sequence[Floats], labels: NDArray[np.int32], classes: int, cells: int, penalty: float, steps: int
) -> LstmClassifier:
    """Go down the mean log loss of `sequences` plus `penalty / 2` times the squares of all weights, biases apart.

    It is not convex: what is found depends on the first weights, which the sizes alone decide.
    """
    first = _first_weights(sequences[0].shape[1], cells, classes)
    by_step = _in_steps(sequences)
    wanted = np.eye(classes)[labels]

    def loss(flat: Floats) -> tuple[float, Floats]:
        value, slopes = _loss(_shaped(flat, first), by_step, wanted, penalty)
        return value, _flat(slopes)

    return _shaped(lowest(loss, _flat(first), steps), first)


class _Steps(NamedTuple):
    """Sequences by time, the longest first, so that those that go on are always the first rows."""

    order: NDArray[np.intp]
    inputs: list[Floats]
    """Of each step t, `(n, D)` of the n sequences longer than t."""


class _Gates(NamedTuple):
    """What a step made of what it read."""

    input: Floats
    forget: Floats
    cell: Floats
    output: Floats
    held: Floats
    """tanh of the memory after the step."""
    memory_before: Floats
    state_before: Floats


class _Reading(NamedTuple):
    state: Floats
    """(V, H) the last of each sequence."""
    gates: list[_Gates]


def _in_steps(sequences: Sequence[Floats]) -> _Steps:
    lengths = np.array([len(each) for each in sequences])
    order = np.argsort(-lengths, kind="stable")
    going = [order[: np.count_nonzero(lengths > step)] for step in range(lengths.max())]
    return _Steps(order, [np.stack([sequences[v][step] for v in rows]) for step, rows in enumerate(going)])


def _read(net: LstmClassifier, steps: _Steps) -> _Reading:
    state = np.zeros((len(steps.order), len(net.recurrent)))
    memory = np.zeros_like(state)
    gates = []
    for inputs in steps.inputs:
        going = len(inputs)
        before = state[:going].copy(), memory[:going].copy()
        sums = inputs @ net.inputs + before[0] @ net.recurrent + net.bias
        i, f, g, o = np.split(sums, 4, axis=1)
        i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
        memory[:going] = f * before[1] + i * g
        held = np.tanh(memory[:going])
        state[:going] = o * held
        gates.append(_Gates(i, f, g, o, held, before[1], before[0]))
    last = np.empty_like(state)
    last[steps.order] = state
    return _Reading(last, gates)


def _loss(net: LstmClassifier, steps: _Steps, wanted: Floats, penalty: float) -> tuple[float, LstmClassifier]:
    """The loss, and its slope by each of the weights (back-propagation through time: Werbos, 1990)."""
    reading = _read(net, steps)
    shares = softmax(reading.state @ net.weights + net.offsets)
    wrong = (shares - wanted) / len(wanted)
    likely = np.maximum((shares * wanted).sum(axis=1), np.finfo(np.float64).tiny)
    size = sum(float((own**2).sum()) for own in (net.inputs, net.recurrent, net.weights))

    inputs, recurrent, bias = penalty * net.inputs, penalty * net.recurrent, np.zeros_like(net.bias)
    by_state = (wrong @ net.weights.T)[steps.order]
    by_memory = np.zeros_like(by_state)
    for read, own in zip(reversed(steps.inputs), reversed(reading.gates), strict=True):
        going = len(read)
        state = by_state[:going]
        memory = by_memory[:going] + state * own.output * (1 - own.held**2)
        sums = np.concatenate(
            [
                memory * own.cell * own.input * (1 - own.input),
                memory * own.memory_before * own.forget * (1 - own.forget),
                memory * own.input * (1 - own.cell**2),
                state * own.held * own.output * (1 - own.output),
            ],
            axis=1,
        )
        inputs += read.T @ sums
        recurrent += own.state_before.T @ sums
        bias += sums.sum(axis=0)
        by_state[:going] = sums @ net.recurrent.T
        by_memory[:going] = memory * own.forget
    slopes = LstmClassifier(inputs, recurrent, bias, reading.state.T @ wrong + penalty * net.weights, wrong.sum(axis=0))
    return float(-np.log(likely).mean() + penalty / 2 * size), slopes


def _first_weights(width: int, cells: int, classes: int) -> LstmClassifier:
    random = np.random.Generator(np.random.Philox(key=0))
    most = cells**-0.5  # as torch begins
    inputs, recurrent = (random.uniform(-most, most, (rows, 4 * cells)) for rows in (width, cells))
    bias = np.zeros(4 * cells)
    bias[cells : 2 * cells] = _REMEMBERS
    return LstmClassifier(inputs, recurrent, bias, random.uniform(-most, most, (cells, classes)), np.zeros(classes))


def _flat(net: LstmClassifier) -> Floats:
    return np.concatenate([array.ravel() for array in vars(net).values()])


def _shaped(flat: Floats, like: LstmClassifier) -> LstmClassifier:
    shapes = {name: array.shape for name, array in vars(like).items()}
    ends = np.cumsum([np.prod(shape, dtype=np.intp) for shape in shapes.values()])
    pieces = np.split(flat, ends[:-1])
    return LstmClassifier(**{name: own.reshape(shapes[name]) for name, own in zip(shapes, pieces, strict=True)})


def _sigmoid(sums: Floats) -> Floats:
    open_by: Floats = 0.5 * (1 + np.tanh(0.5 * sums))  # without an overflow
    return open_by
