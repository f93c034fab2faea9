"""A linear probe that is solved: against scikit-learn, on any number of ranks, stopped and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from essp_common.artifacts import checkpoint, layout, scores
from essp_common.artifacts.manifest import OPTIMIZER_FILE
from essp_common.errors import PermanentError
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import Control
from essp_engine.learning.head_inputs import HeadInputs
from essp_engine.learning.models import Classifier, build, restore
from essp_engine.learning.randomness import seed_of
from tests.harness.refused import Refusal, refused
from tests.harness.small_networks import S3D_SIDE, small_s3d
from tests.harness.training_jobs import (
    CLASSES,
    ClipPosition,
    Running,
    Stage,
    final_weights,
    in_parts,
    last_training_state,
    phase_plans,
    train,
)
from tests.lanes import often

CROP = 16


def job(path: Path, epochs: int = 2, model: str = "small", frames: int = 2, **training: Any) -> JobSpec:
    own = {
        "stream": "s",
        "model": model,
        "probe": {"penalty": 0.1, "augment": True},
        "batch_size": 4,
        "threads": 1,
        "augment": {"crop": CROP, "scales": [1.0], "evaluation_scale": 0.8, "flip": False},
        "checkpoint": {"parallel": "thread"},
    }
    return JobSpec.model_validate(
        {
            "name": "tiny",
            "output": path.as_uri(),
            "epochs": epochs,
            "clip": {"frames": 3},
            "streams": {"s": {"feature": "rgb", "params": {"frames": frames}}},
            "trainers": {"one": own | training},
        }
    )


def stage_of(spec: JobSpec) -> Stage:
    return Stage(spec, phase_plans(spec.epochs, train=12))


def trained(spec: JobSpec, positions: list[ClipPosition] | None = None, ranks: int = 1) -> Stage:
    stage = stage_of(spec)
    train(stage, positions, ranks=ranks)
    return stage


def model_of(stage: Stage) -> Classifier:
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.final
    model = restore(stage.store, manifest)
    assert isinstance(model, Classifier)
    return model.eval()


def held(stage: Stage) -> dict[str, np.ndarray]:
    """The sample at the end of the last training phase."""
    manifest = checkpoint.read(stage.store, "one", checkpoint.steps(stage.store, "one")[-2])
    return checkpoint.load_arrays(stage.store, manifest)[OPTIMIZER_FILE]


def probabilities_of(stage: Stage, vectors: np.ndarray) -> np.ndarray:
    """What the saved network makes of what its last layer reads."""
    *_, (_, head) = [pair for pair in model_of(stage).backbone.named_modules() if isinstance(pair[1], torch.nn.Linear)]
    logits = torch.from_numpy(vectors) @ head.weight.double().T + head.bias.double()
    found: np.ndarray = logits.softmax(dim=1).detach().numpy()
    return found


def test_the_last_layer_is_that_of_scikit_learn(tmp_path: Path) -> None:
    stage = trained(job(tmp_path))
    sample = held(stage)
    vectors, known = sample["clips.rows"].astype(np.float64), sample["clips.owners"][:, 1]
    assert len(vectors) == 24
    spread = vectors.std(axis=0)
    assert not spread.all()  # some numbers of a network say nothing
    scaled = (vectors - vectors.mean(axis=0)) / np.maximum(spread, 0.01 * spread.mean())
    reference = LogisticRegression(C=1 / (0.1 * len(vectors)), tol=1e-9, max_iter=10_000).fit(scaled, known)
    expected = reference.predict_proba(scaled)
    np.testing.assert_allclose(probabilities_of(stage, vectors), expected, atol=1e-3)


def test_the_network_stays_as_it_was_to_the_bit(tmp_path: Path) -> None:
    stage = trained(job(tmp_path))
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    before, after = build(manifest.model, seed_of("weights", 0)).state_dict(), model_of(stage).state_dict()
    assert before.keys() == after.keys()
    learned = [name for name in after if not torch.equal(after[name], before[name])]
    assert learned == list(after)[-2:]
    assert [len(after[name]) for name in learned] == [len(CLASSES)] * 2


def test_clips_are_learned_from_as_evaluation_sees_them_unless_other_views_are_asked_for(tmp_path: Path) -> None:
    def seen(name: str, probe: dict[str, Any], **views: Any) -> np.ndarray:
        stage = trained(job(tmp_path / name, 1, probe=probe, augment={"crop": CROP, **views}))
        return np.asarray(held(stage)["clips.rows"])

    varied = {"augment": True}
    whole = seen("whole", {}, evaluation_scale=1.0)
    assert np.array_equal(whole, seen("same", varied, scales=[1.0], flip=False))
    assert not np.array_equal(whole, seen("part", {}, evaluation_scale=0.5))
    assert not np.array_equal(whole, seen("mirrored", varied, scales=[1.0], flip=True))


@pytest.mark.parametrize("epochs", [1, 2])
def test_it_learns_and_scores_every_clip(tmp_path: Path, epochs: int) -> None:
    stage = trained(job(tmp_path, epochs))
    for purpose, epoch in (("validation", 0), ("validation", epochs - 1), ("test", epochs - 1)):
        table = scores.read(stage.store, layout.scores("one", purpose, epoch))
        assert table.clip_index.tolist() == list(range(6))
        assert (table.probabilities.argmax(axis=1) == table.class_id).all()
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    training = [record.metrics for record in manifest.history if record.purpose == "train"]
    assert all("lr" not in figures for figures in training)
    assert training[-1]["top1"] == 1
    assert stage.cache.usage().keys == 0


@pytest.mark.parametrize(
    ("model", "frames", "crop"),
    often([("mobilenet_v3_small", 1, 64), ("resnet18", 2, 32), ("mc3_18", 2, 17), ("s3d", 13, S3D_SIDE)], 1),
)
def test_the_last_layers_of_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, frames: int, crop: int
) -> None:
    """Linear or a convolution, with dropout of the network's own or before it: the logits are those of the sample."""
    small_s3d(monkeypatch)
    spec = job(tmp_path, 1, model, augment={"crop": crop, "scales": [1.0], "evaluation_scale": 1.0, "flip": False})
    spec = spec.model_copy(update={"clip": spec.clip.model_copy(update={"frames": frames})})
    stream = spec.streams["s"].model_copy(update={"params": {"frames": frames}})
    stage = Stage(spec.model_copy(update={"streams": {"s": stream}}), phase_plans(1, 3, 1, 0))
    stage.command(Control.START)
    pictures = {}
    for number, index in stage.every_position():
        level = 60 + 60 * (index % len(CLASSES) if number == 0 else 0)
        shape = (frames, crop, crop, 3)
        shown = np.random.default_rng([number, index]).integers(level, level + 60, shape, dtype=np.uint8)
        if number == 0:
            pictures[index] = shown
        stage.feed([(number, index)], frames=shown)
    with Running(stage) as running:
        running.join()
    assert running.error is None
    sample, network = held(stage), model_of(stage)
    inputs = HeadInputs(network)
    with torch.inference_mode():
        logits = network(torch.from_numpy(np.stack([pictures[index] for index in range(3)]))).logits.numpy()
    vectors = inputs.means(3).numpy()
    by_index = {int(owner[0]): row for owner, row in zip(sample["clips.owners"], sample["clips.rows"], strict=True)}
    np.testing.assert_allclose(vectors, [by_index[index] for index in range(3)], rtol=1e-3, atol=1e-4)
    assert logits.argmax(axis=1).tolist() == [0, 1, 2]


