"""A training that learns labels each by itself: step by step against plain torch, on several ranks, and its scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from sklearn import metrics as sk
from torch.nn import functional

from essp_common.artifacts import checkpoint, layout, scores
from essp_common.artifacts.manifest import MODEL_FILE
from essp_common.errors import ConfigError
from essp_common.pb.v1.messages_pb2 import ClipRef, Control
from essp_engine.features.registry import layout_of
from essp_engine.learning import losses
from essp_engine.learning.augment import training_view
from essp_engine.learning.losses import Loss
from essp_engine.learning.mixing import blend_of
from essp_engine.learning.models import build
from essp_engine.learning.randomness import seed_of
from essp_trainer.assignment import Assignment
from tests.harness.rounding import TOLERANCE, distance
from tests.harness.training_jobs import CLASSES, Stage, clip_frames, clip_ref, files_of, job_spec, phase_plans, train
from tests.lanes import often
from tests.unit.essp_trainer.test_ranks import SKIPPED, apart

pytestmark = pytest.mark.slow


def labels_job(path: Path, **options: Any) -> Stage:
    """Well-conditioned, as the jobs of `test_ranks.py` are."""
    own = {"augment": {"crop": 32, "mixup": 0.4}, "optimizer": {"lr": 0.01}, "choose": "mAP"}
    spec = job_spec(path, **{**own, **options})
    return Stage(spec.model_copy(update={"data": spec.data.model_copy(update={"targets": "labels"})}), phase_plans(2))


def label_set(index: int) -> list[float]:
    """Of the clip at an index, as the harness says it."""
    return [float(index >> number & 1) for number in range(len(CLASSES))]


@pytest.mark.usefixtures("double_precision")
def test_each_step_is_binary_cross_entropy(tmp_path: Path) -> None:
    """With smoothing, weights of labels, blends, and a clip left out; some clips have no label."""
    stage = labels_job(tmp_path, dropout=0, label_smoothing=0.1, class_weights={"left": 2.0}, checkpoint={"keep": 9})
    plan, left_out = stage.plans[0], 2
    train(stage, skipped=[(0, left_out)])
    [name] = [each for each in checkpoint.steps(stage.store, "one") if each == plan.clips]
    manifest = checkpoint.read(stage.store, "one", name)
    found = safetensors.torch.load(files_of(stage.store, manifest)[MODEL_FILE])
    assert manifest.model.independent

    spec, view_layout = stage.spec.trainers["one"], layout_of("rgb")
    model = build(manifest.model, seed_of("weights", 0)).train()
    rates = spec.optimizer
    optimizer = torch.optim.SGD(
        model.parameters(), lr=rates.lr, momentum=rates.momentum, weight_decay=rates.weight_decay
    )
    weights = torch.tensor([2.0, 1.0, 1.0])
    right = 0
    for begin in range(0, plan.clips, spec.batch_size):
        indices = [i for i in range(begin, min(begin + spec.batch_size, plan.clips)) if i != left_out]
        refs = [clip_ref(plan, index) for index in indices]
        shown = [clip_frames(ref, "rgb")[[0, 2]] for ref in refs]
        views = [
            training_view(s, spec.augment, view_layout, 0, r.epoch, r.index) for s, r in zip(shown, refs, strict=True)
        ]
        exact = (torch.from_numpy(np.stack(views)).to(model.mean.dtype) - model.mean) / model.std
        blend = blend_of(spec.augment, 0, plan.epoch, begin)
        assert blend is not None
        target = torch.tensor([label_set(index) for index in indices])
        logits = model(blend.share * exact + (1 - blend.share) * exact.flip(0)).logits
        soft = blend.share * target + (1 - blend.share) * target.flip(0)
        each = functional.binary_cross_entropy_with_logits(logits, soft * 0.9 + 0.05, pos_weight=weights)
        best, dominant = logits.argmax(dim=1), target if blend.share >= 0.5 else target.flip(0)
        right += int(sum(dominant[row, column] for row, column in enumerate(best.tolist())))
        optimizer.zero_grad()
        each.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), rates.clip_grad_norm)
        optimizer.step()
    assert distance(found, {name: tensor for name, tensor in model.state_dict().items() if name in found}) < TOLERANCE
    [report] = [r for r in stage.reports("phase_report") if r.purpose == plan.purpose and r.epoch == 0]
    assert report.metrics["top1"] == pytest.approx(right / (plan.clips - 1))


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(("ranks", "batch_size"), often([(3, 2), (2, 4)], 1))
def test_any_number_of_ranks_learns_the_same(tmp_path: Path, ranks: int, batch_size: int) -> None:
    stages = [labels_job(tmp_path / str(count), batch_size=batch_size) for count in (1, ranks)]
    for stage, count in zip(stages, (1, ranks), strict=True):
        train(stage, ranks=count, skipped=SKIPPED)
    assert apart(*stages) < TOLERANCE
    tables = [scores.read(stage.store, layout.scores("one", "validation", 1)) for stage in stages]
    assert np.array_equal(tables[0].truth, tables[1].truth)


def test_scores_and_figures_are_those_of_the_labels(tmp_path: Path) -> None:
    stage = labels_job(tmp_path)
    train(stage)
    table = scores.read(stage.store, layout.scores("one", "validation", 1))
    assert table.labels is not None
    assert table.labels.tolist() == [[bool(has) for has in label_set(index)] for index in table.clip_index.tolist()]
    [report] = [r for r in stage.reports("phase_report") if r.purpose == stage.plans[1].purpose and r.epoch == 1]
    present = table.labels.any(axis=0)
    precisions = sk.average_precision_score(table.labels[:, present], table.probabilities[:, present], average=None)
    assert report.metrics["mAP"] == pytest.approx(np.mean(precisions))
    assert report.metrics["loss"] == pytest.approx(
        np.mean(
            [
                sk.log_loss(column, given, labels=[False, True])
                for column, given in zip(table.labels.T, table.probabilities.T.astype(float), strict=True)
            ]
        )
    )
    assert "mean_class" not in report.metrics


def test_a_loss_of_a_package_gives_one_number_a_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    def squared(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (logits.sigmoid() - target).square().mean(dim=1)

    def named(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Loss:
        monkeypatch.setattr(losses, "LOSSES_OF_PACKAGES", SimpleNamespace(load=lambda name, code: function))
        return losses.loss("of_a_package", independent=True)

    monkeypatch.setattr(losses, "known_loss", lambda name, code: name)
    logits, target = torch.tensor([[0.0, 9.0], [0.0, -9.0]]), torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    assert float(named(squared)(logits, target)) == pytest.approx(0.25, abs=1e-3)
    with pytest.raises(ConfigError, match=r"gave \(2, 2\) for 2 clips"):
        named(torch.sub)(logits, target)


@pytest.mark.parametrize("targets", ["class", "labels"])
def test_clips_of_classes_or_labels_that_the_job_does_not_have_are_refused(tmp_path: Path, targets: str) -> None:
    """Where labels are learned, the classes of the catalog are others; their numbers are stored in 32 bits."""
    stage = labels_job(tmp_path)
    spec = stage.spec.model_copy(update={"data": stage.spec.data.model_copy(update={"targets": targets})})
    assignment = Assignment.of(Stage(spec, stage.plans).control(Control.START), "one")
    few, many, most = len(CLASSES) - 1, len(CLASSES), 2**31
    fits = {
        (c, label): assignment.fits(ClipRef(class_id=c, labels=[label]))
        for c in (few, many, most)
        for label in (few, many)
    }
    if targets == "class":
        assert fits == {(c, label): c == few for c, label in fits}
    else:
        assert fits == {(c, label): c < most and label == few for c, label in fits}
