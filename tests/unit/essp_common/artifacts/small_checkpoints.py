"""Checkpoints of a few bytes, the process that writes them, and what is in their store."""

from __future__ import annotations

from typing import Any

from essp_common.artifacts import checkpoint, checkpoint_writer, layout
from essp_common.artifacts.checkpoint_files import in_memory
from essp_common.artifacts.checkpoint_writer import CheckpointWriter
from essp_common.artifacts.manifest import Best, Manifest
from essp_common.job.position import Position
from essp_common.objects.directory import DirectoryStore
from tests.harness.model_manifest import SMALL

DATA = in_memory({"model.safetensors": b"weights"})


def manifest(step: int, best: int | None = None, final: bool = False, epochs: int = 0, fence: int = 0) -> Manifest:
    return Manifest(
        job="j",
        trainer="rgb",
        step=step,
        updates=step,
        epoch=0,
        epochs=epochs,
        fence=fence,
        position=Position(0, step),
        spec_digest="d",
        model=SMALL,
        best=None if best is None else Best(step=best, epoch=0, metrics={}),
        final=final,
    )


def begin(store: Any, fence: int = 1) -> CheckpointWriter:
    return checkpoint_writer.claim(store, "rgb", fence, "w")


def latest(store: DirectoryStore) -> int:
    found = checkpoint.read_latest(store, "rgb")
    assert found is not None
    return found.step


def objects(store: DirectoryStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list()}


def without_latest(store: DirectoryStore) -> None:
    for info in list(store.list(layout.latest("rgb"))):
        store.delete(info.key)
