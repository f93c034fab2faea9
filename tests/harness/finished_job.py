"""What a finished training job leaves in its output store, made without training: for tests of what comes after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from essp_common.artifacts import checkpoint_writer, layout, scores
from essp_common.artifacts.checkpoint_files import in_memory
from essp_common.artifacts.manifest import MODEL_FILE, Manifest, ModelDescription, PhaseRecord
from essp_common.artifacts.scores import ScoreTable
from essp_common.job.feature_layout import COLOURS, MOTION
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.tensors.packed import pack

JOB = "two-stream"
CLASSES = ("brick-left", "brick-right", "grass-left", "grass-right")
"""Texture and motion: `rgb` sees the one, `flow` the other."""
VIDEOS_PER_CLASS = 5
CLIPS_PER_VIDEO = 2
BEST_EPOCH = 1
VERSIONS = {"essp": "0.1.0", "numpy": "2.3"}


@dataclass(frozen=True)
class FinishedJob:
    """A job's specification and its output store."""

    spec: JobSpec
    store: DirectoryStore
    root: Path


def finished_job(root: Path, test: bool = True, catalog: str = "file:///absent.parquet") -> FinishedJob:
    """Both trainers are done, and nothing is fused yet."""
    spec = JobSpec.model_validate(
        {
            "name": JOB,
            "output": f"file://{root}",
            "data": {"catalog": catalog},
            "clip": {"frames": 6, "resize": {"mode": "exact", "height": 48, "width": 64}},
            "sampling": {"clips_per_video": CLIPS_PER_VIDEO},
            "streams": {"rgb": {"feature": "rgb"}, "motion": {"feature": "flow", "params": {"length": 5}}},
            "trainers": {
                "rgb": {"stream": "rgb", "augment": {"crop": 32}},
                "flow": {"stream": "motion", "augment": {"crop": 32}},
            },
            "epochs": 2,
        }
    )
    store = DirectoryStore.from_url(f"file://{root}")
    store.put(layout.SPEC, spec.model_dump_json(indent=1).encode())
    for trainer in spec.trainers:
        save_final(store, spec, trainer, test)
    return FinishedJob(spec, store, root)


def save_final(store: DirectoryStore, spec: JobSpec, trainer: str, test: bool = True) -> None:
    """One training's last checkpoint, with its scores."""
    keys = {"validation": layout.scores(trainer, "validation", BEST_EPOCH)}
    if test:
        keys["test"] = layout.scores(trainer, "test", 0)
    for purpose, key in keys.items():
        scores.write(store, key, score_table(trainer, purpose))
    manifest = Manifest(
        job=spec.name,
        trainer=trainer,
        step=100,
        updates=10,
        epoch=BEST_EPOCH,
        epochs=spec.epochs,
        position=Position(5, 0),
        spec_digest="any",
        model=ModelDescription(
            name="small",
            feature=spec.streams[spec.trainers[trainer].stream].feature,
            layout=COLOURS if trainer == "rgb" else MOTION,
            channels=3 if trainer == "rgb" else 10,
            classes=CLASSES,
            dropout=0.5,
            crop=32,
            evaluation_scale=0.875,
        ),
        history=history(),
        scores=keys,
        versions=VERSIONS,
        final=True,
    )
    writer = checkpoint_writer.claim(store, trainer)
    writer.save(manifest, in_memory({MODEL_FILE: pack(weights_of(trainer))}), keep=2)


def swept(root: Path, keep: int, features: bool = False) -> FinishedJob:
    """A job whose trainer `rgb` is a sweep of three: one that guesses, one that is right, and one that is worse."""
    first = finished_job(root)
    document = first.spec.model_dump(mode="json", exclude_defaults=True)
    document["trainers"]["rgb"] |= {"sweep": {"dropout": [0.1, 0.2, 0.3]}, "keep": keep}
    document["aggregation"] = {"features": features}
    spec = type(first.spec).model_validate(document)
    for member, share in (("rgb-1", 0.0), ("rgb-2", 0.9), ("rgb-3", -0.1)):
        save_final(first.store, spec, member)
        for purpose, epoch in (("validation", BEST_EPOCH), ("test", 0)):
            table = score_table("rgb", purpose)
            right = np.eye(len(CLASSES))[table.class_id]
            mixed = (1 - share) * table.probabilities + share * right
            known = np.clip(mixed, 1e-3, None).astype(np.float32)
            better = replace(table, probabilities=known / known.sum(axis=1, keepdims=True))
            scores.write(first.store, layout.scores(member, purpose, epoch), better)
    return FinishedJob(spec, first.store, root)


def weights_of(trainer: str) -> dict[str, NDArray[np.float32]]:
    """Of its last checkpoint."""
    return {f"{trainer}.weight": np.arange(6, dtype=np.float32).reshape(2, 3)}


def score_table(trainer: str, purpose: str) -> ScoreTable:
    """`rgb` is sure of the texture and guesses the motion; `flow` the other way round."""
    random = np.random.Generator(np.random.Philox(len(trainer) + len(purpose)))
    videos = [f"{purpose}/{CLASSES[c]}/{take}.mp4" for c in range(4) for take in range(VIDEOS_PER_CLASS)]
    labels = np.repeat(np.arange(4), VIDEOS_PER_CLASS * CLIPS_PER_VIDEO).astype(np.int32)

    def sees(c: int) -> int:
        return c // 2 if trainer == "rgb" else c % 2

    known = np.array([[3.0 if sees(c) == sees(label) else 0.0 for c in range(4)] for label in labels.tolist()])
    odds = np.exp(known + random.normal(0, 0.2, known.shape))
    return ScoreTable(
        video_id=tuple(np.repeat(videos, CLIPS_PER_VIDEO).tolist()),
        class_id=labels,
        clip_index=np.arange(len(labels), dtype=np.int64),
        probabilities=(odds / odds.sum(axis=1, keepdims=True)).astype(np.float32),
        classes=CLASSES,
    )


def history() -> tuple[PhaseRecord, ...]:
    """Two epochs of training and validation."""
    return tuple(
        PhaseRecord(purpose=purpose, epoch=epoch, metrics={"loss": 2.0 - epoch, "top1": 0.3, "video_top1": 0.4})
        for epoch in range(2)
        for purpose in ("train", "validation")
    )
