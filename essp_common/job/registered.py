"""The names of networks, encoders and losses that a job may use: ESSP's own, those registered by installed packages,
and paths in packages that the settings allow (`ESSP_CODE`).

Only names are checked, so a job is checked without torch and without code of another package.
`essp_engine.learning.networks` and `essp_engine.learning.losses` load the code. docs/networks.md says how a package
registers its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from essp_common.errors import ConfigError
from essp_common.plugins import Group, is_path
from essp_common.validation import suggested

MODELS = (
    *("small", "alexnet", "densenet121", "efficientnet_lite0", "inception_v3", "mobilenet_v3_small"),
    *("resnet18", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "vgg19"),
    *("r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v2_s", "swin3d_t"),
)
"""The names of the networks in `essp_engine.learning.networks`."""
ENCODERS = ("fisher_vector", "vlad", "bag_of_words")
"""The names of the encoders of descriptors, which a job uses like the name of a network."""
LOSSES = ("cross_entropy",)
"""The names of the losses in `essp_engine.learning.losses`."""
TIMM, HUGGING_FACE = "timm:", "hf:"
"""Prefixes of networks of other libraries: timm's image models, and the video classifiers of transformers."""
MODELS_OF_PACKAGES = Group("essp.models", "model", ("make", "stem", "head"), "docs/networks.md", kind="object")
LOSSES_OF_PACKAGES = Group("essp.losses", "loss", (), "docs/networks.md", kind="function")


def known_model(name: str, code: Sequence[str] = ()) -> str:
    """Return the name. Raises `ConfigError` if no network or encoder of this name is installed, or if it is a path in a
    package that `code` does not allow.

    Names of other libraries (`timm:`, `hf:`) are checked where the network is made, because that loads torch.
    """
    if name.startswith((TIMM, HUGGING_FACE)):
        return name
    return _known(name, (*MODELS, *ENCODERS), MODELS_OF_PACKAGES, code)


def known_loss(name: str, code: Sequence[str] = ()) -> str:
    """Return the name. Raises `ConfigError` if no such loss is installed, or if it is a path in a package that `code`
    does not allow."""
    return _known(name, LOSSES, LOSSES_OF_PACKAGES, code)


def _known(name: str, own: tuple[str, ...], group: Group, code: Sequence[str]) -> str:
    if is_path(name):
        return group.allowed(name, code)
    installed, noun = group.names(), group.noun
    if name not in own and name not in installed:
        raise ConfigError(
            f"no {noun} {name!r}; {suggested(name, (*own, *installed))}. A package must register it under "
            f"{group.group}, and the package installed wherever master, trainers and predictors run; what an image "
            "of its own has for trainers, a row of the master says (`essp registry put trainers`)",
            code="unknown",
        )
    if name in own and name in installed:
        raise ConfigError(
            f"a package registers a {noun} {name!r}, which is the name of one of ESSP; uninstall it", code="conflict"
        )
    return name
