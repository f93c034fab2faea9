"""What a network computes for some clips and not for others: the experts of a mixture, each called if a clip chose it.

On several ranks each batch normalisation exchanges numbers, forwards and backwards, and gradients are exchanged while
the backward pass goes on. All ranks have to do so in the same order: else gloo ends the process, NCCL waits for ever,
and where the numbers are as many, those of different layers are added up.

So a network is sent no clip and one clip before it trains. What a rank leaves out without a clip, or does in another
order, it does not do on every rank. A batch normalisation of that kind is refused; a gradient has to wait for the end
of the backward pass.

A network that cannot be sent no clip is taken at its word; then all gradients wait.
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
    """What a pass through a network did."""

    forward: list[str]
    """Paths of the batch normalisations, in their order."""
    backward: list[str]
    """Those that a gradient came to, in their order."""
    moments: dict[Parameter, int]
    """How many of those were before the gradient of each parameter that has one."""


def gradients_that_wait(model: Classifier, side: int, still: Collection[nn.Module]) -> set[Parameter]:
    """The parameters whose gradients do not come on every rank at the same place between batch normalisations.

    `side`: of its pictures. `still`: batch normalisations that exchange nothing, since their statistics stand. Raises
    `ConfigError` if another one is left out for some clips.
    """
    layers = {path: layer for path, layer in batch_norms(model).items() if layer not in still}
    if not layers:
        return set()  # nothing comes between the gradients, whose own order is the same everywhere
    try:
        with _in_evaluation(model):
            without, with_one = (_course(model, layers, clips, side) for clips in (0, 1))
    except Exception as error:  # noqa: BLE001  of another package; if it is not of this test, training raises it again
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
    """Layers as in evaluation, which changes nothing; what has parts as in training, which may decide what is called.
    Gradients are gone afterwards."""
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
    """Raises `ConfigError` for batch normalisations that a rank without a clip leaves out."""
    for one, other in zip_longest(without, with_one):
        if one != other:
            raise ConfigError(
                f"{other or one} of the network is a batch normalisation that {fate} without a clip for it, while the "
                "others exchange its numbers; call each part of the network with the rows that are for it even if "
                "there are none, normalise by nn.GroupNorm or nn.LayerNorm, or train on one rank",
                code="unsupported",
            )
