"""Mixup and CutMix: a network learns from blends of two clips, each with its share of the loss.

    mixup     share * clip + (1 - share) * partner                           Zhang et al., "mixup", ICLR 2018
    CutMix    the clip, except for a rectangle of the partner                Yun et al., "CutMix", ICCV 2019

The details follow timm, where the recipes come from. All clips of a batch are blended alike. The partner of a clip is
its mirror position in the batch, among the clips that are present. The share is drawn from a Beta distribution. If a
job asks for both methods, each batch gets one of them with equal probability. The share of CutMix is the remaining area
after the rectangle was clipped at the picture's edges. The rectangle is the same in all frames.

The blend of a batch depends only on (seed of the training, epoch, first index of the batch), not on the order of
arrival, the number of ranks, or a resumption.
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
    """The weight of the clip itself, 0 to 1."""
    rectangle: Rectangle | None
    """The rectangle taken from the partner; None: mixup."""

    def blended(self, clips: Tensor, partners: Tensor) -> Tensor:
        """Blend `(B, T, H, W, C)` floats with their partners."""
        if self.rectangle is None:
            return torch.lerp(partners, clips, self.share)
        top, bottom, left, right = self.rectangle
        mixed = clips.clone()
        mixed[:, :, top:bottom, left:right] = partners[:, :, top:bottom, left:right]
        return mixed

    def loss(self, loss_of: Callable[[Tensor], Tensor], targets: Tensor, partners: Tensor) -> Tensor:
        """The loss of the blend, from a loss with one class per clip and both classes, `(B,)` each. It equals the loss
        for soft targets, because cross entropy is linear in them, even with smoothing and class weights."""
        return self.share * loss_of(targets) + (1 - self.share) * loss_of(partners)

    def dominant(self, targets: Tensor, partners: Tensor) -> Tensor:
        """The class with the larger weight, for each clip."""
        return targets if self.share >= 0.5 else partners


def blend_of(augment: AugmentSpec, *identity: object) -> Blend | None:
    """The blend of a batch; None if the job does not ask for one. `identity`: seed of the training, epoch, first
    index."""
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
    """A rectangle centred anywhere, which would leave this fraction of the picture if it were completely inside."""
    half = int(side * np.sqrt(1 - share)) // 2
    down, right = (int(random.integers(side)) for _ in range(2))
    top, left = max(down - half, 0), max(right - half, 0)
    return Rectangle(top, min(down + half, side), left, min(right + half, side))
