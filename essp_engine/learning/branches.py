"""Handles networks with parts that run for some clips only: the experts of a mixture, each called if a clip chose it.

With several ranks, each batch normalisation exchanges numbers in the forward and the backward pass, and gradients are
exchanged during the backward pass. All ranks must do this in the same order. Otherwise gloo ends the process, NCCL
waits forever, and if sizes happen to match, numbers of different layers are added up.

So before training, the network is run on zero clips and on one clip. Whatever it skips without a clip, or does in a
different order, does not happen on every rank. A batch normalisation of that kind is refused; such a gradient must wait
for the end of the backward pass.

If a network fails on zero clips, the check is skipped; then all gradients wait.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from essp_common.errors import ConfigError
from essp_engine.learning.models import Classifier
from essp_engine.learning.normalisation import batch_norms

_log = logging.getLogger(__name__)


class _Course(NamedTuple):
    """The course of a pass through a network."""

    forward: list[str]
    """Paths of the batch normalisations, in the order of the forward pass."""
    backward: list[str]
    """Paths of the batch normalisations that a gradient reached, in order."""
    moments: dict[Parameter, int]
    """For each parameter with a gradient, how many of those the backward pass had reached before it."""


def gradients_that_wait(model: Classifier, side: int, still: Collection[nn.Module]) -> set[Parameter]:
    """The parameters whose gradients do not arrive at the same place between batch normalisations on every rank.

    `side`: of its pictures. `still`: batch normalisations that exchange nothing, because their statistics are frozen.
    Raises `ConfigError` if another one is skipped for some clips.
    """
    layers = {path: layer for path, layer in batch_norms(model).items() if layer not in still}
    if not layers:
        return set()  # nothing is exchanged between the gradients, whose own order is the same on all ranks
    try:
        with _in_evaluation(model):
            without, with_one = (_course(model, layers, clips, side) for clips in (0, 1))
    except Exception as error:  # noqa: BLE001  of another package; training repeats errors that are not of this test
        _log.warning("whether the network computes the same for all clips is not known: %s", error)
        return set(model.parameters())
    _require_alike(without.forward, with_one.forward, "is left out by a rank")
    _require_alike(without.backward, with_one.backward, "gets no gradient on a rank")
    return {
        parameter
        for parameter in model.parameters()
        if without.moments.get(parameter, -1) != with_one.moments.get(parameter, -2)
    }


@contextmanager
def _in_evaluation(model: Classifier) -> Iterator[None]:
    """Put leaf layers in evaluation mode, which changes no state, and containers in training mode, which may decide
    what is called. Clears gradients afterwards."""
    modes = {layer: layer.training for layer in model.modules()}
    try:
        for layer in modes:
            layer.training = any(True for _ in layer.children())
        yield
    finally:
        for layer, mode in modes.items():
            layer.training = mode
        model.zero_grad(set_to_none=True)


def _course(model: Classifier, layers: Mapping[str, nn.Module], clips: int, side: int) -> _Course:
    course = _Course([], [], {})
    paths = {layer: path for path, layer in layers.items()}

    def normalised(layer: nn.Module, _: object, found: Tensor) -> None:
        course.forward.append(paths[layer])
        if found.requires_grad:
            found.register_hook(lambda _: course.backward.append(paths[layer]))  # type: ignore[no-untyped-call]

    def came(parameter: Tensor) -> None:
        course.moments[parameter] = len(course.backward)  # type: ignore[index]

    hooks = [layer.register_forward_hook(normalised) for layer in layers.values()]
    hooks += [
        parameter.register_post_accumulate_grad_hook(came)  # type: ignore[no-untyped-call]
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    random = torch.Generator().manual_seed(0)
    shape = (clips, model.clip_frames or 1, side, side, model.channels)
    try:
        scores = model(torch.randn(shape, generator=random).to(model.device))
        total = scores.logits.sum()
        if scores.auxiliary is not None:
            total = total + scores.auxiliary.sum()
        total.backward()
    finally:
        for hook in hooks:
            hook.remove()
    return course


def _require_alike(without: list[str], with_one: list[str], fate: str) -> None:
    """Raises `ConfigError` for batch normalisations that a rank without a clip skips."""
    for one, other in zip_longest(without, with_one):
        if one != other:
            raise ConfigError(
                f"{other or one} of the network is a batch normalisation that {fate} without a clip for it, while the "
                "others exchange its numbers; call each part of the network with the rows that are for it even if "
                "there are none, normalise by nn.GroupNorm or nn.LayerNorm, or train on one rank",
                code="unsupported",
            )
