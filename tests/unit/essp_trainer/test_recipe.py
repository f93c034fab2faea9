"""How weights move: schedules against torch's, what decays, averages, half precision; and that all of it resumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, MultiStepLR, SequentialLR

from essp_common.artifacts import checkpoint
from essp_common.artifacts.manifest import MODEL_FILE, OPTIMIZER_FILE, TRAINED_FILE, Manifest, ModelDescription
from essp_common.errors import ConfigError
from essp_common.job.feature_layout import COLOURS
from essp_common.job.position import Position
from essp_common.job.trainer_spec import OptimizerSpec, ProbeSpec, TrainerSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, Control, PhasePlan
from essp_engine.learning.augment import training_view
from essp_engine.learning.losses import loss
from essp_engine.learning.models import Classifier, build, load_state
from essp_engine.learning.network import Network
from essp_engine.learning.networks import NETWORKS, network
from essp_engine.learning.randomness import seed_of
from essp_trainer.model import training as training_module
from essp_trainer.model.ema import Ema
from essp_trainer.model.optimizer import Optimizer, _groups
from essp_trainer.model.schedule import learning_rate, rate_at
from essp_trainer.model.step_result import Diverged
from tests.harness.refused import Refusal, refused
from tests.harness.rounding import TOLERANCE, UNIT, distance
from tests.harness.training_jobs import (
    Running,
    Stage,
    clip_frames,
    clip_ref,
    files_of,
    job_spec,
    phase_plans,
    train,
)
from tests.lanes import often

pytestmark = pytest.mark.slow


def torch_rates(make: Any, epochs: int) -> Iterator[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
    scheduler = make(optimizer)
    for _ in range(epochs):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()


def test_steps_are_those_of_torch() -> None:
    rates = OptimizerSpec(lr=0.4, steps=(3, 7), gamma=0.5)
    expected = list(torch_rates(lambda optimizer: MultiStepLR(optimizer, [3, 7], 0.5), 10))
    assert [learning_rate(rates, 10, epoch) for epoch in range(10)] == pytest.approx(expected)
    assert learning_rate(rates, 10, 2.99) == 0.4


def test_a_cosine_after_a_warm_up_is_that_of_torch() -> None:
    """As torchvision's references chain them, for each epoch; here the rate moves within an epoch, too."""
    rates = OptimizerSpec(lr=0.4, schedule="cosine", warmup=4)

    def chained(optimizer: torch.optim.Optimizer) -> SequentialLR:
        parts = [LinearLR(optimizer, 0.01, total_iters=4), CosineAnnealingLR(optimizer, T_max=16)]
        return SequentialLR(optimizer, parts, milestones=[4])

    expected = list(torch_rates(chained, 20))
    assert [learning_rate(rates, 20, epoch) for epoch in range(20)] == pytest.approx(expected)
    within = [learning_rate(rates, 20, 4 + step / 10) for step in range(160)]
    assert within == sorted(within, reverse=True)
    assert len(set(within)) == len(within)
    assert learning_rate(rates, 20, 20) == pytest.approx(0)
    assert learning_rate(rates, 20, 21) == pytest.approx(0), "an epoch that was added does not raise it again"


def test_rates_by_updates_are_those_of_torch_step_by_step() -> None:
    training = TrainerSpec(
        stream="rgb", batch_size=4, optimizer=OptimizerSpec(lr=0.4, unit="updates", warmup=5, steps=(9, 12), gamma=0.5)
    )

    def chained(optimizer: torch.optim.Optimizer) -> SequentialLR:
        parts = [LinearLR(optimizer, 0.01, total_iters=5), MultiStepLR(optimizer, [4, 7], 0.5)]
        return SequentialLR(optimizer, parts, milestones=[5])

    plans = [PhasePlan(epoch=epoch, clips=18) for epoch in range(3)]  # 4 batches of 4 and one of 2
    found = [rate_at(training, 3, plan, begin) for plan in plans for begin in range(0, plan.clips, 4)]
    assert found == pytest.approx(list(torch_rates(chained, 15)))
    cosine = training.optimizer.model_copy(update={"schedule": "cosine"})
    last = rate_at(training.model_copy(update={"optimizer": cosine}), 3, plans[2], 16)
    assert last == pytest.approx(0.4 * (1 + math.cos(math.pi * 9 / 10)) / 2)


