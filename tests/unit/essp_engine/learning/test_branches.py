"""Networks that choose by what they see, on several ranks: all ranks exchange the same numbers in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from essp_common.errors import ConfigError
from essp_engine.learning.branches import gradients_that_wait
from essp_engine.learning.models import Classifier, build
from essp_engine.learning.network import Network
from essp_engine.learning.networks import NETWORKS
from essp_engine.learning.normalisation import take_any_batch
from essp_trainer.distributed.gradients import Exchange, GradientSum
from tests.lanes import often
from tests.unit.essp_engine.learning.described_models import description

WIDTH = 8
MakeExpert = Callable[[], nn.Module]


class Mixture(nn.Module):
    """Two experts, of which each clip chooses one by its brightness."""

    def __init__(self, expert: MakeExpert, skips: bool, residual: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.trunk = nn.Sequential(nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True), nn.Conv2d(WIDTH, WIDTH, 3, stride=4))
        self.last = nn.Sequential(nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.experts = nn.ModuleList([expert(), expert()])
        self.head = nn.Linear(WIDTH, 2)
        self._skips, self._residual = skips, residual

    def forward(self, x: Tensor) -> Tensor:
        seen = self.last(self.trunk(self.stem(x)))
        chosen = (x.mean(dim=(1, 2, 3)) > 0).long()
        found = seen if self._residual else torch.zeros_like(seen)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().flatten()
            if len(rows) or not self._skips:
                found = found.index_add(0, rows, expert(seen[rows]))
        scores: Tensor = self.head(found)
        return scores


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def normalising() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))


def mixture(
    monkeypatch: pytest.MonkeyPatch, expert: MakeExpert, skips: bool = True, residual: bool = True
) -> Classifier:
    entry = Network(lambda: Mixture(expert, skips, residual), "stem", "head")
    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", entry)
    return build(description("small", dropout=0.0), seed=0).train()


class Recording:
    """A rank of two that writes down what it exchanges, and gets it back as it is."""

    rank, world_size = 0, 2

    def __init__(self) -> None:
        self.exchanged: list[tuple[int, ...]] = []

    def sum(self, tensor: Tensor) -> None:
        self.exchanged.append(tuple(tensor.shape))

    def begin_sum(self, tensor: Tensor) -> Exchange:
        self.sum(tensor)
        return self

    def wait(self) -> None:
        """Nothing to wait for."""


def exchanged(model: Classifier, brightness: float) -> list[tuple[int, ...]]:
    rank = Recording()
    take_any_batch(model, rank)
    waiting = gradients_that_wait(model, 64, ())
    summed = GradientSum(model.parameters(), rank, bucket_bytes=WIDTH * WIDTH * 4, waiting=waiting)
    summed.begin()
    model(torch.full((2, 1, 64, 64, 3), brightness)).logits.sum().backward()
    summed.finish()
    return rank.exchanged


def test_ranks_whose_clips_choose_different_experts_exchange_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buckets of an expert are full on one rank before the normalisation of the trunk goes backwards, on another
    never."""
    dark, bright = (exchanged(mixture(monkeypatch, linear), brightness) for brightness in (-1.0, 1.0))
    assert dark == bright


def test_only_the_gradients_of_experts_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mixture(monkeypatch, linear)
    waiting = gradients_that_wait(model, 64, ())
    assert waiting == set(cast("Mixture", model.backbone).experts.parameters())


@pytest.mark.parametrize("name", often(["resnet18", "inception_v3", "small", "densenet121"], 2))
def test_no_gradient_of_a_network_without_branches_waits(name: str) -> None:
    assert gradients_that_wait(build(description(name), seed=0), 64, ()) == set()


def test_a_network_without_batch_normalisation_has_nothing_to_wait_for() -> None:
    assert gradients_that_wait(build(description("alexnet"), seed=0), 64, ()) == set()


def test_a_batch_normalisation_that_is_left_out_without_a_clip_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"backbone\.experts\.\d\.1 of the network .* that is left out by a rank"):
        gradients_that_wait(mixture(monkeypatch, normalising), 64, ())


def test_a_batch_normalisation_that_leads_to_experts_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a clip no expert is called, and nothing that is scored comes from the trunk."""
    with pytest.raises(ConfigError, match=r"backbone\.last\.0 of the network .* that gets no gradient on a rank"):
        gradients_that_wait(mixture(monkeypatch, linear, residual=False), 64, ())
    assert gradients_that_wait(mixture(monkeypatch, linear, skips=False, residual=False), 64, ()) == set()


def test_it_is_taken_where_it_is_called_without_a_clip_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gradients_that_wait(mixture(monkeypatch, normalising, skips=False), 64, ()) == set()


def test_one_whose_statistics_stand_exchanges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mixture(monkeypatch, normalising)
    experts = cast("Mixture", model.backbone).experts
    still = [layer for layer in experts.modules() if isinstance(layer, nn.BatchNorm1d)]
    assert gradients_that_wait(model, 64, still) == set(experts.parameters())


def test_the_network_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mixture(monkeypatch, linear)
    cast("Mixture", model.backbone).last.eval()
    modes = {layer: layer.training for layer in model.modules()}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients_that_wait(model, 64, ())
    assert {layer: layer.training for layer in model.modules()} == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_where_no_clip_cannot_be_sent_all_gradients_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            if not len(input):
                raise RuntimeError("an empty batch")
            return super().forward(input)

    model = mixture(monkeypatch, lambda: Refusing(WIDTH, WIDTH), skips=False)
    assert gradients_that_wait(model, 64, ()) == set(model.parameters())
    assert "is not known: an empty batch" in caplog.text
