"""Trainings on a GPU: the same as on a CPU, and the same again when they are resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from essp_common.artifacts import checkpoint
from essp_common.artifacts.manifest import MODEL_FILE, OPTIMIZER_FILE
from essp_common.errors import OutOfMemory
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import TRAIN, Control
from essp_engine.loading.device import half_type
from essp_trainer.model.step_result import Diverged
from tests.gpu.conftest import nearly_full
from tests.harness.rounding import TOLERANCE, distance
from tests.harness.training_jobs import (
    Running,
    Stage,
    figures_of,
    final_weights,
    job_spec,
    last_training_state,
    phase_plans,
    third_step_overflows,
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


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "half"])
def test_a_gpu_learns_what_a_cpu_learns(tmp_path: Path, recipe: str) -> None:
    """In double precision, where the order of additions does not show. Without dropout, which each draws by itself;
    views are the host's, for those of a GPU differ by a level."""
    stages = {}
    for device in ("cpu", "cuda"):
        options: dict[str, Any] = {"optimizer": {"lr": 0.01}, "dropout": 0.0} | RECIPES[recipe]
        stage = Stage(job_spec(tmp_path / device, device=device, **options), phase_plans(2))
        train(stage, skipped=[(0, 1)], views="host")
        stages[device] = stage
    states = {device: last_training_state(stage) for device, stage in stages.items()}
    for name in (MODEL_FILE, OPTIMIZER_FILE):
        one, other = (safetensors.torch.load(states[device][name]) for device in ("cpu", "cuda"))
        assert distance(other, one) < TOLERANCE
    for expected, found in zip(figures_of(stages["cpu"]), figures_of(stages["cuda"]), strict=True):
        assert found == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.usefixtures("exact_kernels")
@pytest.mark.parametrize("recipe", RECIPES)
def test_it_resumes_to_the_bit(tmp_path: Path, recipe: str) -> None:
    whole = Stage(job_spec(tmp_path / "whole", device="cuda", **RECIPES[recipe]), phase_plans(2))
    train(whole, deterministic=True)
    parts = Stage(job_spec(tmp_path / "parts", device="cuda", **RECIPES[recipe]), phase_plans(2))
    parts.command(Control.START)
    parts.feed([(0, index) for index in range(4)])
    with Running(parts, deterministic=True) as running:
        parts.wait_for_trained(4)
    assert running.error is None
    again = Stage(parts.spec, parts.plans)
    train(again, [place for place in again.every_position() if place >= Position(0, 4)], deterministic=True)
    assert last_training_state(again) == last_training_state(whole)
    assert final_weights(again) == final_weights(whole)


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
    third_step_overflows(monkeypatch)
    every = {"every": 2, "keep": 9}
    stage = Stage(job_spec(tmp_path, device="cuda", batch_size=2, checkpoint=every), phase_plans(1))
    with pytest.raises(Diverged, match=r"gradient norm (inf|nan) at update 2 of epoch 0; lower optimizer\.lr"):
        train(stage)
    assert max(checkpoint.steps(stage.store, "one")) == 4


def test_a_batch_that_does_not_fit_says_what_helps(tmp_path: Path, gpu: torch.device) -> None:
    stage = Stage(job_spec(tmp_path, device="cuda", augment={"crop": 512}, batch_size=4), phase_plans(1))
    with (
        nearly_full(gpu, 2**22),
        pytest.raises(OutOfMemory, match="cuda:0 has too little memory for a batch of 4 clips; set micro_batch"),
    ):
        train(stage)
    [failed] = stage.reports("failed")
    assert "too little memory" in failed.reason