def test_weights_of_classes_are_those_of_torch() -> None:
    logits, target = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 1, 1])
    weights = torch.tensor([1.0, 4.0, 0.0])
    rounding = 16 * torch.finfo(torch.float32).eps  # a few additions and products of each, in another order
    found = loss("cross_entropy", 0.0, weights)(logits, target)
    each = functional.cross_entropy(logits, target, reduction="none")
    assert found.item() == pytest.approx((each * weights[target]).sum().item(), rel=rounding)
    smooth = loss("cross_entropy", 0.1, weights)(logits, target)
    expected = functional.cross_entropy(logits, target, weights, reduction="none", label_smoothing=0.1)
    assert smooth.item() == pytest.approx(expected.sum().item(), rel=rounding)


def test_a_warm_up_as_long_as_the_training_is_no_division_by_zero() -> None:
    rates = OptimizerSpec(lr=0.4, schedule="cosine", warmup=2)
    assert learning_rate(rates, 2, 1) == pytest.approx(0.4 * 0.505)


def small(seed: int = 0) -> Classifier:
    return build(job_model(), seed)


def job_model() -> ModelDescription:
    return ModelDescription(
        name="small", feature="rgb", layout=COLOURS, channels=3, classes=("a", "b", "c"), dropout=0.5, crop=16,
        evaluation_scale=0.875,
    )  # fmt: skip


def test_only_weights_decay_where_that_is_asked_for() -> None:
    """Without a gradient nothing but the decay moves a parameter."""
    moved = {}
    for decay_all in (True, False):
        model = small()
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer = Optimizer(model, OptimizerSpec(weight_decay=0.5, decay_all=decay_all), scaling=False)
        optimizer.start(0.1)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step(torch.tensor(True))
        moved[decay_all] = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert {name for name, p in small().named_parameters() if p.ndim > 1} == moved[False]
    assert {name for name, p in small().named_parameters() if p.any()} == moved[True] > moved[False]


@pytest.mark.parametrize(
    ("name", "tables"),
    [("swin3d_t", {"relative_position_bias_table"}), ("mvit_v2_s", {"rel_pos_h", "rel_pos_w", "rel_pos_t"})],
)
def test_of_transformers_weights_decay_and_no_tables_of_positions(name: str, tables: set[str]) -> None:
    """Those of torchvision have nothing else but weights of more than one dimension."""
    with torch.device("meta"):
        backbone = network(name).make()
    model = nn.ModuleDict({"backbone": backbone})
    decayed = {
        id(parameter)
        for group in _groups(cast("Classifier", model), OptimizerSpec(weight_decay=0.5, decay_all=False))
        for parameter in cast("list[nn.Parameter]", group["params"])
        if group["weight_decay"]
    }
    parameters = {path: p for path, p in backbone.named_parameters() if p.ndim > 1}
    spared = {path.rpartition(".")[2] for path, p in parameters.items() if id(p) not in decayed}
    assert spared == tables
    assert {path.rpartition(".")[2] for path, p in parameters.items() if id(p) in decayed} == {"weight"}
    assert len(decayed) == sum(path.endswith("weight") for path in parameters)


def test_layers_have_rates_of_their_own() -> None:
    """The longest path that fits counts, and a path is whole: `1` is not the beginning of `17`."""
    model, before = small(), small().state_dict()
    layers = {"": 0.5, "1": 0.0, "17": 2.0, "17.1.bias": 1.0}
    optimizer = Optimizer(model, OptimizerSpec(weight_decay=0.0, layers=layers), scaling=False)
    optimizer.start(0.125)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(torch.tensor(True))
    factors = {"17.1.weight": 2.0, "17.1.bias": 1.0, "1.weight": 0.0, "1.bias": 0.0}
    for name, parameter in model.named_parameters():
        moved = 0.125 * factors.get(name.removeprefix("backbone."), 0.5)
        torch.testing.assert_close(before[name] - parameter, torch.full_like(parameter, moved))
    with refused("optimizer.layers", "unknown"):
        Optimizer(model, OptimizerSpec(layers={"features": 0.1}), scaling=False)


