"""Gradients of all ranks, added up in buckets while the backward pass goes on. Here ranks are threads over gloo."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from essp_trainer.distributed.gradients import Exchange, GradientSum
from essp_trainer.distributed.ranks import Ranks
from tests.harness.training_jobs import ranks_in_process

SIZES = (5, 300, 7, 40, 40, 1)


class Branches(nn.Module):
    """Parameters of which one has no part in a step, one is frozen, and one is used twice."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.parts = nn.ParameterList([nn.Parameter(torch.randn(size, generator=generator)) for size in SIZES])
        self.parts[2].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        sums = [part.sum() for number, part in enumerate(self.parts) if number != 3]
        total: Tensor = (torch.stack(sums) * x).prod() + (self.parts[4] ** 2).sum() * x
        return total


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("bucket_bytes", [1, 200, 2**20])
def test_the_sums_are_those_of_the_gradients_of_the_ranks(bucket_bytes: int) -> None:
    alone = []
    for rank in range(3):
        model = Branches()
        model(torch.tensor(float(rank))).backward()  # rank 0: gradients of zero, as of a rank without clips
        alone.append(gradients(model))

    def of(ranks: Ranks) -> list[list[Tensor | None]]:
        model = Branches()
        summed = GradientSum(model.parameters(), ranks, bucket_bytes)
        found = []
        for _ in range(2):
            model.zero_grad()
            summed.begin()
            model(torch.tensor(float(ranks.rank))).backward()
            summed.finish()
            found.append(gradients(model))
        return found

    with ThreadPoolExecutor(3) as pool:
        for both in pool.map(of, ranks_in_process(3)):
            for found in both:
                for number, sums in enumerate(found):
                    parts = [each[number] for each in alone]
                    if number in (2, 3):
                        assert sums is None
                    else:
                        assert sums is not None
                        expected = torch.stack([part for part in parts if part is not None]).sum(dim=0)
                        torch.testing.assert_close(sums, expected)


class Experts(nn.Module):
    """Parameters of which each rank uses its own, and none the last."""

    def __init__(self, uses: int) -> None:
        super().__init__()
        self.experts = nn.ParameterList([nn.Parameter(torch.full((size,), 2.0)) for size in SIZES])
        self.uses = uses

    def forward(self) -> Tensor:
        total: Tensor = (self.experts[self.uses] ** 2).sum()
        return total


@pytest.mark.parametrize("bucket_bytes", [1, 200, 2**20])
def test_ranks_may_use_different_parameters(bucket_bytes: int) -> None:
    """Else they would send different numbers, which ends their processes."""

    def of(ranks: Ranks) -> list[list[Tensor | None]]:
        model = Experts(0)
        summed = GradientSum(model.parameters(), ranks, bucket_bytes)
        found = []
        for begin in (0, 2):
            model.zero_grad()
            model.uses = begin + ranks.rank
            summed.begin()
            model().backward()
            summed.finish()
            found.append(gradients(model))
        return found

    with ThreadPoolExecutor(3) as pool:
        for first, second in pool.map(of, ranks_in_process(3)):
            for found, used in ((first, {0, 1, 2}), (second, {2, 3, 4})):
                assert {number for number, sums in enumerate(found) if sums is not None} == used
                for number in used:
                    torch.testing.assert_close(found[number], torch.full((SIZES[number],), 4.0))


class Recording:
    """A rank that writes down how many numbers it was asked to sum, and whether backward was still going on."""

    world_size = 2

    def __init__(self) -> None:
        self.sent: list[int] = []

    def begin_sum(self, tensor: Tensor) -> Exchange:
        self.sent.append(tensor.numel())
        return self

    def wait(self) -> None:
        """Nothing to wait for."""


def test_the_last_layers_are_sent_while_the_first_ones_are_computed() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    rank = Recording()
    summed = GradientSum(model.parameters(), rank, bucket_bytes=(8 * 8 + 8) * 4)
    seen: list[list[int]] = []
    for layer in model:
        layer.register_full_backward_pre_hook(lambda *_: seen.append(list(rank.sent)))
    summed.begin()
    model(torch.ones(2, 8, requires_grad=True)).sum().backward()
    numbers = 8 * 8 + 8 + 2  # and of each of both parameters whether it had a part
    assert seen == [[numbers] * layers for layers in range(4)]
    summed.finish()
    assert rank.sent == [numbers] * 4


def test_gradients_that_wait_are_sent_last_and_after_the_backward_pass() -> None:
    model = nn.Sequential(*(nn.Linear(8, size) for size in (8, 8, 3)))
    rank = Recording()
    summed = GradientSum(model.parameters(), rank, bucket_bytes=1, waiting=set(model[2].parameters()))
    summed.begin()
    model(torch.ones(2, 8)).sum().backward()
    early = [8 + 1, 8 * 8 + 1] * 2
    assert rank.sent == early
    summed.finish()
    assert rank.sent == [*early, 3 + 1, 3 * 8 + 1]
