"""The table of networks against the networks themselves: what their public weights expect, and what they cannot do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn

from essp_common.job.network_limits import NETWORK_LIMITS
from essp_common.job.registered import MODELS
from essp_engine.learning.networks import NETWORKS, network
from essp_engine.learning.torchvision_compat import torchvision
from tests.lanes import often

pytestmark = pytest.mark.slow

_TRANSFORMED = {"inception_v3": True}
"""torchvision's networks that transform their input themselves when they are made with weights."""


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"small", "efficientnet_lite0"}))
def test_pictures_are_normalised_as_each_of_torchvisions_weights_expects(name: str) -> None:
    """What reaches the first layer: by torchvision's own preset and network, and by the table."""
    picture = torch.randint(0, 256, (1, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))
    mean, std = (
        torch.tensor(values).view(-1, 1, 1) for values in (network(name).photograph.mean, network(name).photograph.std)
    )
    ours = (picture - mean) / std
    for weights in torchvision.models.get_model_weights(name):
        preset = weights.transforms()
        theirs = (picture / 255 - torch.tensor(preset.mean).view(-1, 1, 1)) / torch.tensor(preset.std).view(-1, 1, 1)
        if _TRANSFORMED.get(name):
            made = torchvision.models.inception_v3(weights=None, init_weights=False, transform_input=True)
            theirs = made._transform_input(theirs)
        # Two ways to the same numbers of at most 3, each of a few operations in single precision.
        assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_signed_values_have_the_spread_of_pictures_around_zero(name: str) -> None:
    entry = network(name)
    if entry.signed is None:
        assert entry.clips
        return
    assert entry.signed.mean == (128.0,)
    assert_allclose(entry.signed.std, np.mean(entry.photograph.std), rtol=1e-3)


def test_the_limits_are_those_of_all_networks() -> None:
    assert set(NETWORK_LIMITS) == set(MODELS) == set(NETWORKS)
    for name, limits in NETWORK_LIMITS.items():
        assert limits.auxiliary_loss == (network(name).auxiliary_head is not None)
        assert (limits.clip_frames is not None) == network(name).clips


@pytest.mark.parametrize("name", often(["small", "alexnet", "resnet18", "mobilenet_v3_small", "densenet121"], 4))
def test_the_limits_are_where_the_networks_fail(name: str) -> None:
    limits, made = NETWORK_LIMITS[name], network(name).make().train()
    fewest = _fewest_values(made, limits.least_side)
    assert fewest >= 1
    if limits.least_side > 8:
        with pytest.raises(RuntimeError):
            _fewest_values(made, limits.least_side - 1)
    if limits.single_value_side:
        assert _fewest_values(made, limits.single_value_side) == 1
        assert _fewest_values(made, limits.single_value_side + 1) > 1
    else:
        assert not [layer for layer in made.modules() if isinstance(layer, nn.BatchNorm2d)]


def test_s3d_fails_below_its_limits() -> None:
    limits, made = NETWORK_LIMITS["s3d"], network("s3d").make().eval()
    assert limits.clip_frames is not None
    side, frames = limits.least_side, limits.clip_frames[0]
    on_meta = made.to("meta")
    assert on_meta(torch.zeros(1, 3, frames, side, side, device="meta")).shape == (1, 400)
    for too_small in ((frames - 1, side, side), (frames, side - 1, side - 1)):
        with pytest.raises(RuntimeError):
            on_meta(torch.zeros(1, 3, *too_small, device="meta"))


def test_inception_normalises_one_value_whatever_the_crop() -> None:
    assert _fewest_values(network("inception_v3").make().train(), 299) == 1


def _fewest_values(made: nn.Module, side: int) -> int:
    """The fewest values of a channel of one frame that a normalisation gets."""
    found = [side * side]

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(inputs[0].shape[2] * inputs[0].shape[3])

    hooks = [m.register_forward_pre_hook(note) for m in made.modules() if isinstance(m, nn.BatchNorm2d)]
    try:
        with torch.no_grad():
            made(torch.zeros(2, 3, side, side))
    finally:
        for hook in hooks:
            hook.remove()
    return min(found)