@pytest.mark.usefixtures("double_precision")
def test_the_average_is_the_recurrence() -> None:
    model, twin = small(1), small(1)
    ema = Ema(twin, 0.5)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.Generator().manual_seed(3)
    for update in range(1, 20):
        for parameter in model.parameters():
            parameter.data.add_(torch.randn(parameter.shape, generator=generator) / 10)
        ema.update(model, update)
        decay = min(0.5, (1 + update) / (10 + update))
        for name, tensor in model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * tensor if tensor.is_floating_point() else tensor
    # Each of the 19 updates rounds four times, relative to weights of a few at most; no update amplifies.
    assert distance(twin.state_dict(), expected) < 19 * 4 * 10 * UNIT


def tied() -> nn.Module:
    convolution = nn.Conv2d(3, 3, 3, padding=1)
    return nn.Sequential(convolution, convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))


def test_weights_that_a_network_uses_twice_are_averaged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", Network(tied, "0", "4"))
    model, twin = small(), small()
    before = {name: tensor.clone() for name, tensor in twin.state_dict().items()}
    for parameter in model.parameters():
        parameter.data.add_(1)
    Ema(twin, 0.75).update(model, 100)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(tensor, before[name] + 0.25)


def masked() -> nn.Module:
    network = nn.Sequential(nn.Conv2d(3, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    network.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
    return network


def test_masks_of_infinities_are_not_averaged_to_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", Network(masked, "0", "3"))
    model, twin = small(), small()
    ema = Ema(twin, 0.75)
    for update in (1, 2):
        ema.update(model, update)
    assert torch.equal(twin.backbone.get_buffer("mask"), model.backbone.get_buffer("mask"))


RECIPES: dict[str, dict[str, Any]] = {
    "cosine": {"optimizer": {"lr": 0.05, "schedule": "cosine", "warmup": 0.5, "nesterov": True}},
    "smoothed": {"label_smoothing": 0.1, "optimizer": {"lr": 0.05, "decay_all": False}},
    "of classes": {"class_weights": {"left": 3, "still": 0.5}},
    "by updates": {"optimizer": {"lr": 0.05, "unit": "updates", "warmup": 2, "steps": [4]}},
    "adamw": {"optimizer": {"kind": "adamw", "lr": 0.002, "betas": [0.8, 0.99], "weight_decay": 0.05}},
    "head first": {"freeze_epochs": 1},
    "thawed": {"freeze_epochs": 1, "optimizer": {"kind": "adamw", "lr": 0.002}},
    "by layers": {"optimizer": {"lr": 0.05, "layers": {"": 0.1, "17": 1}}},
    "passes": {"micro_batch": 2},
    "averaged": {"ema": 0.9},
    "float16": {"amp": True},
    "crops": {"augment": {"crop": 16, "evaluation_crops": 10}},
}
EVERYDAY = ("averaged", "float16", "thawed")
"""Each of which keeps something else in its checkpoints. The others resume at night."""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"optimizer": {"kind": "adamw", "nesterov": True}}, ("trainers.one.optimizer.nesterov", "conflict")),
        ({"optimizer": {"betas": [0.8, 0.9]}}, ("trainers.one.optimizer.betas", "conflict")),
        ({"optimizer": {"nesterov": True, "momentum": 0}}, ("trainers.one.optimizer.nesterov", "conflict")),
        (
            {"optimizer": {"kind": "adamw"}, "checkpoint": {"bits": 8, "optimizer": "quantized"}},
            ("trainers.one.checkpoint.optimizer", "conflict"),
        ),
        ({"checkpoint": {"every": 100, "overhead": 0.01}}, ("trainers.one.checkpoint.overhead", "conflict")),
    ],
)
def test_fields_that_contradict_each_other_are_refused(tmp_path: Path, fields: dict[str, Any], said: Refusal) -> None:
    with refused(*said):
        job_spec(tmp_path, **fields)


