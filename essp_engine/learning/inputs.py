"""The normalisations of the input that the weights of each family of networks expect.

Features arrive as `(T, H, W, C)`. Networks of single frames score the T frames one by one, and the scores are averaged
(the segment consensus of Wang et al., "Temporal Segment Networks", ECCV 2016). Networks of clips see them at once. C is
the number of input channels of the network: 3 for rgb, 2 L for L stacked flow fields.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Normalisation of uint8 values: `(x - mean) / std`, repeated over the channels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


IMAGENET = Scale((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
"""The normalisation of torchvision's weights, in units of uint8: `transforms()` of its `*_Weights`
(torchvision/transforms/_presets.py)."""
SIGNED = Scale((128.0,), (57.63,))
"""The counterpart of IMAGENET for signed values: the same spread (0.226 of the range) around zero."""
CENTRED = Scale((127.0,), (128.0,))
"""The normalisation of EfficientNet-Lite's weights: `MEAN_RGB`, `STDDEV_RGB` of the authors' program
(tensorflow/tpu, models/official/efficientnet/lite/efficientnet_lite_builder.py)."""
CENTRED_SIGNED = Scale((128.0,), (128.0,))
"""The counterpart of CENTRED for signed values."""
UNIT = Scale((127.5,), (127.5,))
"""-1 to 1, as Inception v3 was trained. torchvision's weights are derived from those: its `transform_input` converts
pictures normalised by IMAGENET back to this range (torchvision/models/inception.py)."""
KINETICS = Scale((110.2008, 100.63983, 95.99475), (58.14765, 56.46975, 55.332195))
"""The normalisation of torchvision's r3d_18, mc3_18, r2plus1d_18 and s3d, trained on Kinetics-400."""
EVEN = Scale((114.75, 114.75, 114.75), (57.375, 57.375, 57.375))
"""The normalisation of torchvision's mvit_v2_s: the same for all colours."""
UNIT_SIGNED = Scale((128.0,), (127.5,))
"""The counterpart of UNIT for signed values."""
