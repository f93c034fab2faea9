"""A real training whose checkpoints are measured: EfficientNet-Lite0 from its ImageNet weights, fine-tuned on images.

Ten classes of images of 64x64, batches of 16, SGD as a job's (rate 0.01, momentum 0.9, weight decay 5e-4). One thread
computes: more of them wait for each other where other processes use the cores, and a step then takes a hundred times as
long. The same seed gives the same training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from benchmarks.hogwild import Images, Labels
from essp_engine.learning.models import arrays_of, as_tensors, on_host
from essp_engine.learning.networks import network, packaged_weights, read_state

NAME = "efficientnet_lite0"
BATCH, SIDE = 16, 64
MODEL, OPTIMIZER = "model.tensors", "optimizer.tensors"

State = dict[str, dict[str, NDArray[Any]]]
"""File -> name -> array, as a trainer saves them."""


def pretrained() -> nn.Module:
    """The network with its ImageNet weights, for 1000 classes."""
    made = network(NAME).make()
    made.load_state_dict(read_state(packaged_weights(NAME), "weights.pth"))
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


class ImageTraining:
    """One training; a step at a time."""

    def __init__(self, images: Images, labels: Labels, seed: int = 0) -> None:
        """`images`: `(N, H, W, 3)` uint8. `labels`: `(N,)`, 0 to 9."""
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.model = pretrained()
        self.model._fc = nn.Linear(self.model._fc.in_features, 10)  # type: ignore[arg-type, union-attr]
        self._optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)
        self._images = _scaled(images)
        self._labels = torch.from_numpy(labels)
        self._seed = seed
        self.steps = 0
        """Made so far."""

    def step(self) -> None:
        """Learn from the next batch; which one depends on the seed and the number of the step alone."""
        order = np.random.default_rng((self._seed, self.steps)).integers(0, len(self._labels), BATCH)
        some = torch.from_numpy(order)
        self.model.train()
        self._optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(self.model(_pixels(self._images[some])), self._labels[some])
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 20.0)
        self._optimizer.step()
        self.steps += 1

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Weights and momentum, in place."""
        state = self._optimizer.state
        momentum = {
            name: state[parameter]["momentum_buffer"]
            for name, parameter in self.model.named_parameters()
            if "momentum_buffer" in state[parameter]
        }
        return {MODEL: self.model.state_dict(), OPTIMIZER: momentum}

    def state(self) -> State:
        """A copy of weights and momentum."""
        return {file: arrays_of(on_host(tensors)) for file, tensors in self.tensors().items()}

    def load(self, state: Mapping[str, Mapping[str, NDArray[Any]]], steps: int) -> None:
        """Go on from a saved state, `steps` made."""
        self.model.load_state_dict(as_tensors(state[MODEL]))
        for name, parameter in self.model.named_parameters():
            if name in state[OPTIMIZER]:
                kept = torch.empty_like(parameter, requires_grad=False)
                kept.copy_(torch.from_numpy(state[OPTIMIZER][name]))
                self._optimizer.state[parameter]["momentum_buffer"] = kept
        self.steps = steps

    def accuracy(self, images: Images, labels: Labels) -> float:
        """Share of these that it answers rightly."""
        return float((answers(self.model, images) == labels).mean())


def answers(model: nn.Module, images: Images, side: int = SIDE) -> Labels:
    """The class of each image; -1 where scores are not finite."""
    model.eval()
    found = []
    with torch.inference_mode():
        for some in torch.split(_scaled(images, side), 25):
            scores = model(_pixels(some))
            best = scores.argmax(1)
            best[~torch.isfinite(scores).all(1)] = -1
            found.append(best.numpy())
    return np.concatenate(found)


def _scaled(images: Images, side: int = SIDE) -> torch.Tensor:
    """`(N, 3, side, side)` uint8."""
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2)
    if tensor.shape[-1] != side:
        tensor = functional.interpolate(tensor, size=(side, side), mode="bilinear", antialias=True)
    return tensor.contiguous(memory_format=torch.channels_last)


def _pixels(images: torch.Tensor) -> torch.Tensor:
    """As the package of the weights normalises them."""
    return (images.float() - 127) / 128