@pytest.fixture
def half_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixed precision as on a GPU without bfloat16; autocast and gradient scaling are torch's, as there."""
    monkeypatch.setattr(training_module, "half_type", lambda wanted, device: torch.float16 if wanted else None)


def newest(stage: Stage) -> Manifest:
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    return manifest


def all_files(stage: Stage) -> dict[str, bytes]:
    """Everything at the end of the last TRAIN pass, and the final weights."""
    last = checkpoint.read(stage.store, "one", checkpoint.steps(stage.store, "one")[-2])
    final = files_of(stage.store, newest(stage))[MODEL_FILE]
    return files_of(stage.store, last) | {"final": final}


@pytest.fixture(scope="module")
def plain_weights(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Of a training without any recipe."""
    plain = Stage(job_spec(tmp_path_factory.mktemp("plain")), phase_plans(2))
    train(plain)
    return all_files(plain)[MODEL_FILE]


@pytest.mark.usefixtures("half_on_cpu")
@pytest.mark.parametrize("recipe", often(sorted(RECIPES, key=lambda recipe: recipe not in EVERYDAY), len(EVERYDAY)))
def test_every_recipe_resumes_to_the_bit(tmp_path: Path, recipe: str, plain_weights: bytes) -> None:
    """In the first epoch; what changes with the second, within that one."""
    stop = Position(2, 4) if recipe == "thawed" else Position(0, 4)
    whole = Stage(job_spec(tmp_path / "whole", **RECIPES[recipe]), phase_plans(2))
    train(whole)
    parts = Stage(job_spec(tmp_path / "parts", **RECIPES[recipe]), phase_plans(2))
    parts.command(Control.START)
    before = [position for position in parts.every_position() if position < stop]
    parts.feed(before)
    with Running(parts) as running:
        parts.wait_for_trained(len(before))
    assert running.error is None
    assert newest(parts).position == stop
    again = Stage(parts.spec, parts.plans)
    train(again, [position for position in again.every_position() if position >= stop])
    assert all_files(again) == all_files(whole)
    same = plain_weights == all_files(whole)[MODEL_FILE]
    assert same == (recipe == "crops"), "the recipe does something, and evaluation changes no weight"


def test_frozen_layers_stand_and_the_last_one_learns(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path, freeze_epochs=2, checkpoint={"keep": 9}), phase_plans(3))
    train(stage)
    *epochs, _ = checkpoint.steps(stage.store, "one")
    first, second, third = (
        files_of(stage.store, checkpoint.read(stage.store, "one", step))[MODEL_FILE] for step in epochs[-3:]
    )
    changed = [
        {name for name, tensor in safetensors.torch.load(later).items() if not torch.equal(tensor, before[name])}
        for before, later in ((safetensors.torch.load(first), second), (safetensors.torch.load(second), third))
    ]
    assert {name.rpartition(".")[0] for name in changed[0]} == {"backbone.17.1"}
    assert len(changed[1]) > 10, "then all of them"


def test_layers_at_the_rate_0_stand_as_frozen_ones_do(tmp_path: Path) -> None:
    """Neither their statistics nor their gradients count. In the small network, dropout is before the last layer."""
    limit = {"lr": 0.05, "clip_grad_norm": 0.05}
    of_rate = Stage(job_spec(tmp_path / "rate", optimizer=limit | {"layers": {"": 0, "17": 1}}), phase_plans(2))
    frozen = Stage(job_spec(tmp_path / "frozen", optimizer=limit, freeze_epochs=2), phase_plans(2))
    train(of_rate)
    train(frozen)
    assert all_files(of_rate)[MODEL_FILE] == all_files(frozen)[MODEL_FILE]


def fixed_first() -> nn.Module:
    """A network that does not learn its first layer."""
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)]
    layers[0].requires_grad_(False)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_the_network_has_fixed_is_not_thawed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", Network(fixed_first, "0", "5"))
    stage = Stage(job_spec(tmp_path, freeze_epochs=1, checkpoint={"keep": 9}), phase_plans(3, train=8))
    train(stage, ranks=ranks)
    *epochs, _ = checkpoint.steps(stage.store, "one")
    first, *_, last = (
        safetensors.torch.load(files_of(stage.store, checkpoint.read(stage.store, "one", step))[MODEL_FILE])
        for step in epochs
    )
    assert {n for n in first if torch.equal(first[n], last[n])} == {"backbone.0.weight", "backbone.0.bias"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"optimizer": {"layers": {"": 0}}}, ("optimizer.layers", "conflict")),
        ({"freeze_epochs": 1, "optimizer": {"layers": {"17": 0}}}, ("freeze_epochs", "conflict")),
    ],
)
def test_a_training_in_which_nothing_learns_is_refused(tmp_path: Path, fields: dict[str, Any], said: Refusal) -> None:
    stage = Stage(job_spec(tmp_path, **fields), phase_plans(1))
    with refused(*said):
        train(stage)


class Counted(nn.Module):
    """A layer in the middle of a network: it writes down how many pictures pass, and whether a gradient comes back."""

    passed: ClassVar[list[tuple[str, int, bool]]] = []

    def forward(self, x: Tensor) -> Tensor:
        phase = "evaluated" if torch.is_inference_mode_enabled() else "trained"
        Counted.passed.append((phase, len(x), x.requires_grad))
        return x


def counted() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Counted(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("frozen", [2, 1])
def test_a_linear_probe_computes_the_features_of_each_clip_once_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: int
) -> None:
    """Forward alone: nothing of the frozen layers is kept for a backward pass. Two frames of each of ten clips."""
    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", Network(counted, "0", "5"))
    monkeypatch.setattr(Counted, "passed", [])
    train(Stage(job_spec(tmp_path, epochs=2, freeze_epochs=frozen), phase_plans(2, train=10)))
    passed = [(pictures, backward) for phase, pictures, backward in Counted.passed if phase == "trained"]
    epochs = passed[: len(passed) // 2], passed[len(passed) // 2 :]
    assert [sum(pictures for pictures, _ in epoch) for epoch in epochs] == [2 * 10, 2 * 10]
    assert [{backward for _, backward in epoch} for epoch in epochs] == [{False}, {frozen == 1}]
    assert sum(pictures for phase, pictures, _ in Counted.passed if phase == "evaluated") == 2 * (6 + 6 + 6)


def test_a_probe_computes_the_features_of_each_clip_once_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none again where it is solved, at the end of the epoch. Two frames of each clip, four clips a batch."""
    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", Network(counted, "0", "5"))
    monkeypatch.setattr(Counted, "passed", [])
    spec = job_spec(tmp_path, epochs=2)
    probe = TrainerSpec(stream="s", model="small", probe=ProbeSpec(), batch_size=4, threads=1, augment={"crop": 16})
    train(Stage(spec.model_copy(update={"trainers": {"one": probe}}), phase_plans(2, train=10, validation=6, test=6)))
    ten, six = [8, 8, 4], [8, 4]
    assert [pictures for _, pictures, _ in Counted.passed] == [*ten, *six, *ten, *six, *six]
    assert {(phase, backward) for phase, _, backward in Counted.passed} == {("evaluated", False)}


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("decay_all", often([False, True], 1))
def test_steps_with_adamw_are_those_of_torch(tmp_path: Path, decay_all: bool) -> None:
    """Of a trainer, over two epochs, with a clip left out."""
    own = {"kind": "adamw", "lr": 0.002, "betas": [0.8, 0.99], "weight_decay": 0.3, "decay_all": decay_all}
    spec = job_spec(tmp_path, dropout=0, augment={"crop": 32}, optimizer=own, checkpoint={"keep": 9})
    stage, left_out = Stage(spec, phase_plans(2)), 2
    train(stage, skipped=[(0, left_out)])
    step = checkpoint.steps(stage.store, "one")[-2]
    manifest = checkpoint.read(stage.store, "one", step)
    found = safetensors.torch.load(files_of(stage.store, manifest)[MODEL_FILE])

    training = spec.trainers["one"]
    model = build(manifest.model, seed_of("weights", 0)).train()
    weights = [p for p in model.parameters() if decay_all or p.ndim > 1]
    others = [p for p in model.parameters() if not decay_all and p.ndim <= 1]
    groups = [{"params": weights, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=0.002, betas=(0.8, 0.99))
    for plan in (plan for plan in stage.plans if plan.purpose == TRAIN):
        for begin in range(0, plan.clips, 4):
            indices = [i for i in range(begin, min(begin + 4, plan.clips)) if (plan.epoch, i) != (0, left_out)]
            clips = [clip_ref(plan, index) for index in indices]
            shown = [clip_frames(clip, "rgb")[[0, 2]] for clip in clips]
            views = [
                training_view(frames, training.augment, COLOURS, 0, clip.epoch, clip.index)
                for clip, frames in zip(clips, shown, strict=True)
            ]
            logits = model(torch.from_numpy(np.stack(views))).logits
            optimizer.zero_grad()
            functional.cross_entropy(logits, torch.tensor([clip.class_id for clip in clips])).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), training.optimizer.clip_grad_norm)
            optimizer.step()
    assert manifest.updates == 2 * 3
    assert distance(found, {name: tensor for name, tensor in model.state_dict().items() if name in found}) < TOLERANCE


