"""An encoder of descriptors that learns: against scikit-learn, on any number of ranks, stopped and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from essp_common.artifacts import checkpoint, layout, scores
from essp_common.artifacts.clip_features import with_features
from essp_common.artifacts.manifest import OPTIMIZER_FILE, Manifest
from essp_common.errors import PermanentError
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import EMBED, TRAIN, VALIDATION, Control, Fit, PhasePlan
from essp_engine.encoders.encoder import Encoder, fitted_encoder
from essp_engine.encoders.rows import descriptors_of, tickets
from essp_engine.learning.descriptors import DescriptorClassifier
from essp_engine.learning.models import restore
from tests.harness.training_jobs import (
    CLASSES,
    ClipPosition,
    Running,
    Stage,
    clip_frames,
    clip_ref,
    files_of,
    final_weights,
    in_parts,
    last_training_state,
    phase_plans,
    train,
)
from tests.lanes import often

FACTS = 10


def job(path: Path, model: str = "fisher_vector", epochs: int = 3, every: int = 0, **encoder: Any) -> JobSpec:
    settings = {"pca": 4, "centres": 3, "samples": 100, "clips": 16, "penalty": 0.01} | encoder
    return JobSpec.model_validate(
        {
            "name": "tiny",
            "output": path.as_uri(),
            "epochs": epochs,
            "clip": {"frames": 3},
            "streams": {"s": {"feature": "trajectories", "params": {"length": 2}}},
            "trainers": {
                "one": {
                    "stream": "s",
                    "model": model,
                    "encoder": settings,
                    "batch_size": 4,
                    "checkpoint": {"parallel": "thread", "every": every},
                }
            },
        }
    )


def stage_of(spec: JobSpec) -> Stage:
    return Stage(spec, phase_plans(spec.epochs, train=12))


def trained(spec: JobSpec, positions: list[ClipPosition] | None = None, ranks: int = 1) -> Stage:
    stage = stage_of(spec)
    train(stage, positions, ranks=ranks)
    return stage


def at_end_of(stage: Stage, epoch: int) -> DescriptorClassifier:
    """What it had learned at the end of a training phase."""
    number = 2 * epoch + 1
    found = next(
        manifest
        for step in checkpoint.steps(stage.store, "one")
        if (manifest := checkpoint.read(stage.store, "one", step)).position == (number, 0)
    )
    model = restore(stage.store, found)
    assert isinstance(model, DescriptorClassifier)
    return model


def descriptors(purpose: Any, epoch: int, index: int) -> np.ndarray:
    clip = clip_ref(PhasePlan(purpose=purpose, epoch=epoch), index)
    found: np.ndarray = descriptors_of(clip_frames(clip, "trajectories"), FACTS)
    return found


def labels(clips: int) -> np.ndarray:
    return np.arange(clips) % len(CLASSES)


@pytest.mark.parametrize("model", ["fisher_vector", "vlad", "bag_of_words"])
def test_it_learns_from_descriptors_and_scores_every_clip(tmp_path: Path, model: str) -> None:
    stage = trained(job(tmp_path, model, centres=8))
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.final
    assert manifest.model.encoder == stage.spec.trainers["one"].encoder
    assert manifest.best is not None
    assert manifest.best.metrics["video_top1"] == 1
    for purpose, epoch in (("validation", 0), ("validation", 2), ("test", 2)):
        table = scores.read(stage.store, layout.scores("one", purpose, epoch))
        assert table.clip_index.tolist() == list(range(6))
        np.testing.assert_allclose(table.probabilities.sum(axis=1), 1, atol=1e-6)
    losses = [record.metrics["loss"] for record in manifest.history if record.purpose == "train"]
    assert losses[-1] < 0.7 * np.log(len(CLASSES))
    assert stage.cache.usage().keys == 0


def test_it_tells_how_far_it_is_with_what_it_learns_between_phases(tmp_path: Path) -> None:
    stage = trained(job(tmp_path, epochs=2, centres=6))
    told = [(step.epoch, step.fit) for step in stage.reports("step") if step.HasField("fit")]
    fits: dict[tuple[int, str], list[Fit]] = {}
    for epoch, fit in told:
        fits.setdefault((epoch, fit.what), []).append(fit)
    assert list(fits) == [
        (0, "principal components"),
        (0, "centres"),
        (0, "a mixture of Gaussians"),
        (0, "vectors of its clips"),
        (0, "the span of its vectors"),
        (0, "a linear classifier"),
        (1, "the span of its vectors"),
        (1, "a linear classifier"),
    ]
    for first, *others in fits.values():
        assert [fit.done for fit in others] == [first.done + 1 + n for n in range(len(others))]
        assert first.left_s == 0
        assert all(fit.left_s >= 0 and fit.done <= fit.most == first.most for fit in others)


def test_the_codebook_is_that_of_the_sampled_rows_and_the_classifier_that_of_scikit_learn(tmp_path: Path) -> None:
    """Sample, encoder and classifier made again from the clips, the classifier by another program."""
    spec = job(tmp_path, samples=60, clips=20)
    spec = spec.model_copy(
        update={
            "trainers": {
                "one": spec.trainers["one"].model_copy(
                    update={"checkpoint": spec.trainers["one"].checkpoint.model_copy(update={"keep": 9})}
                )
            }
        }
    )
    model = at_end_of(trained(spec), 2)
    drawn = [
        (int(ticket), row)
        for index in range(12)
        for rows in [descriptors(TRAIN, 0, index)]
        for ticket, row in zip(tickets(f"0/0/{index}", len(rows)), rows, strict=True)
    ]
    assert len(drawn) > 60
    sample = np.array([row for _, row in sorted(drawn, key=lambda pair: pair[0])[:60]])
    expected = fitted_encoder("fisher_vector", sample, 4, 3, seed=0)
    for name, array in expected.arrays().items():
        np.testing.assert_allclose(model.get_buffer(name), array, rtol=1e-6, atol=1e-7, err_msg=name)

    encoder: Encoder = model.encoder
    clips = sorted((int(tickets(f"0/{epoch}/{index}", 1)[0]), epoch, index) for epoch in (1, 2) for index in range(12))
    kept = clips[:20]
    vectors = np.array([encoder(descriptors(TRAIN, epoch, index)) for _, epoch, index in kept])
    known = np.array([index % len(CLASSES) for *_, index in kept])
    reference = LogisticRegression(C=1 / (0.01 * len(kept)), tol=1e-9, max_iter=10_000).fit(vectors, known)
    validation = np.array([encoder(descriptors(VALIDATION, 2, index)) for index in range(6)])
    with torch.inference_mode():
        clip = clip_frames(clip_ref(PhasePlan(purpose=VALIDATION, epoch=2), 0), "trajectories")
        own = model(torch.from_numpy(clip)[None]).logits.softmax(dim=1).numpy()
    np.testing.assert_allclose(own, reference.predict_proba(validation[:1]), atol=1e-4)
    assert (reference.predict(vectors) == known).mean() > 0.9


def test_one_epoch_is_enough_if_the_sample_has_all_descriptors(tmp_path: Path) -> None:
    """The vectors of the sampled rows are then those of the clips, and are kept for the epochs that follow."""
    model = at_end_of(trained(job(tmp_path, epochs=1, samples=1000, clips=99)), 0)
    vectors = np.array([model.encoder(descriptors(TRAIN, 0, index)) for index in range(12)])
    reference = LogisticRegression(C=1 / (0.01 * 12), tol=1e-9, max_iter=10_000).fit(vectors, labels(12))
    scaled = np.column_stack([model.head.weight.numpy(), model.head.bias.numpy()])
    expected = np.column_stack([reference.coef_, reference.intercept_ - reference.intercept_.mean()])
    scaled[:, -1] -= scaled[:, -1].mean()
    np.testing.assert_allclose(scaled, expected, atol=2e-3)


@pytest.mark.parametrize(("epochs", "samples", "said"), [(1, 60, True), (2, 60, False), (1, 1000, False)])
def test_a_single_epoch_that_leaves_descriptors_out_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, epochs: int, samples: int, said: bool
) -> None:
    trained(job(tmp_path, epochs=epochs, samples=samples))
    assert any("give the job 2 epochs, or raise samples" in message for message in caplog.messages) == said


@pytest.mark.parametrize("ranks", often([3, 2], 1))
def test_any_number_of_ranks_learns_the_same_to_the_bit(tmp_path: Path, ranks: int) -> None:
    one, several = trained(job(tmp_path / "one")), trained(job(tmp_path / "several"), ranks=ranks)
    assert final_weights(several) == final_weights(one)
    assert last_training_state(several) == last_training_state(one)


@pytest.mark.parametrize(
    "parts",
    often(
        [
            [(2, (0, 4)), (3, (2, 8)), (1, None)],
            [(1, (2, 8)), (1, (3, 4)), (1, (4, 8)), (1, None)],
            [(1, (0, 4)), (1, None)],
            [(1, (0, 8)), (1, (2, 4)), (1, None)],
        ],
        1,
    ),
)
def test_stopped_and_resumed_is_as_never_stopped(tmp_path: Path, parts: list[tuple[int, ClipPosition | None]]) -> None:
    whole, parted = trained(job(tmp_path / "whole")), in_parts(lambda: stage_of(job(tmp_path / "parted")), parts)
    assert final_weights(parted) == final_weights(whole)
    assert last_training_state(parted) == last_training_state(whole)


def test_what_it_has_sampled_is_bounded_and_saved(tmp_path: Path) -> None:
    stage = trained(job(tmp_path, samples=50, clips=7, every=4))
    for step in checkpoint.steps(stage.store, "one"):
        manifest: Manifest = checkpoint.read(stage.store, "one", step)
        if manifest.final:
            continue
        held = checkpoint.load_arrays(stage.store, manifest)[OPTIMIZER_FILE]
        assert len(held.get("rows.rows", ())) <= 50
        assert len(held.get("clips.rows", ())) <= 7
    assert files_of(stage.store, manifest)


def test_clips_without_descriptors_are_scored_and_not_learned_from(tmp_path: Path) -> None:
    spec = job(tmp_path, epochs=1, samples=1000)
    stage = stage_of(spec)
    stage.command(Control.START)
    empty = [(0, 3), (1, 0), (2, 5)]
    for position in stage.every_position():
        stage.feed([position], frames=np.zeros((1, 16, 1, 16), np.float32) if position in empty else None)
    with Running(stage) as running:
        running.join()
    assert running.error is None
    model = at_end_of(stage, 0)
    table = scores.read(stage.store, layout.scores("one", "validation", 0))
    prior = torch.softmax(model.head.bias, 0).numpy()
    np.testing.assert_allclose(table.probabilities[0], prior, atol=1e-6)


def test_too_few_descriptors_end_the_job_with_the_field(tmp_path: Path) -> None:
    said = r"trainers\.one\.encoder: .* too few for 200 centres.*take fewer centres"
    with pytest.raises(PermanentError, match=said):
        trained(job(tmp_path, centres=200, samples=1000))


def test_a_job_without_any_descriptor_says_so(tmp_path: Path) -> None:
    stage = stage_of(job(tmp_path))
    stage.command(Control.START)
    stage.feed(stage.every_position(), frames=np.zeros((1, 16, 1, 16), np.float32))
    with Running(stage) as running:
        running.join()
    assert "no clip of the first epoch has a descriptor" in str(running.error)


def test_the_features_of_clips_are_the_vectors_that_the_classifier_reads(tmp_path: Path) -> None:
    spec = job(tmp_path)
    asking = spec.model_copy(update={"aggregation": spec.aggregation.model_copy(update={"features": True})})
    before = phase_plans(3, train=12)
    stage = Stage(asking, (*before[:-1], PhasePlan(purpose=EMBED, epoch=0, clips=6), before[-1]))
    train(stage)
    table = with_features(
        stage.cache, "tiny", "one", "embed", scores.read(stage.store, layout.scores("one", "embed", 2))
    )
    assert table.features is not None
    assert table.features.shape == (6, 3 * (2 * 4 + 1))
    np.testing.assert_allclose(np.linalg.norm(table.features.astype(np.float64), axis=1), 1, atol=1e-2)
