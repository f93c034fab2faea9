"""The losses that jobs may name: ESSP's own and the entry points `essp.losses`.

If a job learns labels independently (`data.targets: labels`), cross entropy is computed for each label, present or
absent, and the loss of a clip is the mean over the labels.

Another package adds a loss with one line of its `pyproject.toml`,

    [project.entry-points."essp.losses"]
    focal = "our_package.losses:focal"

It must be installed where master and trainers run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor
from torch.nn import functional

from essp_common.errors import ConfigError
from essp_common.job.registered import LOSSES_OF_PACKAGES, known_loss

Loss = Callable[[Tensor, Tensor], Tensor]
"""`(B, K)` logits and `(B,)` classes, or `(B, K)` floats that are 1 for each label, -> the sum of the losses of the
clips; B may be 0. The sums of all ranks are combined into the mean over the batch."""


def loss(
    name: str,
    smoothing: float = 0.0,
    weights: Tensor | None = None,
    *,
    independent: bool = False,
    code: Sequence[str] = (),
) -> Loss:
    """The loss called `name`. A package's loss must return `(B,)`, one number per clip.

    Raises `ConfigError` if it does not exist or fails to load, and, when called, if it returns anything else.

    `smoothing`: share of each label's weight that cross entropy spreads over all classes, or over both answers to each
    label. `weights`: `(K,)`, the weight of clips of each class, or with each label; the sum is not divided by the
    weights. `independent`: labels are learned independently. `code`: packages in which `name` may be a path
    (`ESSP_CODE`).
    """
    if known_loss(name, code) == "cross_entropy" and independent:

        def binary(logits: Tensor, target: Tensor) -> Tensor:
            smooth = target * (1 - smoothing) + smoothing / 2
            each = functional.binary_cross_entropy_with_logits(logits, smooth, pos_weight=weights, reduction="none")
            return each.mean(dim=1).sum()

        return binary
    if name == "cross_entropy":
        return partial(functional.cross_entropy, weight=weights, reduction="sum", label_smoothing=smoothing)
    of_package: Loss = LOSSES_OF_PACKAGES.load(name, code)

    def total(logits: Tensor, target: Tensor) -> Tensor:
        of_clips = of_package(logits, target)
        if of_clips.shape != target.shape[:1]:
            raise ConfigError(
                f"loss {name!r}: gave {tuple(of_clips.shape)} for {len(target)} clips, where ({len(target)},) is due, "
                "one number a clip; leave out its mean (reduction='none')"
            )
        return of_clips.sum()

    return total
