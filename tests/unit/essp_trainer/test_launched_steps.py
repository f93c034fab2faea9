"""Steps as a GPU takes them: launched, and known when the next one is. Here a CPU takes them, with its own kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from essp_common.artifacts import checkpoint
from essp_common.artifacts.manifest import MODEL_FILE, OPTIMIZER_FILE, ModelDescription
from essp_common.job.feature_layout import COLOURS
from essp_common.job.position import Position
from essp_common.job.trainer_spec import OptimizerSpec
from essp_common.pb.v1.messages_pb2 import Control
from essp_engine.learning.models import Classifier, build
from essp_trainer.model import training as training_module
from essp_trainer.model.meter import Meter
from essp_trainer.model.optimizer import Optimizer
from essp_trainer.model.step_result import Diverged, LaunchedStep, StepResult
from tests.harness.rounding import TOLERANCE, UNIT, distance
from tests.harness.training_jobs import (
    Running,
    Stage,
    figures_of,
    files_of,
    job_spec,
    phase_plans,
    third_step_overflows,
    train,
)
from tests.lanes import often

pytestmark = pytest.mark.slow


@pytest.fixture
def launching(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(training_module, "launches", lambda device: True)


def trained(stage: Stage) -> dict[str, bytes]:
    """Weights and momentum after the last TRAIN phase."""
    last = checkpoint.read(stage.store, "one", checkpoint.steps(stage.store, "one")[-2])
    return files_of(stage.store, last)


@pytest.mark.usefixtures("double_precision")
def test_they_are_the_steps_that_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited, launched = (
        Stage(job_spec(tmp_path / name, ema=0.9, augment={"crop": 32}, optimizer={"lr": 0.01}), phase_plans(2))
        for name in ("waited", "launched")
    )
    train(waited)
    monkeypatch.setattr(training_module, "launches", lambda device: True)
    train(launched)
    for name in (MODEL_FILE, OPTIMIZER_FILE):
        one, other = (safetensors.torch.load(trained(stage)[name]) for stage in (waited, launched))
        assert distance(other, one) < TOLERANCE
    for expected, found in zip(figures_of(waited), figures_of(launched), strict=True):
        assert found == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.usefixtures("launching")
@pytest.mark.parametrize("half", often([True, False], 1))
def test_they_resume_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool) -> None:
    if half:
        monkeypatch.setattr(training_module, "half_type", lambda wanted, device: torch.float16)
    whole, parts = (Stage(job_spec(tmp_path / name), phase_plans(2)) for name in ("whole", "parts"))
    train(whole)
    parts.command(Control.START)
    parts.feed([(0, index) for index in range(4)])
    with Running(parts) as running:
        parts.wait_for_trained(4)
    assert running.error is None
    again = Stage(parts.spec, parts.plans)
    train(again, [position for position in again.every_position() if position >= Position(0, 4)])
    assert trained(again) == trained(whole)
    assert figures_of(again) == figures_of(whole)[-len(figures_of(again)) :]


@pytest.mark.usefixtures("launching")
def test_what_diverged_is_said_a_step_later_and_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    third_step_overflows(monkeypatch)
    stage = Stage(job_spec(tmp_path, batch_size=2, checkpoint={"every": 2, "keep": 9}), phase_plans(1))
    with pytest.raises(Diverged, match=r"gradient norm (inf|nan) at update 2 of epoch 0; lower optimizer\.lr"):
        train(stage)
    assert max(checkpoint.steps(stage.store, "one")) == 4


def small() -> Classifier:
    return build(
        ModelDescription(
            name="small", feature="rgb", layout=COLOURS, channels=3, classes=("a", "b", "c"), dropout=0.5, crop=16,
            evaluation_scale=0.875,
        ),
        0,
    )  # fmt: skip


def stepped(model: Classifier, optimizer: Optimizer, seed: int, finite: bool = True) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer.start(0.1)
    for parameter in model.parameters():
        # In the memory layout of the parameter, as autograd makes it: fused kernels take no other.
        parameter.grad = torch.empty_like(parameter).copy_(torch.randn(parameter.shape, generator=generator))
        if not finite:
            parameter.grad.fill_(torch.nan)
    optimizer.step(torch.tensor(finite))


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(
    "rates", often([{"nesterov": True}, {"kind": "adamw"}, {}, {"momentum": 0.0}, {"decay_all": False}], 2)
)
def test_a_fused_optimiser_skips_what_is_not_finite(rates: dict[str, Any]) -> None:
    """Also in its first step, in which torch's own would leave momentum that nobody has set."""
    plain, fused = small(), small()
    own = Optimizer(plain, OptimizerSpec(**rates), scaling=False)
    other = Optimizer(fused, OptimizerSpec(**rates), scaling=False, fused=True)
    for number, finite in enumerate((False, True, True, False, True)):
        if finite:
            stepped(plain, own, number)
        stepped(fused, other, number, finite)
        # Three steps round a few times each; a parameter is a few at most.
        assert distance(dict(fused.named_parameters()), dict(plain.named_parameters())) < 3 * 10 * UNIT
    momentum = {name: tensor for name, tensor in own.state().items() if tensor.any()}
    assert distance({name: other.state()[name] for name in momentum}, momentum) < 3 * 10 * 10 * UNIT


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("decay_all", [True, False])
def test_adamw_is_the_recurrence(decay_all: bool) -> None:
    """Algorithm 2 of Loshchilov & Hutter, "Decoupled Weight Decay Regularization", 2019, in NumPy."""
    model, rate, decay, (first, second) = small(), 0.1, 0.3, (0.8, 0.95)
    rates = OptimizerSpec(kind="adamw", betas=(first, second), weight_decay=decay, decay_all=decay_all)
    optimizer = Optimizer(model, rates, scaling=False)
    expected = {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}
    mean = {name: np.zeros_like(values) for name, values in expected.items()}
    square = {name: np.zeros_like(values) for name, values in expected.items()}
    for step in range(1, 6):
        stepped(model, optimizer, step)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            gradient, values = parameter.grad.numpy(), expected[name]
            mean[name] = first * mean[name] + (1 - first) * gradient
            square[name] = second * square[name] + (1 - second) * gradient**2
            change = mean[name] / (1 - first**step) / (np.sqrt(square[name] / (1 - second**step)) + 1e-8)
            shrunk = decay if decay_all or values.ndim > 1 else 0.0
            expected[name] = values - rate * (change + shrunk * values)
    found = dict(model.named_parameters())
    # Five steps of a dozen roundings each; a parameter is a few at most.
    assert distance(found, {name: torch.from_numpy(values) for name, values in expected.items()}) < 5 * 12 * 10 * UNIT


def test_a_meter_counts_a_launched_step_with_the_next() -> None:
    meter = Meter(lambda: 1.0)
    for loss, place in ((1.0, 4), (2.0, 9)):  # a clip of the second batch was skipped
        meter.add(launched(loss), place)
    assert (meter.loss, meter.clips, meter.place) == (1.0, 4, 4)
    meter.settle()
    meter.settle()
    assert (meter.loss, meter.clips, meter.correct, meter.place) == (1.5, 8, 6, 9)
    assert Meter.of(meter.sums(), meter.clock) == meter
    meter.add(StepResult(3.0, 1, 8), 17)
    assert (meter.loss, meter.place) == (2.25, 17)
    meter.add(launched(float("nan")), 21)
    with pytest.raises(Diverged, match="loss nan"):
        meter.settle()


def launched(loss: float) -> LaunchedStep:
    return LaunchedStep(tuple(torch.tensor(number) for number in (loss, 3.0, 1.0, 0.0)), 4, "update 1 of epoch 0")
