"""A training on several ranks: the same steps as on one, together or not at all. Here ranks are threads over gloo."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn

from essp_common.artifacts import checkpoint, layout, scores
from essp_common.artifacts.manifest import MODEL_FILE, OPTIMIZER_FILE, ModelDescription
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import StreamSpec
from essp_common.job.feature_layout import COLOURS
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import Control
from essp_engine.learning.models import build, state_bytes
from essp_engine.learning.network import Network
from essp_engine.learning.networks import NETWORKS
from essp_engine.learning.normalisation import take_any_batch
from essp_engine.learning.randomness import DropoutGenerator, Share
from essp_engine.loading.rendezvous import Rendezvous
from essp_trainer.distributed.consensus import Consensus, ControlSignal
from essp_trainer.distributed.gradients import GradientSum
from essp_trainer.distributed.ranks import DistributedRanks, RankLost, Ranks, init_ranks
from essp_trainer.model import training
from tests.harness.rounding import AMPLIFICATION, STORED, TOLERANCE, UNIT, distance
from tests.harness.training_jobs import (
    CLASSES,
    ClipPosition,
    Running,
    Stage,
    files_of,
    job_spec,
    phase_plans,
    ranks_in_process,
    train,
)
from tests.lanes import often
from tests.unit.essp_engine.learning.test_branches import Mixture, linear

pytestmark = [pytest.mark.slow, pytest.mark.lane("promises")]

T = TypeVar("T")

SKIPPED = [(0, 2), (0, 4), (0, 5), (0, 6), (0, 7), (1, 0), (2, 9)]
"""Within a batch, a whole batch, the first of a phase, and the last."""
NUDGE = 1e-9
"""A relative change of weights: far above rounding, and too small to carry a number across a kink of ReLU."""


def on_all(ranks: list[Ranks], act: Callable[[Ranks], T]) -> list[T]:
    """What each rank makes of this, side by side."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(act, ranks))


def trained_state(stage: Stage) -> dict[str, bytes]:
    """Weights and momentum at the end of the last TRAIN pass."""
    manifest = checkpoint.read(stage.store, "one", checkpoint.steps(stage.store, "one")[-2])
    return files_of(stage.store, manifest) | {"updates": str(manifest.updates).encode()}


def apart(one: Stage, other: Stage) -> float:
    """How far parameters, statistics and momentum of two training runs are from each other."""
    first, second = trained_state(one), trained_state(other)
    assert first["updates"] == second["updates"]
    return max(
        distance(safetensors.torch.load(second[name]), safetensors.torch.load(first[name]))
        for name in (MODEL_FILE, OPTIMIZER_FILE)
    )


def trained_positions(stage: Stage) -> list[tuple[int, int, int]]:
    return [(report.purpose, report.epoch, i) for report in stage.reports("trained") for i in report.indices]


def small_job(path: Path, **options: Any) -> JobSpec:
    """Well-conditioned: at least 8 values in each normalisation, and a low learning rate."""
    return job_spec(path, augment={"crop": 32}, optimizer={"lr": 0.01}, **options)


def run(path: Path, ranks: int, **options: Any) -> Stage:
    stage = Stage(small_job(path, **options), phase_plans(2))
    train(stage, ranks=ranks, skipped=SKIPPED)
    return stage


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(("ranks", "batch_size"), often([(2, 4), (3, 2), (3, 4)], 2))
def test_any_number_of_ranks_takes_the_same_steps(tmp_path: Path, ranks: int, batch_size: int) -> None:
    one, several = (run(tmp_path / str(n), n, batch_size=batch_size) for n in (1, ranks))
    assert apart(one, several) < TOLERANCE
    for purpose, epoch in (("validation", 0), ("validation", 1), ("test", 1)):
        expected, found = (scores.read(s.store, layout.scores("one", purpose, epoch)) for s in (one, several))
        assert found.video_id == expected.video_id
        assert_allclose(found.clip_index, expected.clip_index)
        assert_allclose(found.probabilities, expected.probabilities, rtol=0, atol=TOLERANCE + STORED)