def one_step(path: Path, ranks: int, recipe: str) -> dict[str, dict[str, Tensor]]:
    """The files after one step on four clips."""
    own = RECIPES[recipe] | {"augment": {"crop": 32}}
    stage = Stage(job_spec(path / str(ranks), **own), phase_plans(1, train=4))
    train(stage, ranks=ranks)
    return {name: safetensors.torch.load(data) for name, data in all_files(stage).items()}


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("recipe", often(["averaged", "of classes", "smoothed", "adamw", "head first"], 2))
def test_ranks_take_the_step_of_one(tmp_path: Path, recipe: str) -> None:
    one, two = (one_step(tmp_path, ranks, recipe) for ranks in (1, 2))
    assert one.keys() == two.keys()
    assert max(distance(two[name], one[name]) for name in one) < TOLERANCE


def without_normalisation() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))


class DropsAcrossClips(nn.Sequential):
    """It has the channels first where it drops."""

    def forward(self, x: Tensor) -> Tensor:
        stem, pool, dropout, head = self
        found: Tensor = head(dropout(pool(stem(x)).flatten(1).T).T)
        return found


@pytest.mark.parametrize(("micro_batch", "ranks"), [(0, 1), (4, 1), (2, 1), (0, 2)])
def test_dropout_that_nobody_can_divide_is_refused_where_it_is_to_be_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, micro_batch: int, ranks: int
) -> None:
    def made() -> nn.Module:
        return DropsAcrossClips(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Dropout(), nn.Linear(8, 2))

    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", Network(made, "0", "3"))
    stage = Stage(job_spec(tmp_path, micro_batch=micro_batch), phase_plans(1))
    if (micro_batch, ranks) in ((0, 1), (4, 1)):  # of batches of 4
        train(stage)
    else:
        with pytest.raises(ConfigError, match=r"2 of the network drops from a tensor of \(8, 2\)"):
            train(stage, ranks=ranks)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(("clips", "ranks"), [(1, 1), (3, 1), (1, 2)])
