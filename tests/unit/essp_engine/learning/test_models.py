"""Models by name: shapes, first layers fitted to the stream, networks of clips, and states to the bit."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm

from essp_common.artifacts.fused_model import Member
from essp_common.errors import ConfigError, PermanentError
from essp_common.job.network_limits import limits_of
from essp_common.job.registered import MODELS
from essp_common.objects.directory import DirectoryStore
from essp_common.tensors import packed as packed_module
from essp_common.tensors.packed import pack
from essp_engine.learning.models import Classifier, build, load_member, load_state, state_bytes
from essp_engine.learning.network import Network
from essp_engine.learning.networks import NETWORKS, network
from essp_engine.learning.torchvision_compat import torchvision
from tests.harness.rounding import TOLERANCE
from tests.harness.small_networks import small_mvit
from tests.lanes import often
from tests.unit.essp_engine.learning.described_models import clips, description, of_clips, stem

pytestmark = pytest.mark.slow

EVERYDAY = ("alexnet", "inception_v3", "efficientnet_lite0", "r3d_18")
"""Networks with dropout of their own, with a second head, of this project, and of clips; the others run at night."""


def each_network(*, clips: bool) -> pytest.MarkDecorator:
    """Of clips, or of frames."""
    names = [name for name, entry in NETWORKS.items() if entry.clips is clips]
    names.sort(key=lambda name: name not in EVERYDAY)
    return pytest.mark.parametrize("name", often(names, len({*names} & {*EVERYDAY})))


@each_network(clips=False)
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


@pytest.mark.parametrize("name", often(["alexnet", "efficientnet_lite0", "small", "resnet18", "densenet121"], 2))
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


@each_network(clips=True)
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


def test_networks_of_clips_see_photographs_alone() -> None:
    with pytest.raises(ConfigError, match="r3d_18 takes only photographs, and flow is not one"):
        build(description("r3d_18", "flow", 20), seed=0)


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
    with pytest.raises(PermanentError, match=r"^file://.*/rgb.safetensors: the weights .* Missing key") as caught:
        load_member(build(description("resnet18"), seed=0), store, member)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_numbers_that_no_checkpoint_holds_are_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def half() -> torch.nn.Module:
        layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(4, 2)]
        return torch.nn.Sequential(*layers).bfloat16()

    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", Network(half, "0", "3"))
    with pytest.raises(ConfigError, match=r"model small: backbone\.\d\.\w+ is of bfloat16, .*make it float32"):
        build(description("small"), seed=0)


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


def test_unknown_models_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="resnet18"):
        build(description("resnet9000"), seed=0)


def test_a_photograph_has_three_channels_a_frame() -> None:
    with pytest.raises(ConfigError, match="multiple of 3"):
        build(description("small", "rgb", 4), seed=0)
    assert build(description("small", "frame_stack", 6), seed=0).mean.shape == (6,)


def test_importing_the_models_leaves_no_schema_declared_twice() -> None:
    from essp_engine.learning.torchvision_compat import torchvision

    assert torchvision.models.resnet18 is not None
    assert "iou_threshold" in str(torch.ops.torchvision.nms.default._schema)


def test_job_files_know_the_networks_by_name() -> None:
    assert set(MODELS) == set(NETWORKS)