@pytest.mark.usefixtures("double_precision")
def test_experts_take_the_same_steps_whichever_rank_has_their_clips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Network(lambda: Mixture(linear, skips=True, residual=True), "stem", "head")
    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", entry)
    monkeypatch.setattr(training, "GradientSum", partial(GradientSum, bucket_bytes=64))  # as many as of a large network
    assert apart(*(run(tmp_path / str(ranks), ranks) for ranks in (1, 2))) < TOLERANCE


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("batch_size", [4, 2])
def test_rounding_is_amplified_less_than_assumed(tmp_path: Path, batch_size: int) -> None:
    """What `TOLERANCE` rests on. Nor does any number of this training come close to a kink of ReLU."""
    plain, nudged = (
        run(tmp_path / str(n), 1, batch_size=batch_size, weights=initial_weights_at(tmp_path / f"{n}.safetensors", n))
        for n in (0.0, NUDGE)
    )
    assert NUDGE / 10 < apart(plain, nudged) < NUDGE * AMPLIFICATION


def initial_weights_at(path: Path, nudge: float) -> str:
    """Weights to start from, each changed by about this share of itself."""
    description = ModelDescription(
        name="small", feature="rgb", layout=COLOURS, channels=3, classes=CLASSES, dropout=0.5, crop=32,
        evaluation_scale=0.875,
    )  # fmt: skip
    model = build(description, seed=1)
    random_ = torch.Generator().manual_seed(2)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.mul_(1 + nudge * torch.randn(tensor.shape, generator=random_))
    path.write_bytes(state_bytes(model))
    return path.as_uri()


def test_every_clip_is_reported_once_and_every_event_by_one_rank(tmp_path: Path) -> None:
    stage = run(tmp_path, 3)
    every = {
        (stage.plans[n].purpose, stage.plans[n].epoch, i) for n, i in stage.every_position() if (n, i) not in SKIPPED
    }
    assert sorted(trained_positions(stage)) == sorted(every)
    assert [(r.purpose, r.epoch) for r in stage.reports("phase_report")] == [(p.purpose, p.epoch) for p in stage.plans]
    assert [report.metrics["clips"] for report in stage.reports("phase_report")] == [5, 5, 9, 6, 6]
    assert [report.final for report in stage.reports("checkpoint")] == [False, False, True]
    assert stage.cache.usage().keys == 0
    assert stage.bus.backlog("essp.clips", "trainer.one.tiny") == 0


