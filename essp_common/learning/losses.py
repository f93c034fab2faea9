"""The losses that jobs may name, beside the entry points `essp.losses`.

Another package adds one with one line of its `pyproject.toml`,

    [project.entry-points."essp.losses"]
    focal = "our_package.losses:focal"

It has to be installed where master and trainers run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn import functional

from essp_common.errors import ConfigError
from essp_common.job.registered import LOSSES_OF_PACKAGES, known_loss

Loss = Callable[[Tensor, Tensor], Tensor]
"""`(B, K)` logits and `(B,)` classes -> the sum of the losses of the clips; B may be 0. Of the sums of all ranks the
mean over the batch is made."""


def loss(name: str, smoothing: float = 0.0, weights: Tensor | None = None) -> Loss:
    """The loss called `name`. That of a package gives `(B,)`, one number a clip.

    Raises `ConfigError` if there is none, if it does not load, and, when it is called, if it gives anything else.

    `smoothing`: share of each label's weight that cross entropy spreads over all classes. `weights`: `(K,)`, what a
    clip of each class counts in it; the sum is not divided by them.
    """
    if known_loss(name) == "cross_entropy":
        return partial(functional.cross_entropy, weight=weights, reduction="sum", label_smoothing=smoothing)
    of_package: Loss = LOSSES_OF_PACKAGES.load(name)

    def total(logits: Tensor, target: Tensor) -> Tensor:
        of_clips = of_package(logits, target)
        if of_clips.shape != target.shape:
            raise ConfigError(
                f"loss {name!r}: gave {tuple(of_clips.shape)} for {len(target)} clips, where ({len(target)},) is due, "
                "one number a clip; leave out its mean (reduction='none')"
            )
        return of_clips.sum()

    return total