def test_it_holds_no_more_clips_than_it_may(tmp_path: Path) -> None:
    stage = trained(job(tmp_path, epochs=3, probe={"clips": 7, "augment": True}))
    assert len(held(stage)["clips.rows"]) == 7
    assert held(stage)["clips.seen"].tolist() == [36]


@pytest.mark.parametrize("ranks", often([3, 2], 1))
def test_any_number_of_ranks_learns_the_same(tmp_path: Path, ranks: int) -> None:
    """But for the rounding of a network that sees other clips at once."""
    one, several = trained(job(tmp_path / "one")), trained(job(tmp_path / "several"), ranks=ranks)
    assert np.array_equal(held(one)["clips.tickets"], held(several)["clips.tickets"])
    vectors = held(one)["clips.rows"].astype(np.float64)
    np.testing.assert_allclose(held(several)["clips.rows"], vectors, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(probabilities_of(several, vectors), probabilities_of(one, vectors), atol=1e-3)


@pytest.mark.parametrize(
    "parts",
    often([[(1, (0, 8)), (1, (2, 4)), (1, None)], [(1, (0, 4)), (1, None)], [(1, (2, 8)), (1, (3, 4)), (1, None)]], 1),
)
def test_stopped_and_resumed_is_as_never_stopped(tmp_path: Path, parts: list[tuple[int, ClipPosition | None]]) -> None:
    whole = trained(job(tmp_path / "whole"))
    parted = in_parts(lambda: stage_of(job(tmp_path / "parted")), parts)
    assert final_weights(parted) == final_weights(whole)
    assert last_training_state(parted) == last_training_state(whole)


def test_numbers_that_are_not_finite_end_the_training_with_the_field(tmp_path: Path) -> None:
    stage = Stage(job(tmp_path), phase_plans(1))
    stage.command(Control.START)
    stage.feed(stage.every_position(), frames=np.full((2, 20, 20, 3), np.nan, np.float32))
    with Running(stage) as running:
        running.join()
    assert isinstance(running.error, PermanentError)
    assert "trainers.one.probe: the last layer of the network reads numbers that are not finite" in str(running.error)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optimizer": {"lr": 0.1}}, ("trainers.one.optimizer", "conflict")),
        ({"freeze_epochs": 1}, ("trainers.one.freeze_epochs", "conflict")),
        ({"ema": 0.9}, ("trainers.one.ema", "conflict")),
        ({"augment": {"mixup": 0.2}}, ("trainers.one.augment.mixup", "conflict")),
        ({"augment": {"cutmix": 1}}, ("trainers.one.augment.cutmix", "conflict")),
        ({"probe": {}, "augment": {"flip": False}}, ("trainers.one.augment.flip", "conflict")),
        ({"probe": {}, "augment": {"erase": 0.2}}, ("trainers.one.augment.erase", "conflict")),
        ({"probe": {}, "augment": {"rand_augment": {}}}, ("trainers.one.augment.rand_augment", "conflict")),
        ({"checkpoint": {"bits": 8}}, ("trainers.one.checkpoint.bits", "conflict")),
        ({"model": "vlad", "augment": {}}, ("trainers.one.probe", "conflict")),
    ],
)
def test_what_means_nothing_to_a_probe_is_refused(tmp_path: Path, changes: dict[str, Any], said: Refusal) -> None:
    with refused(*said):
        job(tmp_path, **changes)


def test_a_probe_has_no_rate(tmp_path: Path) -> None:
    trainer = job(tmp_path).trainers["one"]
    assert not trainer.has_rate
    assert trainer.model_copy(update={"probe": None}).has_rate
