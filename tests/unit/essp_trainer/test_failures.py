"""What fails a job, what restarts a trainer, and what its job and people are told of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from essp_common.errors import ConfigError, DeviceLost, OutOfMemory
from essp_common.pb.v1.messages_pb2 import (
    ERROR,
    MEMORY,
)
from essp_engine.learning.models import Classifier
from essp_engine.learning.scores import Scores
from tests.harness.refused import refused
from tests.harness.training_jobs import (
    Stage,
    job_spec,
    phase_plans,
    train,
)


def test_weights_that_are_not_there_are_refused_at_once(tmp_path: Path) -> None:
    missing = (tmp_path / "none.safetensors").as_uri()
    with pytest.raises(ConfigError, match="weights"):
        train(Stage(job_spec(tmp_path, weights=missing), phase_plans(1)), positions=[])


def test_a_gpu_without_room_says_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Classifier, x: Tensor) -> Scores:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Classifier, "forward", forward)
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    with pytest.raises(OutOfMemory, match="batch of 4 clips; set micro_batch, set amp: true"):
        train(stage)
    [failed] = stage.reports("failed")
    assert failed.kind == MEMORY


def test_a_gpu_that_is_not_there_fails_the_job_with_the_field_and_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    stage = Stage(job_spec(tmp_path, device="cuda"), phase_plans(2))
    with refused("trainers.one.device", "unsupported"):
        train(stage)
    [failed] = stage.reports("failed")
    assert "trainers.one.device: cuda" in failed.reason
    assert failed.reason.endswith("worker w")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model": "ownnet"},
            "no model 'ownnet'; .*the package installed wherever master, trainers and predictors run",
        ),
        ({"model": "own_nets:TINY"}, "model 'own_nets:TINY' is code of a package that is not allowed here: ESSP_CODE"),
        ({"loss": "own_nets:focal"}, "loss 'own_nets:focal' is code of a package that is not allowed here: ESSP_CODE"),
    ],
)
def test_a_network_or_a_loss_that_is_not_here_fails_the_job_by_name(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    """As where it is in an image of its own, and this is another one."""
    stage = Stage(job_spec(tmp_path, **changes), phase_plans(2))
    with pytest.raises(ConfigError, match=said) as raised:
        train(stage)
    [failed] = stage.reports("failed")
    assert str(raised.value) in failed.reason


def test_a_gpu_that_fails_is_no_fault_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is started again, and the job continues."""
    monkeypatch.setattr(Classifier, "forward", _raising(torch.AcceleratorError("CUDA error: uncorrectable ECC error")))
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    with pytest.raises(DeviceLost, match=r"ECC.*resumes from its last checkpoint"):
        train(stage)
    assert stage.reports("failed") == []


def test_an_unexpected_error_is_reported_to_the_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Classifier, "forward", _raising(ZeroDivisionError("division by zero")))
    stage = Stage(job_spec(tmp_path), phase_plans(2))
    with pytest.raises(ZeroDivisionError):
        train(stage)
    [failed] = stage.reports("failed")
    assert (failed.kind, failed.reason) == (ERROR, "ZeroDivisionError: division by zero")


def _raising(error: Exception) -> Callable[[Classifier, Tensor], Scores]:
    def forward(self: Classifier, x: Tensor) -> Scores:
        raise error

    return forward
