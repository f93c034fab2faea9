"""Networks of other libraries, by name: `timm:NAME` (images) and `hf:NAME` (transformers' video classifiers).

A job names them like ESSP's own networks, and their weights are loaded from a file in the library's own layout
(`essp weights fetch`). Each library is optional and is imported when a job names one of its networks.

The libraries' networks differ from ESSP's in three respects, which are adapted here. Some cannot process the empty
batch that a rank gets at the end of an epoch. Their stochastic depth draws from torch's global generator. Those of
transformers take the frames of a clip before its channels, and return the logits in an object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from essp_common.distribution import needs_extra
from essp_common.errors import ConfigError
from essp_common.job.registered import HUGGING_FACE, TIMM
from essp_common.validation import suggested
from essp_engine.learning.inputs import Scale
from essp_engine.learning.network import Network
from essp_engine.learning.normalisation import batch_norms
from essp_engine.learning.torchvision_compat import torchvision

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_BYTE = 255.0
_SIGNED_MEAN = 128.0
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "attention_probs_dropout")
_ANY_FRAMES = ("timesformer", "vjepa2")
"""Families that fit their positions to the number of frames."""
PROCESSORS = ("video_preprocessor_config.json", "preprocessor_config.json")
"""Files in which a repository has its normalisation."""


def of_library(name: str) -> Network | None:
    """The network of a library; None if the name belongs to none.

    Raises `ConfigError` if the library is not installed, has no such model, or has one without a single last layer.
    """
    if name.startswith(TIMM):
        with needs_extra(name):
            return _of_timm(name)
    if name.startswith(HUGGING_FACE):
        with needs_extra(name):
            return _of_hugging_face(name)
    return None


# --- timm ---


def _of_timm(name: str) -> Network:
    import timm

    model = name.removeprefix(TIMM)
    architecture = model.partition(".")[0]
    if not timm.is_model(architecture):
        raise ConfigError(f"timm has no model {model!r}; {_closest(architecture, timm.list_models())}", code="unknown")
    try:
        facts = timm.models.get_pretrained_cfg(model)
    except RuntimeError:  # a tag that it does not have
        known = timm.list_pretrained(f"{architecture}.*")
        raise ConfigError(f"timm has no weights {model!r}; {suggested(model, known)}", code="unknown") from None
    if facts is None:
        raise ConfigError(f"{name}: timm says nothing about its layers; choose another model", code="unsupported")
    stem, head = facts.first_conv, facts.classifier
    if not isinstance(stem, str) or not isinstance(head, str):
        raise ConfigError(
            f"{name} has no single first and last layer (timm names {stem!r} and {head!r}); choose another model",
            code="unsupported",
        )
    spread = _BYTE * sum(facts.std) / len(facts.std)
    return Network(
        make=partial(_made_by_timm, model),
        stem=stem,
        head=head,
        photograph=_scale(facts.mean, facts.std),
        signed=Scale((_SIGNED_MEAN,), (spread,)),
        side=facts.input_size[-1] if facts.fixed_input_size else None,
    )


def _closest(word: str, known: Sequence[str]) -> str:
    close = get_close_matches(word, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else "`timm.list_models()` lists all"


def _made_by_timm(model: str) -> nn.Module:
    import timm

    made: nn.Module = timm.create_model(model, pretrained=False, num_classes=2)
    layer: Any
    for layer in made.modules():
        if getattr(layer, "fused_attn", False) and getattr(getattr(layer, "attn_drop", None), "p", 0.0) > 0:
            layer.fused_attn = False  # the fused kernel would draw from the global generator
    return _adapted(made, _plain_forward)


def _plain_forward(network: nn.Module, forward: Callable[..., Any], inputs: Tensor) -> Tensor:
    del network
    scores: Tensor = forward(inputs)
    return scores


# --- transformers ---


def _of_hugging_face(name: str) -> Network:
    config = _config_of(name.removeprefix(HUGGING_FACE), name)
    side = getattr(config, "image_size", None) or getattr(config, "crop_size", None)
    return Network(
        make=partial(_made_by_transformers, config),
        stem=_stem_of(config.model_type),
        head="classifier",
        photograph=_normalisation_of(name.removeprefix(HUGGING_FACE), config),
        signed=None,
        side=side,
        clips=True,
        frames=None if config.model_type in _ANY_FRAMES else config.num_frames,
    )


def _config_of(model: str, name: str) -> PretrainedConfig:
    """The configuration of a family, such as `videomae`, or of a repository of the hub that was fetched before."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES as FAMILIES

    if "/" not in model:
        if model not in FAMILIES:
            raise ConfigError(
                f"transformers has no video classifier {model!r}; {suggested(model, FAMILIES)}, or name a repository "
                "of the hub (hf:OWNER/NAME)",
                code="unknown",
            )
        return AutoConfig.for_model(model)
    try:
        config = AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name} is not in the cache of Hugging Face on this machine; fetch it wherever trainers and predictors "
            f"run: `essp weights fetch {name}`",
            code="missing",
        ) from error
    if config.model_type not in FAMILIES:
        raise ConfigError(
            f"{name} is a {config.model_type}, no video classifier; those are {', '.join(FAMILIES)}", code="unsupported"
        )
    return config


