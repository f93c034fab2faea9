"""RandAugment: some operations of a list, drawn again for each clip, all with the same strength.

Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space", NeurIPS 2020; the ranges
of the strengths follow the authors' table, as in torchvision. All frames of a clip are treated alike. The operations
are torchvision's; only the draws are made here, because torchvision draws from torch's global generator. Shears keep
the centre of a picture fixed; the authors' keep its corner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from essp_common.job.trainer_spec import RandAugmentSpec
from essp_engine.learning.torchvision_compat import torchvision

functional = torchvision.transforms.functional

_STRONGEST = 30
"""The magnitude at which the ranges end."""
_COLOURS = 3
_GREY = 128.0
"""The fill value of pixels that a movement has left empty, as in the paper."""
_TRANSLATED, _TURNED, _SHEARED, _ENHANCED = 150 / 331, 30.0, 0.3, 0.9
"""Strongest values: a fraction of the side, degrees, the tangent of an angle, a change of a factor."""
_BITS, _LOST_BITS, _WHITE = 8, 4, 255


def rand_augmented(frames: NDArray[Any], spec: RandAugmentSpec, random: np.random.Generator) -> NDArray[Any]:
    """`(T, H, W, 3 n)` uint8, n photographs side by side along the channels, in the same shape."""
    count, height, width, channels = frames.shape
    pictures = torch.from_numpy(np.ascontiguousarray(frames)).reshape(count, height, width, -1, _COLOURS)
    pictures = pictures.permute(0, 3, 4, 1, 2).flatten(0, 1)
    for _ in range(spec.operations):
        operation = _OPERATIONS[_NAMES[random.integers(len(_NAMES))]]
        pictures = operation(pictures, spec.magnitude / _STRONGEST, 1.0 if random.random() < 0.5 else -1.0)
    pictures = pictures.reshape(count, channels // _COLOURS, _COLOURS, height, width).permute(0, 3, 4, 1, 2)
    return np.ascontiguousarray(pictures.reshape(count, height, width, channels).numpy())


def _affine(pictures: Tensor, degrees: float = 0.0, across: float = 0.0, down: float = 0.0, shear: Any = 0.0) -> Tensor:
    translate = [round(across * pictures.shape[-1]), round(down * pictures.shape[-2])]
    moved: Tensor = functional.affine(pictures, degrees, translate, 1.0, shear, fill=[_GREY])
    return moved


def _sheared(strength: float) -> float:
    return float(np.degrees(np.arctan(_SHEARED * strength)))


_OPERATIONS: Mapping[str, Callable[[Tensor, float, float], Tensor]] = {
    "identity": lambda pictures, strength, sign: pictures,
    "shear_x": lambda pictures, strength, sign: _affine(pictures, shear=[sign * _sheared(strength), 0.0]),
    "shear_y": lambda pictures, strength, sign: _affine(pictures, shear=[0.0, sign * _sheared(strength)]),
    "translate_x": lambda pictures, strength, sign: _affine(pictures, across=sign * _TRANSLATED * strength),
    "translate_y": lambda pictures, strength, sign: _affine(pictures, down=sign * _TRANSLATED * strength),
    "rotate": lambda pictures, strength, sign: _affine(pictures, degrees=sign * _TURNED * strength),
    "brightness": lambda p, strength, sign: functional.adjust_brightness(p, 1 + sign * _ENHANCED * strength),
    "colour": lambda p, strength, sign: functional.adjust_saturation(p, 1 + sign * _ENHANCED * strength),
    "contrast": lambda p, strength, sign: functional.adjust_contrast(p, 1 + sign * _ENHANCED * strength),
    "sharpness": lambda p, strength, sign: functional.adjust_sharpness(p, 1 + sign * _ENHANCED * strength),
    "posterize": lambda p, strength, sign: functional.posterize(p, _BITS - round(_LOST_BITS * strength)),
    "solarize": lambda p, strength, sign: functional.solarize(p, _WHITE * (1 - strength)),
    "autocontrast": lambda pictures, strength, sign: functional.autocontrast(pictures),
    "equalize": lambda pictures, strength, sign: functional.equalize(pictures),
}
"""Pictures `(N, 3, H, W)` uint8, a strength from 0 to 1, and a direction."""
_NAMES = tuple(_OPERATIONS)