def test_passes_of_few_clips_take_the_step_of_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clips: int, ranks: int
) -> None:
    """With dropout, and where the last batch has fewer clips than the others."""
    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", Network(without_normalisation, "0", "4"))

    def steps(micro_batch: int, ranks: int) -> dict[str, Tensor]:
        spec = job_spec(tmp_path / f"{micro_batch}-{ranks}", micro_batch=micro_batch)
        stage = Stage(spec, phase_plans(1, train=10))
        train(stage, ranks=ranks)
        return safetensors.torch.load(all_files(stage)[MODEL_FILE])

    assert distance(steps(clips, ranks), steps(0, 1)) < TOLERANCE


@pytest.mark.usefixtures("double_precision")
def test_passes_of_a_rank_that_has_more_than_its_part_leave_out_no_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of clips 63, 64 and 65, rank 0 of 3 has two, as the partitions begin anew. 22 updates through 2 layers without
    statistics are fewer sums than `TOLERANCE` is for."""
    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", Network(without_normalisation, "0", "4"))

    def weights(micro_batch: int, ranks: int) -> dict[str, Tensor]:
        spec = job_spec(tmp_path / str(ranks), batch_size=3, micro_batch=micro_batch, dropout=0.0)
        stage = Stage(spec, phase_plans(1, train=66, validation=0, test=0))
        train(stage, ranks=ranks)
        return safetensors.torch.load(all_files(stage)[MODEL_FILE])

    assert distance(weights(1, 3), weights(0, 1)) < TOLERANCE


@pytest.mark.usefixtures("half_on_cpu")
def test_ranks_take_the_step_of_one_in_half_precision(tmp_path: Path) -> None:
    """The first momentum is the gradient, which rounding to half precision puts about a tenth of its length off.

    Five layers round to 11 bits a few times each, which puts numbers off by a hundredth. So about one number in a
    hundred is on the other side of ReLU's kink, and that changes the length of the gradient by the root: a tenth.
    A wrong scale, or a wrong share of the loss, changes it by half at least.
    """
    one, two = (one_step(tmp_path, ranks, "float16")[OPTIMIZER_FILE] for ranks in (1, 2))
    state = {name for name in one if "/" in name}
    assert {name: two.pop(name) for name in state} == {name: one.pop(name) for name in state}, "the scale is the same"
    assert one.keys() == two.keys()
    gradient, difference = (
        torch.cat([tensor.flatten() for tensor in tensors])
        for tensors in (one.values(), [two[name] - one[name] for name in one])
    )
    assert difference.norm() < 0.25 * gradient.norm()


def test_what_is_kept_is_the_average(tmp_path: Path) -> None:
    stage = Stage(job_spec(tmp_path, ema=0.9), phase_plans(1))
    train(stage)
    files = all_files(stage)
    assert files["final"] == files[MODEL_FILE] != files[TRAINED_FILE]
    load_state(small(), files[TRAINED_FILE])


@pytest.mark.usefixtures("half_on_cpu")
def test_a_scale_that_is_too_large_costs_a_step_and_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first gradient overflows: the parameters stay, the next steps move them."""
    backward: Callable[..., None] = Tensor.backward
    seen: list[Tensor] = []

    def overflowing(self: Tensor, *args: Any, **options: Any) -> None:
        seen.append(self)
        backward(self * torch.inf if len(seen) == 1 else self, *args, **options)

    monkeypatch.setattr(Tensor, "backward", overflowing)
    stage = Stage(job_spec(tmp_path, amp=True, checkpoint={"every": 4, "keep": 9}), phase_plans(1))
    train(stage)
    saved = [checkpoint.read(stage.store, "one", step) for step in (4, 8)]
    scales = [
        safetensors.torch.load(files_of(stage.store, manifest)[OPTIMIZER_FILE])["gradient/scale"].item()
        for manifest in saved
    ]
    assert scales == [2.0**15, 2.0**15]
    momentum = safetensors.torch.load(files_of(stage.store, saved[0])[OPTIMIZER_FILE])
    assert not [name for name in momentum if name.startswith("backbone")], "no step was taken yet"


@pytest.mark.usefixtures("half_on_cpu")
def test_gradients_that_no_scale_mends_end_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backward: Callable[..., None] = Tensor.backward
    monkeypatch.setattr(Tensor, "backward", lambda self, *a, **o: backward(self * torch.inf, *a, **o))
    stage = Stage(job_spec(tmp_path, amp=True, batch_size=1), phase_plans(3, train=10))
    with pytest.raises(Diverged, match=r"gradient norm (inf|nan) at update 16 of epoch 1"):
        train(stage)


def test_more_epochs_of_a_cosine_go_on_at_the_rate_of_the_longer_one(tmp_path: Path) -> None:
    optimizer = {"lr": 0.05, "schedule": "cosine"}
    train(Stage(job_spec(tmp_path, epochs=1, optimizer=optimizer), phase_plans(1)))
    longer = Stage(job_spec(tmp_path, epochs=2, optimizer=optimizer), phase_plans(2), fence=8)
    train(longer)
    found = checkpoint.read_latest(longer.store, "one")
    assert found is not None
    rates = [record.metrics["lr"] for record in found.history if record.purpose == "train"]
    assert rates == pytest.approx([0.05, 0.025])
