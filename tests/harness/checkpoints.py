"""The checkpoints of a training."""

from __future__ import annotations

from essp_common.artifacts import checkpoint
from essp_common.artifacts.manifest import Manifest
from tests.harness.training_jobs import Stage


def manifests(stage: Stage) -> list[Manifest]:
    """Of all checkpoints that are there."""
    return [checkpoint.read(stage.store, "one", step) for step in checkpoint.steps(stage.store, "one")]


def needed(manifest: Manifest) -> set[int]:
    """Steps of the checkpoints to which its files are differences."""
    return {file.base.step for file in manifest.files if file.base is not None}
