"""Whether a network keeps the clips of a batch apart, and first, wherever it drops something.

Dropout draws numbers for the whole batch, and a rank, or a micro-batch, takes the rows of its clips
(`randomness.DropoutGenerator`). That is right if the rows of what is dropped from are the clips in their order, each
with as many rows as another. A transformer that has its tokens first, `(T, B, C)`, would get other numbers on each
number of ranks, or none of its shape in the last batch of an epoch.

So two clips are sent through the network, of which the second is not a number (NaN). Whatever is computed from it is
not one either. A network that raises an error at that, such as one that decomposes matrices, is taken at its word.
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
    """Raises `ConfigError` if a dropout of the network has something else than clips first. `side`: of its pictures."""
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
    except Exception as error:  # noqa: BLE001  of another package; if it is none of NaN, training raises it again
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
    """Whether the first half of the rows, and no other, are of the first clip."""
    if x.ndim == 0 or len(x) % 2:
        return False
    first, second = x.reshape(len(x), -1).isnan().any(dim=1).chunk(2)
    return not first.any() and bool(second.any())
