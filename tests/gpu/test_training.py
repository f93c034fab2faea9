"""Trainings on a GPU: the same as on a CPU, and the same again when they are resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from essp_common.artifacts import checkpoint
from essp_common.artifacts.checkpoint import MODEL_FILE, OPTIMIZER_FILE
from essp_common.errors import OutOfMemory
from essp_common.pb.v1.messages_pb2 import TRAIN, Control
from essp_common.planning.position import Position
from essp_trainer.data.device import half_type
from essp_trainer.model.step_result import Diverged
from tests.harness.rounding import TOLERANCE, distance
from tests.harness.training_jobs import (
    Running,
    Stage,
    final_weights,
    job_spec,
    last_training_state,
    phase_plans,
    train,
)

RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "adamw": {"optimizer": {"kind": "adamw", "lr": 0.003}},
    "average": {"ema": 0.9},
    "mixed": {"augment": {"crop": 16, "mixup": 0.5, "cutmix": 0.5}},
    "in passes": {"micro_batch": 2},
    "frozen": {"freeze_epochs": 1, "partial_bn": True},
    "half": {"amp": True},
}


@pytest.fixture
def exact_kernels() -> Iterator[None]:
    """Those that a GPU has chosen for a training that was `deterministic` stay so."""
    found = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    yield
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = found


def figures(stage: Stage) -> list[dict[str, float]]:
    return [
        {name: value for name, value in report.metrics.items() if name in ("loss", "top1", "clips", "video_top1")}
        for report in stage.reports("phase_report")
    ]


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "half"])
def test_a_gpu_learns_what_a_cpu_learns(tmp_path: Path, recipe: str) -> None:
    """In double precision, where the order of additions does not show. Without dropout, which each draws by itself;
    views are the host's, for those of a GPU differ by a level."""
    stages = {}
    for device in ("cpu", "cuda"):
        options: dict[str, Any] = {"optimizer": {"lr": 0.01}, "dropout": 0.0} | RECIPES[recipe]
        stage = Stage(job_spec(tmp_path / device, device=device, **options), phase_plans(2))
        stage.command(Control.START)
        stage.feed(stage.every_position(), skipped=[(0, 1)])
        with Running(stage, views="host") as running:
            running.join()
        if running.error is not None:
            raise running.error
        stages[device] = stage
    states = {device: last_training_state(stage) for device, stage in stages.items()}
    for name in (MODEL_FILE, OPTIMIZER_FILE):
        one, other = (safetensors.torch.load(states[device][name]) for device in ("cpu", "cuda"))
        assert distance(other, one) < TOLERANCE
    for expected, found in zip(figures(stages["cpu"]), figures(stages["cuda"]), strict=True):
        assert found == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.usefixtures("exact_kernels")
@pytest.mark.parametrize("recipe", RECIPES)
def test_it_resumes_to_the_bit(tmp_path: Path, recipe: str) -> None:
    settings: dict[str, Any] = {"deterministic": True}
    whole = Stage(job_spec(tmp_path / "whole", device="cuda", **RECIPES[recipe]), phase_plans(2))
    run(whole, whole.every_position(), settings)
    parts = Stage(job_spec(tmp_path / "parts", device="cuda", **RECIPES[recipe]), phase_plans(2))
    parts.command(Control.START)
    parts.feed([(0, index) for index in range(4)])
    with Running(parts, **settings) as running:
        parts.wait_for_trained(4)
    assert running.error is None
    again = Stage(parts.spec, parts.plans)
    run(again, [position for position in again.every_position() if position >= Position(0, 4)], settings)
    assert last_training_state(again) == last_training_state(whole)
    assert final_weights(again) == final_weights(whole)


def run(stage: Stage, positions: list[tuple[int, int]], settings: dict[str, Any]) -> None:
    stage.command(Control.START)
    stage.feed(positions)
    with Running(stage, **settings) as running:
        running.join()
    if running.error is not None:
        raise running.error


@pytest.mark.parametrize("feature", ["rgb", "flow"])
def test_half_precision_learns(tmp_path: Path, gpu: torch.device, feature: str) -> None:
    """By views that the GPU cuts, which is what it does unless told otherwise."""
    assert half_type(True, gpu) is not None
    stage = Stage(job_spec(tmp_path, feature=feature, device="cuda", amp=True, batch_size=8), phase_plans(4, train=96))
    train(stage)
    reported = [report.metrics["loss"] for report in stage.reports("phase_report") if report.purpose == TRAIN]
    assert reported[-1] < reported[0] / 2


def test_what_diverged_is_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known a step later."""
    backward: Callable[..., None] = Tensor.backward
    seen: list[Tensor] = []

    def third_overflows(self: Tensor, *args: Any, **options: Any) -> None:
        seen.append(self)
        backward(self * torch.inf if len(seen) == 3 else self, *args, **options)

    monkeypatch.setattr(Tensor, "backward", third_overflows)
    every = {"every": 2, "keep": 9}
    stage = Stage(job_spec(tmp_path, device="cuda", batch_size=2, checkpoint=every), phase_plans(1))
    with pytest.raises(Diverged, match=r"gradient norm (inf|nan) at update 2 of epoch 0; lower optimizer\.lr"):
        train(stage)
    assert max(checkpoint.steps(stage.store, "one")) == 4


def test_a_batch_that_does_not_fit_says_what_helps(tmp_path: Path, gpu: torch.device) -> None:
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(gpu).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(gpu) + 2**22) / whole, gpu)
    try:
        stage = Stage(job_spec(tmp_path, device="cuda", augment={"crop": 512}, batch_size=4), phase_plans(1))
        with pytest.raises(OutOfMemory, match="cuda:0 has too little memory for a batch of 4 clips; set micro_batch"):
            train(stage)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, gpu)
    [failed] = stage.reports("failed")
    assert "too little memory" in failed.reason
