"""Describes the values of a feature: how they are normalised, and how mirroring changes them.

Features arrive as `(T, H, W, C)`. The T frames are scored one by one, and the scores are averaged (the segment
consensus of Wang et al., "Temporal Segment Networks", ECCV 2016). C is the number of input channels of the network: 3
for rgb, 2 L for L stacked flow fields.
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
    """True: colours. False: signed values, quantised as in `essp_common.features.quantization`."""
    mirrored_channels: slice | None = None
    """Channels whose sign changes when the picture is mirrored: horizontal motion."""


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
"""The normalisation of torchvision's weights, in units of uint8."""
SIGNED = Scale((128.0,), (57.63,))
"""The counterpart of IMAGENET for signed values: the same spread (0.226 of the range) around zero."""
CENTRED = Scale((127.0,), (128.0,))
"""The normalisation of EfficientNet-Lite's weights."""
CENTRED_SIGNED = Scale((128.0,), (128.0,))
"""The counterpart of CENTRED for signed values."""


def layout_of(feature: str) -> FeatureLayout:
    """The layout of a feature. An unknown feature counts as signed around 128."""
    return _LAYOUTS.get(feature, _SIGNED)