def test_the_same_ranks_give_the_same_bits_whatever_the_order(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", 2)
    stage = Stage(small_job(tmp_path / "mixed"), phase_plans(2))
    positions = stage.every_position()
    random.Random(5).shuffle(positions)
    train(stage, positions, SKIPPED, ranks=2)
    assert trained_state(stage) == trained_state(plain)


def train_in_parts(path: Path, parts: list[tuple[int, ClipPosition | None]]) -> Stage:
    """Train with so many ranks up to a place, drain, start anew with other ranks, and so on."""
    spec, plans = small_job(path), phase_plans(2)
    start = Position(0, 0)
    for ranks, last in parts:
        stage = Stage(spec, plans)  # a new process: nothing is left but the store
        positions = [position for position in stage.every_position() if position >= start]
        fed = positions if last is None else positions[: positions.index(last) + 1]
        stage.command(Control.START)
        stage.feed(fed, [position for position in SKIPPED if position in fed])
        with Running(stage, ranks) as running:
            if last is None:
                running.join()
            else:
                done = [
                    position for position in fed if position not in SKIPPED and batch_is_there(fed, stage, position)
                ]
                while len(trained_positions(stage)) < len(done):
                    stage.progress(timeout_s=1.0)
        assert running.error is None
        manifest = checkpoint.read_latest(stage.store, "one")
        assert manifest is not None
        start = manifest.position
    return stage


def batch_is_there(fed: list[ClipPosition], stage: Stage, position: ClipPosition) -> bool:
    number, index = position
    return (number, min(stage.plans[number].clips, (index // 4 + 1) * 4) - 1) in fed


@pytest.mark.usefixtures("double_precision")
def test_resumed_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    """From 2 ranks in the middle of the first epoch to 3 in the middle of the second, to 1."""
    parts = train_in_parts(tmp_path / "parts", [(2, (0, 4)), (3, (2, 6)), (1, None)])
    assert apart(run(tmp_path / "whole", 1), parts) < TOLERANCE


def test_resumed_on_as_many_ranks_is_the_same_to_the_bit(tmp_path: Path) -> None:
    parts = train_in_parts(tmp_path / "parts", [(2, (0, 4)), (2, (2, 6)), (2, None)])
    assert trained_state(run(tmp_path / "whole", 2)) == trained_state(parts)


def test_when_one_rank_is_to_leave_all_save_and_leave(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(7)])
    with Running(stage, 3) as running:
        while len(trained_positions(stage)) < 4:
            stage.progress(timeout_s=1.0)
        running.trainers[2].drain()
        running.join()
    assert running.errors == {}
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.position == Position(0, 4)
    assert stage.bus.backlog("essp.clips", "trainer.one.tiny") == 3


def test_a_rank_that_fails_takes_the_others_along(tmp_path: Path) -> None:
    """Clip 5 has too few frames, which only rank 1 of 2 sees; the other leaves, for all to be started again."""
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    stage.command(Control.START)
    stage.feed([(0, i) for i in range(5)])
    stage.feed([(0, 5)], frames=np.zeros((1, 20, 20, 3), np.uint8))
    with Running(stage, 2) as running:
        running.join()
    assert isinstance(running.errors[1], ConfigError)
    assert isinstance(running.errors[0], RankLost)
    assert "start all of them again" in str(running.errors[0])
    [failed] = stage.reports("failed")
    assert "raise clip.frames" in failed.reason


def test_the_greatest_signal_and_the_whole_batch_are_known_to_all() -> None:
    agreements = on_all(
        ranks_in_process(3),
        lambda ranks: Consensus(ranks, lambda: ControlSignal(ranks.rank), 4).agree(None, save=ranks.is_rank_zero),
    )
    assert agreements[0] == agreements[1] == agreements[2]
    assert agreements[0] == Consensus(ranks_in_process(1)[0], lambda: ControlSignal.LEAVE, 4).agree(None, save=True)


def test_documents_reach_all() -> None:
    documents = [b"", b"one", b"second" * 1000]
    ranks = ranks_in_process(3)
    assert on_all(ranks, lambda r: r.all_gather(documents[r.rank])) == [documents] * 3
    assert on_all(ranks, lambda r: r.broadcast(b"from " + bytes([r.rank]))) == [b"from \0"] * 3


def test_dropout_does_not_depend_on_who_has_a_clip() -> None:
    whole, part = DropoutGenerator(), DropoutGenerator()
    x = torch.zeros(6, 2, 5)  # six clips of two frames
    whole.reseed(3, Share(6, tuple(range(6))))
    part.reseed(3, Share(6, (1, 4)))
    expected = whole.kept(x.flatten(0, 1), 0.5).view(6, 2, 5)
    assert torch.equal(part.kept(x[:2].flatten(0, 1), 0.5).view(2, 2, 5), expected[[1, 4]])


@pytest.mark.parametrize("shares", [(3, 5), (8, 0), (1, 2, 5)])
def test_normalising_over_ranks_is_normalising_the_whole_batch(shares: tuple[int, ...]) -> None:
    """Each sum is of the 128 values of a channel, 20 deviations from zero, and a few sums follow one another."""
    random_ = torch.Generator().manual_seed(1)
    x, target = (torch.randn(8, 3, 4, 4, dtype=torch.float64, generator=random_) * 5 + 100 for _ in range(2))
    relative = 10 * 128 * 20 * UNIT  # of the largest: 3e-12
    alone = nn.Sequential(nn.BatchNorm2d(3, dtype=torch.float64))
    expected = normalised(alone, x, target)

    def rank(ranks: Ranks) -> tuple[tuple[Tensor, Tensor, Tensor], nn.Module]:
        layer = nn.Sequential(nn.BatchNorm2d(3, dtype=torch.float64))
        take_any_batch(layer, ranks)
        here = rows_of(shares, ranks.rank)
        return normalised(layer, x[here], target[here]), layer

    parts = on_all(ranks_in_process(len(shares)), rank)
    for number, whole in enumerate(expected[:2]):
        found = torch.cat([tensors[number] for tensors, _ in parts])
        assert_allclose(found, whole, rtol=0, atol=relative * whole.abs().max().item())
    assert_allclose(sum(tensors[2] for tensors, _ in parts), expected[2], rtol=relative)
    for _, layer in parts:
        for name, statistic in alone.named_buffers():
            assert_allclose(layer.get_buffer(name), statistic, rtol=relative)


class Twice(nn.Module):
    """A network that uses one layer in two places, under two names."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.second = layer, layer

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(self.first(x) ** 2)
        return found


@pytest.mark.parametrize(
    ("kind", "alike", "shape", "options"),
    [
        (nn.BatchNorm1d, nn.BatchNorm1d, (8, 3), {}),
        (nn.BatchNorm1d, nn.BatchNorm1d, (8, 3, 4), {}),
        (nn.BatchNorm3d, nn.BatchNorm3d, (8, 3, 2, 2, 2), {"bias": False}),
        (nn.BatchNorm2d, nn.BatchNorm2d, (8, 3, 2, 2), {"affine": False}),
        (nn.SyncBatchNorm, nn.BatchNorm2d, (8, 3, 2, 2), {}),
    ],
)
def test_every_kind_of_batch_normalisation_is_that_of_the_whole_batch(
    kind: type[nn.Module], alike: type[nn.Module], shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    """Wherever a network has the layer. Each sum is of 64 values of a few deviations at most, and a few follow one
    another."""
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    alone = Twice(alike(3, dtype=torch.float64, **options))
    expected = alone(x)

    def rank(ranks: Ranks) -> tuple[Tensor, nn.Module]:
        layer = Twice(kind(3, dtype=torch.float64, **options))
        take_any_batch(layer, ranks)
        return layer(x[rows_of((3, 5), ranks.rank)]).detach(), layer

    parts = on_all(ranks_in_process(2), rank)
    assert_allclose(torch.cat([part for part, _ in parts]), expected.detach(), rtol=0, atol=1e-10)
    for _, layer in parts:
        for name, statistic in alone.named_buffers():
            assert_allclose(layer.get_buffer(name), statistic, rtol=1e-10, atol=1e-10)


def rows_of(shares: tuple[int, ...], rank: int) -> slice:
    """Which clips of a batch a rank has, if the ranks have so many each."""
    begin = sum(shares[:rank])
    return slice(begin, begin + shares[rank])


@pytest.mark.parametrize("shares", [(3, 5), (8, 0), (1, 2, 5)])
def test_statistics_far_from_zero_stay_precise_in_single_precision(shares: tuple[int, ...]) -> None:
    """The mean of 32 values is off by 32 roundings of its size at most, and so is what is normalised, in deviations.

    Means of squares would be off by a rounding of a million, in a variance of one.
    """
    x = torch.randn(8, 3, 2, 2, generator=torch.Generator().manual_seed(1)) + 1000
    exact = x.double()
    variance, mean = torch.var_mean(exact, (0, 2, 3), correction=0, keepdim=True)
    expected = (exact - mean) / (variance + 1e-5).sqrt()

    def rank(ranks: Ranks) -> Tensor:
        layer = nn.Sequential(nn.BatchNorm2d(3))
        take_any_batch(layer, ranks)
        normalised: Tensor = layer(x[rows_of(shares, ranks.rank)])
        return normalised.detach()

    found = torch.cat(on_all(ranks_in_process(len(shares)), rank))
    assert found.dtype == torch.float32
    assert_allclose(found, expected, rtol=0, atol=32 * 2.0**-24 * 1000 / variance.sqrt().min().item())


@pytest.mark.parametrize("shares", [(1,), (0, 1), (1, 0, 0)])
def test_one_value_a_channel_is_normalised_by_running_statistics_on_any_number_of_ranks(
    shares: tuple[int, ...],
) -> None:
    """It has no variance: `BatchNorm2d` raises, and running statistics that took it in would be NaN."""
    generator = torch.Generator().manual_seed(5)
    before, x = (torch.randn(n, 3, 1, 1, dtype=torch.float64, generator=generator) for n in (8, 1))
    alone = nn.Sequential(nn.BatchNorm2d(3, dtype=torch.float64))
    alone(before)
    expected, gradient, _ = normalised(alone.eval(), x, torch.ones_like(x))

    def rank(ranks: Ranks) -> tuple[Tensor, Tensor, Tensor, nn.Module]:
        layer = nn.Sequential(nn.BatchNorm2d(3, dtype=torch.float64))
        layer(before)
        take_any_batch(layer, ranks)
        here = x[rows_of(shares, ranks.rank)]
        return *normalised(layer, here, torch.ones_like(here)), layer

    parts = on_all(ranks_in_process(len(shares)), rank)
    assert_allclose(torch.cat([part[0] for part in parts]), expected, rtol=1e-14)
    assert_allclose(torch.cat([part[1] for part in parts]), gradient, rtol=1e-14)
    for *_, layer in parts:
        for name, statistic in alone.named_buffers():
            assert torch.equal(layer.get_buffer(name), statistic)


@pytest.mark.parametrize("mode", ["training", "evaluation", "one value"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_ranks_compute_in_the_type_that_one_does(dtype: torch.dtype, mode: str) -> None:
    x = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(2)).to(dtype)
    x = x[:1, :, :1, :1] if mode == "one value" else x
    alone = nn.Sequential(nn.BatchNorm2d(3)).train(mode == "training")

    def rank(ranks: Ranks) -> Tensor:
        layer = nn.Sequential(nn.BatchNorm2d(3)).train(mode != "evaluation")
        take_any_batch(layer, ranks)
        with torch.autocast("cpu", dtype=dtype):
            found: Tensor = layer(x[rows_of((len(x), 0), ranks.rank)])
        return found.detach()

    with torch.autocast("cpu", dtype=dtype):
        expected = alone(x).detach()
    found = on_all(ranks_in_process(2), rank)
    assert [part.dtype for part in found] == [expected.dtype] * 2 == [dtype] * 2
    # Both round once at the end; where single precision differs in its last digits, they may round to neighbours.
    assert_allclose(torch.cat(found).float(), expected.float(), rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_last_batch_of_one_frame_is_trained_alike_on_any_number_of_ranks(tmp_path: Path, ranks: int) -> None:
    """Five clips in batches of four: the fifth is alone in each epoch. The small network makes one value a channel of a
    frame of 16 x 16."""
    states = {}
    for count in (1, ranks):
        spec = job_spec(tmp_path / str(count), optimizer={"lr": 0.01}, batch_size=4)
        spec = spec.model_copy(update={"streams": {"s": StreamSpec(feature="rgb", params={"frames": 1})}})
        stage = Stage(spec, phase_plans(2, train=5))
        train(stage, ranks=count)
        states[count] = trained_state(stage)
    one, several = (
        {n: safetensors.torch.load(s[n]) for n in (MODEL_FILE, OPTIMIZER_FILE)} for s in (states[1], states[ranks])
    )
    assert states[1]["updates"] == states[ranks]["updates"] == b"4"
    assert max(distance(several[name], one[name]) for name in one) < TOLERANCE


def normalised(layer: nn.Module, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What comes out, and the gradients of inputs and of the scale."""
    x = x.clone().requires_grad_()
    out = layer(x)
    (out * target).pow(2).sum().backward()
    [scale] = [p.grad for name, p in layer.named_parameters() if name.endswith("weight")]
    assert x.grad is not None
    assert scale is not None
    return out.detach(), x.grad, scale


def test_a_rank_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="64 at most"):
        init_ranks(Rendezvous(rank=0, world_size=65), 1.0)
    with pytest.raises(ConfigError, match="count from 0"):
        init_ranks(Rendezvous(rank=2, world_size=2), 1.0)


def test_variables_that_make_no_sense_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ConfigError, match="WORLD_SIZE"):
        Rendezvous.of_environment()


def test_a_lost_rank_is_an_error_of_ours() -> None:
    ranks = ranks_in_process(2)
    assert isinstance(ranks[1], DistributedRanks)
    ranks[1].close()
    with pytest.raises(RankLost, match="rank 0 of 2"):
        ranks[0].broadcast(b"")
