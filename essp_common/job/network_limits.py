"""The limits of the networks, so that a job can be checked without torch.

`tests/unit/essp_engine/learning/test_networks.py` compares this table with the networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from essp_common.job.registered import HUGGING_FACE


@dataclass(frozen=True, slots=True)
class NetworkLimits:
    """The inputs that a network cannot process."""

    least_side: int = 8
    """The smallest input side; with a smaller one, its pooling leaves nothing."""
    single_value_side: int = 0
    """Up to this input side, a normalisation sees one value per channel and frame, so a batch needs at least two frames
    for a variance. 0: the network has no such normalisation."""
    auxiliary_loss: bool = False
    """Whether training adds the loss of a second classifier."""
    clip_frames: tuple[int, int] | None = None
    """The fewest and the most frames that it sees at once. None: it sees each frame alone."""


_ANY = 2**31


NETWORK_LIMITS: Mapping[str, NetworkLimits] = {
    "small": NetworkLimits(single_value_side=16),
    "vgg19": NetworkLimits(least_side=32),
    "alexnet": NetworkLimits(least_side=63),
    "densenet121": NetworkLimits(least_side=29, single_value_side=60),
    "inception_v3": NetworkLimits(single_value_side=2**31, auxiliary_loss=True),  # in its auxiliary classifier
    **dict.fromkeys(
        (
            *("efficientnet_lite0", "mobilenet_v3_small"),
            *("resnet18", "resnet50", "resnet101", "resnet152", "resnext50_32x4d"),
        ),
        NetworkLimits(single_value_side=32),
    ),
    # One pixel more than the side at which a normalisation sees a single value.
    **dict.fromkeys(("r3d_18", "mc3_18", "r2plus1d_18"), NetworkLimits(least_side=17, clip_frames=(2, _ANY))),
    "s3d": NetworkLimits(least_side=209, clip_frames=(13, _ANY)),
    "mvit_v2_s": NetworkLimits(clip_frames=(16, 16)),
    "swin3d_t": NetworkLimits(least_side=32, clip_frames=(2, _ANY)),
}
"""By the names in `essp_common.job.registered.MODELS`."""
_FAMILIES: Mapping[str, NetworkLimits] = {
    "hf:timesformer": NetworkLimits(clip_frames=(1, _ANY)),
    "hf:videomae": NetworkLimits(clip_frames=(16, 16)),
    "hf:videoprism_vision_model": NetworkLimits(clip_frames=(16, 16)),
    "hf:vivit": NetworkLimits(clip_frames=(32, 32)),
    "hf:vjepa2": NetworkLimits(clip_frames=(2, _ANY)),
}
"""Families of video classifiers with the configuration that transformers gives them."""


def limits_of(model: str) -> NetworkLimits:
    """The limits of a network. A network registered by another package, or of timm, has no known limits; one of Hugging
    Face sees all frames of a clip, and how many is known when it is made."""
    if model.startswith(HUGGING_FACE):
        return _FAMILIES.get(model, NetworkLimits(clip_frames=(1, _ANY)))
    return NETWORK_LIMITS.get(model, NetworkLimits(least_side=1))
