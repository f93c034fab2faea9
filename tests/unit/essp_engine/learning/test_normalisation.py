"""Normalisations take any batch, on one rank or several, or are refused by name."""

from __future__ import annotations

import pytest
import torch

from essp_common.errors import ConfigError
from essp_engine.learning.normalisation import batch_norms, take_any_batch
from tests.unit.essp_engine.learning.described_models import own

pytestmark = pytest.mark.slow


def test_normalisation_of_clips_takes_a_single_value_as_in_evaluation() -> None:
    layer = torch.nn.Sequential(torch.nn.BatchNorm3d(3))
    take_any_batch(layer, OneRank())
    x = torch.randn(1, 3, 1, 1, 1, generator=torch.Generator().manual_seed(1))
    assert torch.equal(layer.train()(x), layer.eval()(x))
    assert list(layer.state_dict()) == list(torch.nn.Sequential(torch.nn.BatchNorm3d(3)).state_dict())


class Activated(torch.nn.BatchNorm2d):
    """A layer that does more than to normalise, as timm's `BatchNormAct2d`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu()


def test_a_normalisation_with_a_forward_of_its_own_computes_what_it_did() -> None:
    layer = torch.nn.Sequential(Activated(3))
    x = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    expected = layer(x)
    take_any_batch(layer, OneRank())
    assert torch.equal(layer(x), expected)
    assert [*batch_norms(layer)] == ["0"], "who freezes the statistics of all normalisations finds it"


def test_a_normalisation_that_ranks_would_compute_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"0\.1 of the network is a Activated with its own forward"):
        take_any_batch(torch.nn.Sequential(torch.nn.Sequential(torch.nn.ReLU(), Activated(3))), TwoRanks())


def test_instances_whose_statistics_each_rank_would_follow_alone_are_refused() -> None:
    """A rank without a clip would have NaN there."""
    layer = torch.nn.Sequential(torch.nn.InstanceNorm2d(3, track_running_stats=True))
    take_any_batch(layer, OneRank())
    take_any_batch(torch.nn.Sequential(torch.nn.InstanceNorm2d(3)), TwoRanks())
    with pytest.raises(ConfigError, match="0 of the network is a InstanceNorm2d with running statistics"):
        take_any_batch(layer, TwoRanks())


@pytest.mark.parametrize("kind", [torch.nn.BatchNorm2d, Activated])
def test_a_normalisation_that_always_takes_the_batch_is_refused(
    monkeypatch: pytest.MonkeyPatch, kind: type[torch.nn.BatchNorm2d]
) -> None:
    """A clip would score by those beside it, and a single one would end the process."""
    own(monkeypatch, kind(8))
    with pytest.raises(ConfigError, match=r"layer is a .* without running statistics, .* use nn.GroupNorm"):
        own(monkeypatch, kind(8, track_running_stats=False))


class OneRank:
    rank, world_size = 0, 1

    def sum(self, tensor: torch.Tensor) -> None:
        """Nothing to add."""


class TwoRanks(OneRank):
    world_size = 2
