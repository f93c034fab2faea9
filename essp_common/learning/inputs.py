"""What the values of a feature mean: how they are normalised, and what a mirror does to them.

Features arrive as `(T, H, W, C)`. T frames are scored one by one and averaged (the segment consensus of Wang et
al., "Temporal Segment Networks", ECCV 2016); C is what the first layer sees, 3 for rgb, 2 L for L stacked flow fields.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Normalisation of uint8 values: `(x - mean) / std`, repeated over the channels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FeatureLayout:
    """How to read a feature's values."""

    photograph: bool
    """Colours; otherwise signed quantities coded as in `essp_common.features.quantization`."""
    mirrored_channels: slice | None = None
    """Channels that change sign when the picture is mirrored: horizontal motion."""


_SIGNED = FeatureLayout(photograph=False)
_FLOW = FeatureLayout(photograph=False, mirrored_channels=slice(0, None, 2))  # dx, dy, dx, dy, ...
_LAYOUTS = {
    "rgb": FeatureLayout(photograph=True),
    "frame_stack": FeatureLayout(photograph=True),
    "frame_diff": _SIGNED,
    "flow": _FLOW,
    "flow_bidirectional": _FLOW,
    "flow_warped": _FLOW,
}

IMAGENET = Scale((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
"""What torchvision's weights were trained with, in units of uint8."""
SIGNED = Scale((128.0,), (57.63,))
"""Flow beside IMAGENET: the same spread (0.226 of the range) around zero."""
CENTRED = Scale((127.0,), (128.0,))
"""EfficientNet-Lite's."""
CENTRED_SIGNED = Scale((128.0,), (128.0,))
"""Flow beside CENTRED."""


def layout_of(feature: str) -> FeatureLayout:
    """The layout of a feature; one that is not known here counts as signed around 128."""
    return _LAYOUTS.get(feature, _SIGNED)
