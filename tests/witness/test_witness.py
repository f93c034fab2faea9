"""The trainer against an independent witness: `loop.py` shares only the plan and the initial weights with ESSP."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor

from essp.catalog.build import BuildOptions, build
from essp.embedded.composition import Embedded
from essp_common.artifacts.manifest import ModelDescription
from essp_common.catalog.file import read_catalog
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from essp_engine.features.registry import layout_of
from essp_engine.learning import models
from essp_engine.learning.randomness import seed_of
from essp_engine.planning.phases import Phases
from essp_trainer.model.step_result import LaunchedStep, StepResult
from essp_trainer.model.training import Training
from tests.harness.embedded_jobs import complete
from tests.harness.journeys import make_videos
from tests.harness.rounding import STORED, in_double_precision
from tests.witness import answers, loop

RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "steps": {"optimizer": {"lr": 0.05, "steps": [1], "gamma": 0.2}},
    "cosine": {"optimizer": {"lr": 0.05, "schedule": "cosine", "warmup": 0.5, "nesterov": True}},
    "smoothed": {"label_smoothing": 0.1},
    "averaged": {"ema": 0.9},
    "clipped": {"optimizer": {"lr": 0.05, "clip_grad_norm": 0.05}},
    "undecayed": {"optimizer": {"lr": 0.05, "decay_all": False, "weight_decay": 0.1}},
    "scaled": {"augment": {"crop": 24, "evaluation_scale": 0.7}},
    "flow": {"stream": "flow"},
    "flow_recipe": {"stream": "flow", "ema": 0.5, "optimizer": {"lr": 0.02, "schedule": "cosine", "nesterov": True}},
}
BOUND = 0.1
CLASSES = 2


def job_on(root: Path) -> JobSpec:
    """One trainer for each recipe."""
    make_videos(root / "videos")
    build(f"file://{root}/videos", f"file://{root}/catalog.parquet", ("file:///",), BuildOptions("folders"))
    own = {"stream": "rgb", "batch_size": 4, "threads": 1, "dropout": 0.0, "augment": {"crop": 32}}
    return JobSpec.model_validate(
        {
            "name": "witnessed",
            "output": f"file://{root}/out",
            "data": {"catalog": f"file://{root}/catalog.parquet"},
            "clip": {"frames": 4, "resize": {"mode": "crop", "height": 40, "width": 40}},
            "sampling": {"clips_per_epoch": 14, "clips_per_video": 2, "seed": 3},
            "streams": {
                "rgb": {"params": {"frames": 2}},
                "flow": {"feature": "flow", "params": {"method": "dis", "length": 3, "bound": BOUND}},
            },
            "trainers": {name: own | recipe for name, recipe in RECIPES.items()},
            "epochs": 3,
            "limits": {"coupled": True},
        }
    )


class Witnessed:
    """What a run of the job gave, and what the witness needs to give the same."""

    def __init__(
        self, spec: JobSpec, losses: dict[str, list[float]], figures: dict[str, list[dict[str, float]]]
    ) -> None:
        self.spec = spec
        self.losses = losses
        self.figures = figures
        """Of the validation of each epoch."""
        stores = Stores(("file:///",))
        self._phases = Phases(spec, read_catalog(*stores.resolve(spec.data.catalog)))

    def clips(self, purpose: int, epoch: int) -> list[loop.Clip]:
        """The plan of one phase."""
        number = self._phases.order.index((purpose, epoch))
        plan, rows = self._phases.plan(number), self._phases.view(number).rows
        planned = [plan.clip(index) for index in range(len(plan))]
        return [loop.Clip(rows[c.video].uri.removeprefix("file://"), c.class_id, c.first_frame) for c in planned]

    def weights(self, name: str) -> list[Tensor]:
        """The initial weights of a trainer."""
        feature = self.spec.streams[self.spec.trainers[name].stream].feature
        with in_double_precision():
            made = models.build(
                ModelDescription(
                    name="small",
                    feature=feature,
                    layout=layout_of(feature),
                    channels=3 if feature == "rgb" else 6,
                    classes=("left", "right"),
                    dropout=0.0,
                    crop=32,
                    evaluation_scale=1.0,
                ),
                seed_of("weights", self.spec.sampling.seed),
            )
        return list(made.state_dict().values())

    def settings(self, name: str) -> loop.Settings:
        """What the job says of a trainer."""
        trainer = self.spec.trainers[name]
        flow = {"length": 3, "bound": BOUND} if trainer.stream == "flow" else None
        return loop.Settings(40, 4, flow, 2, self.spec.epochs, self.spec.sampling.seed, trainer.model_dump())


@pytest.fixture(scope="module")
def witnessed(tmp_path_factory: pytest.TempPathFactory) -> Witnessed:
    """All recipes, trained in one job in double precision."""
    spec = job_on(tmp_path_factory.mktemp("witness"))
    losses: dict[str, list[float]] = defaultdict(list)
    step = Training.step

    def noted(training: Training, *arguments: Any) -> StepResult | LaunchedStep:
        result = step(training, *arguments)
        assert isinstance(result, StepResult)
        [name] = [name for name, trainer in spec.trainers.items() if trainer == training._spec]
        losses[name].append(result.loss)
        return result

    with pytest.MonkeyPatch.context() as patch, in_double_precision():
        patch.setattr(Training, "step", noted)
        with Embedded(spec, Settings()) as job:
            status = complete(job)
    figures = {t.name: [r.metrics for r in t.reports if r.purpose == "validation"] for t in status.trainers}
    return Witnessed(spec, losses, figures)


@pytest.mark.processes
@pytest.mark.parametrize("name", RECIPES)
def test_an_independent_loop_gives_the_same_losses_and_figures(witnessed: Witnessed, name: str) -> None:
    """Losses in double precision; figures come from probabilities that are stored in single precision."""
    train = [witnessed.clips(TRAIN, epoch) for epoch in range(witnessed.spec.epochs)]
    validation = witnessed.clips(VALIDATION, 0)
    found = list(loop.training(witnessed.weights(name), train, validation, witnessed.settings(name), classes=CLASSES))
    assert witnessed.losses[name] == pytest.approx([loss for losses, _ in found for loss in losses], rel=1e-9)
    assert len(witnessed.figures[name]) == witnessed.spec.epochs
    for (_, expected), figures in zip(found, witnessed.figures[name], strict=True):
        assert {key: figures[key] for key in expected} == pytest.approx(expected, rel=4 * STORED, abs=4 * STORED)


@pytest.mark.parametrize("witness", [loop, answers])
def test_the_witness_is_short_and_knows_nothing_of_essp(witness: ModuleType) -> None:
    lines = Path(str(witness.__file__)).read_text(encoding="utf-8").splitlines()
    code = [line for line in lines if line.strip() and not line.strip().startswith(("#", '"""'))]
    assert len(code) < 150
    assert not [line for line in lines if line.startswith(("import essp", "from essp"))]
