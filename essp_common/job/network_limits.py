"""What the networks cannot do, so that a job can be checked without torch.

`tests/unit/essp_common/learning/test_networks.py` compares this table with the networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NetworkLimits:
    """Which inputs a network cannot work with."""

    least_side: int = 8
    """The smallest input side: with a smaller one, nothing is left after its pooling."""
    single_value_side: int = 0
    """Up to this input side, a normalisation sees one value of each channel of a frame, so it needs two frames or more
    in a batch to have a variance. 0: the network has no such normalisation."""
    auxiliary_loss: bool = False
    """Whether training adds the loss of a second classifier."""


NETWORK_LIMITS: Mapping[str, NetworkLimits] = {
    "small": NetworkLimits(single_value_side=16),
    "vgg19": NetworkLimits(least_side=32),
    "alexnet": NetworkLimits(least_side=63),
    "densenet121": NetworkLimits(least_side=29, single_value_side=60),
    "inception_v3": NetworkLimits(single_value_side=2**31, auxiliary_loss=True),  # the one value is in that classifier
    **dict.fromkeys(
        (
            *("efficientnet_lite0", "mobilenet_v3_small"),
            *("resnet18", "resnet50", "resnet101", "resnet152", "resnext50_32x4d"),
        ),
        NetworkLimits(single_value_side=32),
    ),
}
"""By the names of `essp_common.job.spec.MODELS`."""