@cache
def _stem_of(family: str) -> str:
    """The path of the first convolution, which is the same in all networks of a family. Making one takes up to seconds,
    even without memory for its weights."""
    from transformers import AutoConfig, AutoModelForVideoClassification

    with torch.device("meta"):
        made: nn.Module = AutoModelForVideoClassification.from_config(AutoConfig.for_model(family))
    path: str = next(path for path, layer in made.named_modules() if isinstance(layer, nn.Conv2d | nn.Conv3d))
    return path


def _made_by_transformers(config: PretrainedConfig) -> nn.Module:
    from transformers import AutoModelForVideoClassification

    for dropout in _DROPOUTS:  # inside attention, they would draw from the global generator
        if hasattr(config, dropout):
            setattr(config, dropout, 0.0)
    config.num_labels = 2
    made: nn.Module = AutoModelForVideoClassification.from_config(config, dtype=torch.float32)
    return _adapted(made, _clip_forward)


def _clip_forward(network: nn.Module, forward: Callable[..., Any], inputs: Tensor) -> Tensor:
    """`inputs`: `(B, C, T, H, W)`; transformers has `(B, T, C, H, W)`."""
    scores: Tensor = forward(**{str(network.main_input_name): inputs.transpose(1, 2)}).logits
    return scores.flatten(1)  # VideoPrism has a sequence of one


def _normalisation_of(model: str, config: PretrainedConfig) -> Scale:
    """The normalisation of a repository's own processor; for a family, the default of its processor in transformers."""
    return (_stored_normalisation(model) if "/" in model else None) or _default_normalisation(config.model_type)


def _stored_normalisation(repository: str) -> Scale | None:
    from huggingface_hub import try_to_load_from_cache

    for file in PROCESSORS:
        path = try_to_load_from_cache(repository, file)
        if isinstance(path, str):
            facts = json.loads(Path(path).read_text(encoding="utf-8"))
            factor, offset = facts.get("rescale_factor") or 1 / _BYTE, 1.0 if facts.get("offset") else 0.0
            mean, std = facts.get("image_mean") or (0.0,) * 3, facts.get("image_std") or (1.0,) * 3
            return Scale(tuple((value + offset) / factor for value in mean), tuple(value / factor for value in std))
    return None


def _default_normalisation(family: str) -> Scale:
    """What the processor makes of black and of white. VideoPrism has no processor: it takes colours from 0 to 1."""
    import transformers
    from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES as NAMES

    if family not in NAMES:
        return _scale((0.0,) * 3, (1.0,) * 3)
    processor = getattr(transformers, NAMES[family]["torchvision"])()
    video = torch.tensor([0, _BYTE], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 8, 8)
    made = processor([video], return_tensors="pt", do_resize=False, do_center_crop=False, do_sample_frames=False)
    black, white = next(iter(made.values()))[0, :, :, 0, 0]
    std = _BYTE / (white - black)
    return Scale(tuple((-black * std).tolist()), tuple(std.tolist()))


# --- both ---


def _scale(mean: Sequence[float], std: Sequence[float]) -> Scale:
    return Scale(tuple(_BYTE * value for value in mean), tuple(_BYTE * value for value in std))


def _adapted(made: nn.Module, call: Callable[[nn.Module, Callable[..., Any], Tensor], Tensor]) -> nn.Module:
    """The network with a `forward` of one tensor, which may be an empty batch, and with torchvision's stochastic depth.

    The class is replaced and not wrapped, so that the names of the weights stay those of the library.
    """
    library = type(made)

    def forward(self: nn.Module, inputs: Tensor) -> Tensor:
        def seen(batch: Tensor) -> Tensor:
            return call(self, partial(library.forward, self), batch)

        if len(inputs) or batch_norms(self):  # convolutions with batch normalisation accept nothing, too
            return seen(inputs)
        blank = seen(inputs.new_zeros(1, *inputs.shape[1:]))
        return blank[:0] + 0 * blank.sum()  # zero gradients, because the ranks sum those that exist

    made.__class__ = type(library.__name__, (library,), {"forward": forward})
    for path, layer in list(made.named_modules()):
        if type(layer).__name__.endswith("DropPath") and (p := getattr(layer, "drop_prob", None)):
            parent, _, own = path.rpartition(".")
            setattr(made.get_submodule(parent), own, torchvision.ops.StochasticDepth(float(p), "row"))
    return made
