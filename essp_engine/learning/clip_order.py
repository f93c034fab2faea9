"""Checks that a network keeps the clips of a batch apart, and in the first dimension, wherever it uses dropout.

Dropout draws numbers for the whole batch, and a rank, or a micro-batch, uses the rows of its clips
(`randomness.DropoutGenerator`). That is correct if the rows of the dropout's input are the clips in order, with the
same number of rows each. A transformer that puts tokens first, `(T, B, C)`, would get different numbers for different
numbers of ranks, or a shape mismatch in the last batch of an epoch.

So two clips are sent through the network, and the second one is all NaN. Everything computed from it is also NaN. If a
network raises an error for NaN, such as one that decomposes matrices, the check is skipped.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from essp_common.errors import ConfigError
from essp_engine.learning.models import Classifier
from essp_engine.learning.randomness import SeededDropout

_log = logging.getLogger(__name__)


def require_clips_first(model: Classifier, side: int) -> None:
    """Raises `ConfigError` if a dropout of the network does not have clips in the first dimension. `side`: of its
    pictures."""
    mixed: dict[str, tuple[int, ...]] = {}

    def look(path: str, x: Tensor) -> None:
        if not _apart(x):
            mixed.setdefault(path, tuple(x.shape))

    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs, path=path: look(path, inputs[0]))
        for path, layer in model.named_modules()
        if isinstance(layer, SeededDropout) and layer.p > 0
    ]
    modes = {layer: layer.training for layer in model.modules()}
    try:
        _send_two_clips(model.eval(), side)
    except Exception as error:  # noqa: BLE001  of another package; training repeats errors that are not of NaN
        _log.warning("whether the network has clips first where it drops something is not known: %s", error)
    finally:
        for hook in hooks:
            hook.remove()
        for layer, mode in modes.items():
            layer.training = mode
    for path, shape in mixed.items():
        raise ConfigError(
            f"{path} of the network drops from a tensor of {shape} for two clips, which does not have the clips first, "
            "so ranks and micro-batches cannot share its random numbers; give it the clips first (batch_first=True), "
            "or train on one rank without micro_batch",
            code="unsupported",
        )


def _send_two_clips(model: Classifier, side: int) -> None:
    clips = torch.zeros(2, model.clip_frames or 1, side, side, model.channels, device=model.device)
    clips[1] = torch.nan
    with torch.no_grad():
        model(clips)


def _apart(x: Tensor) -> bool:
    """Whether only the first half of the rows belongs to the first clip."""
    if x.ndim == 0 or len(x) % 2:
        return False
    first, second = x.reshape(len(x), -1).isnan().any(dim=1).chunk(2)
    return not first.any() and bool(second.any())
