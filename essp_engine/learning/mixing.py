"""Mixup and CutMix: a network learns from blends of two clips, and what each of them is worth.

    mixup     share * clip + (1 - share) * partner                           Zhang et al., "mixup", ICLR 2018
    CutMix    the clip, but for a rectangle that is the partner's            Yun et al., "CutMix", ICCV 2019

As in timm, which is where the recipes come from: all clips of a batch are blended alike; the partner of a clip is the
one as far from the end of the batch as the clip is from its beginning, of the clips that are there; the share is drawn
from a Beta distribution; where a job asks for both, each batch gets one of them, as often the one as the other; and the
share of CutMix is what is left of a picture once the rectangle was cut at its edges. The rectangle is the same in all
frames.

The blend of a batch depends on (seed of the training, epoch, first index of the batch) alone: neither the order of
arrival, nor the number of ranks, nor a resumption changes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from essp_common.job.trainer_spec import AugmentSpec
from essp_engine.learning.randomness import counter_generator


class Rectangle(NamedTuple):
    """A part of a picture, in pixels."""

    top: int
    bottom: int
    left: int
    right: int


class Blend(NamedTuple):
    """How the clips of a batch are blended with their partners."""

    share: float
    """What the clip itself is worth, 0 to 1."""
    rectangle: Rectangle | None
    """What is the partner's; None: mixup."""

    def blended(self, clips: Tensor, partners: Tensor) -> Tensor:
        """`(B, T, H, W, C)` floats, each."""
        if self.rectangle is None:
            return torch.lerp(partners, clips, self.share)
        top, bottom, left, right = self.rectangle
        mixed = clips.clone()
        mixed[:, :, top:bottom, left:right] = partners[:, :, top:bottom, left:right]
        return mixed

    def loss(self, loss_of: Callable[[Tensor], Tensor], targets: Tensor, partners: Tensor) -> Tensor:
        """What a loss of one class a clip makes of both classes, `(B,)` each. It is that of the soft targets, since
        cross entropy, with smoothing and weights of classes too, is linear in them."""
        return self.share * loss_of(targets) + (1 - self.share) * loss_of(partners)

    def dominant(self, targets: Tensor, partners: Tensor) -> Tensor:
        """Of both classes of each clip the one that is worth more."""
        return targets if self.share >= 0.5 else partners


def blend_of(augment: AugmentSpec, *identity: object) -> Blend | None:
    """The blend of a batch; None: the job asks for none. `identity`: seed of the training, epoch, first index."""
    if not augment.mixup and not augment.cutmix:
        return None
    random = counter_generator("mix", *identity)
    both = augment.mixup and augment.cutmix
    if augment.cutmix and (not both or random.random() < 0.5):
        rectangle = _rectangle(augment.crop, float(random.beta(augment.cutmix, augment.cutmix)), random)
        area = (rectangle.bottom - rectangle.top) * (rectangle.right - rectangle.left)
        return Blend(1 - area / augment.crop**2, rectangle)
    return Blend(float(random.beta(augment.mixup, augment.mixup)), None)


def _rectangle(side: int, share: float, random: np.random.Generator) -> Rectangle:
    """A rectangle with the middle anywhere, which would leave this share of a picture if all of it lay within."""
    half = int(side * np.sqrt(1 - share)) // 2
    down, right = (int(random.integers(side)) for _ in range(2))
    top, left = max(down - half, 0), max(right - half, 0)
    return Rectangle(top, min(down + half, side), left, min(right + half, side))
