"""Clip classifiers: a network by name, adapted to a feature and a set of classes; or an encoder (`descriptors.py`).

A classifier takes `(B, T, H, W, C)` as stored in the cache (uint8, or float for float features) and returns `(B, K)`
logits. A network of single frames scores each of the T frames, and the logits are averaged; a network of clips sees all
of them at once.

A classifier contains its normalisation, so training and prediction use the same one, and the random generator of its
dropout, so trainers in one process do not influence each other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from textwrap import shorten
from typing import Any, NamedTuple, cast

import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from essp_common.artifacts.checkpoint import load_arrays
from essp_common.artifacts.fused_model import Member, member_weights
from essp_common.artifacts.manifest import MODEL_FILE, Manifest, ModelDescription, Origin
from essp_common.artifacts.trained import trained
from essp_common.errors import ConfigError, NotFound, PermanentError
from essp_common.job.trainer_spec import PACKAGE
from essp_common.objects.port import ObjectStore
from essp_common.tensors.packed import DTYPES, MAGIC, unpack
from essp_common.wiring import Stores
from essp_engine.learning.descriptors import DescriptorClassifier
from essp_engine.learning.inputs import Scale
from essp_engine.learning.network import Network
from essp_engine.learning.networks import StateDict, network, packaged_weights, read_state
from essp_engine.learning.normalisation import batch_norms
from essp_engine.learning.randomness import (
    DropoutGenerator,
    SeededAlpha,
    SeededAlphaChannels,
    SeededChannels,
    SeededDepth,
    SeededDropout,
    initial_weights,
)
from essp_engine.learning.scores import Scores
from essp_engine.learning.torchvision_compat import torchvision
from essp_engine.learning.weight_layouts import named_as

_log = logging.getLogger(__name__)
_MOST_SAID = 300
"""Characters of PyTorch's message about weights that do not fit."""

_LARGEST_NUMBER_BYTES = 8
"""Bytes of the largest number type in checkpoints."""
_SEEDED: Mapping[type[nn.Module], type[SeededDropout]] = {
    torchvision.ops.StochasticDepth: SeededDepth,
    nn.Dropout1d: SeededChannels,
    nn.Dropout2d: SeededChannels,
    nn.Dropout3d: SeededChannels,
    nn.AlphaDropout: SeededAlpha,
    nn.FeatureAlphaDropout: SeededAlphaChannels,
}
"""Layers that keep their own probability, and their seeded replacements."""


class Classifier(nn.Module):
    """A network with its input normalisation and the consensus over frames or views."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        scale: Scale,
        channels: int,
        side: int | None,
        clip_frames: int | None = None,
        independent: bool = False,
        *,
        head: str,
    ) -> None:
        """`clip_frames`: how many frames the network sees at once; None: each alone. `independent`: its outputs are
        labels, any number of which may apply, not classes. `head`: the path of the last layer."""
        super().__init__()
        self.backbone = backbone
        self.dropout = DropoutGenerator()
        self._side = side
        self._head = head
        self.clip_frames = clip_frames
        self.independent = independent
        self.register_buffer("mean", _repeated(scale.mean, channels), persistent=False)
        self.register_buffer("std", _repeated(scale.std, channels), persistent=False)

    @property
    def device(self) -> torch.device:
        """The device of its parameters."""
        return self.mean.device

    @property
    def head(self) -> nn.Module:
        """The last layer; dropout may precede it."""
        return self.backbone.get_submodule(self._head)

    @property
    def channels(self) -> int:
        """Channels of its input frames."""
        return len(self.mean)

    def forward(self, x_BTHWC: Tensor) -> Scores:  # noqa: N803
        """Score a batch of clips, which may be empty, in the precision of the parameters or of autocast.

        T is the number of frames times the number of views in evaluation: all frames of a view, then of the next.
        Raises `ConfigError` if T is not a multiple of the frames that a network of clips sees at once.
        """
        clips, frames = x_BTHWC.shape[:2]
        if frames % (self.clip_frames or 1):
            raise ConfigError(
                f"the network sees {self.clip_frames} frames at once, and the clips have {frames}", code="conflict"
            )
        x = self.normalised(x_BTHWC.flatten(0, 1))
        x = x.permute(0, 3, 1, 2)  # a channels-last view, for which CPU convolutions are fastest
        if self._side is not None and x.shape[-1] != self._side:
            x = functional.interpolate(x, size=(self._side, self._side), mode="bilinear", align_corners=False)
        if self.clip_frames is not None:
            frames //= self.clip_frames
            x = x.reshape(clips * frames, self.clip_frames, *x.shape[1:]).transpose(1, 2).contiguous()
        out = self.backbone(x)
        logits, auxiliary = out if isinstance(out, tuple) else (out, None)
        return Scores(
            self._consensus(logits, clips, frames),
            None if auxiliary is None else self._consensus(auxiliary, clips, frames),
            self.independent,
        )

    def normalised(self, x: Tensor) -> Tensor:
        """Frames `(..., C)` as network input: bytes normalised, floats unchanged."""
        exact = x.to(self.mean.dtype)
        return (exact - self.mean) / self.std if x.dtype == torch.uint8 else exact

    def _consensus(self, logits: Tensor, clips: int, seen: int) -> Tensor:
        return logits.to(self.mean.dtype).view(clips, seen, logits.shape[1]).mean(dim=1)


AnyClassifier = Classifier | DescriptorClassifier
"""A classifier of clips: a network, or an encoder of descriptors."""


def built(description: ModelDescription, code: Sequence[str] = ()) -> AnyClassifier:
    """The classifier of a description, without loaded weights. `code`: see `build`."""
    if description.encoder is not None:
        return DescriptorClassifier(description)
    return build(description, seed=0, code=code)


def build(
    description: ModelDescription, seed: int, weights: StateDict | None = None, code: Sequence[str] = ()
) -> Classifier:
    """A network whose initial weights are drawn with `seed`, or taken from `weights` for all layers except the last.

    If `weights` have another number of input channels, the first layer's weights are averaged over the channels and the
    average is repeated ("cross-modality initialisation", Wang et al., ECCV 2016). `code`: packages whose networks may
    be named by path (`ESSP_CODE`). Raises `ConfigError` for an unknown model, for weights of another network, for input
    that the network cannot process, for number types that cannot be saved, and for layers that draw unseedable random
    numbers or score a clip depending on others of its batch.
    """
    entry = network(description.name, code)
    scale = entry.photograph if description.layout.values == "colours" else entry.signed
    if scale is None:
        raise ConfigError(
            f"{description.name} takes only photographs, and {description.feature} is not one", code="conflict"
        )
    if entry.frames not in (None, description.frames):
        raise ConfigError(
            f"{description.name} sees {entry.frames} frames at once, and gets {description.frames}; set `frames` of "
            f"its stream's `params` to {entry.frames}, and clip.frames to at least as many",
            code="conflict",
        )
    with initial_weights(seed):
        backbone = _made(entry, description.name)
        classes = len(description.classes)
        try:
            _fit_stem(backbone, entry, description.channels)
            _replace(backbone, entry.head, _head(backbone.get_submodule(entry.head), classes))
            if entry.auxiliary_head is not None:
                _replace(backbone, entry.auxiliary_head, _head(backbone.get_submodule(entry.auxiliary_head), classes))
        except (AttributeError, TypeError) as error:  # from a path, or from what is there
            raise ConfigError(
                f"model {description.name}: cannot replace its first and last layer: {error}", code="unsupported"
            ) from error
    if weights is not None:
        _load_backbone(backbone, entry, weights, description)
    frames = description.frames if entry.clips else None
    classifier = Classifier(
        backbone, scale, description.channels, entry.side, frames, description.independent, head=entry.head
    )
    _refuse_types(classifier, description.name)
    _refuse_unseeded(backbone, description.name)
    _refuse_without_statistics(backbone, description.name)
    _seed_dropout(classifier, entry, description.dropout)
    _channels_last(classifier)
    return classifier


class StartingWeights(NamedTuple):
    """The initial weights of a training."""

    tensors: StateDict
    origin: Origin


def starting_weights(stores: Stores, uri: str | None, code: Sequence[str] = ()) -> StartingWeights | None:
    """Load the weights that a trainer's `weights` names: `package:NAME`, the training of another job, or a file in a
    configured store. `code`: see `build`.

    Raises `ConfigError` if they do not exist, and `BadCheckpoint` if a training's weights are damaged.
    """
    if uri is None:
        return None
    if not uri.startswith(PACKAGE) and (other := trained(stores, uri)) is not None:
        return StartingWeights(weights_of(other.output, other.manifest, code), other.origin)
    if uri.startswith(PACKAGE):
        data, name = packaged_weights(uri.removeprefix(PACKAGE)), "weights.pth"
    else:
        try:
            store, key = stores.resolve(uri)
            data, name = store.get(key), uri
        except NotFound as error:
            raise ConfigError(f"weights {uri}: {error}", code="unreadable") from error
    return StartingWeights(read_state(data, name), Origin(uri=uri, sha256=sha256(data).hexdigest()))


def restore(store: ObjectStore, manifest: Manifest, code: Sequence[str] = ()) -> AnyClassifier:
    """The classifier of a checkpoint. `code`: see `build`.

    Raises `BadCheckpoint` if its weights differ from those that were saved.
    """
    classifier = built(manifest.model, code)
    load_tensors(classifier, _weights_for(classifier, store, manifest))
    return classifier


def weights_of(store: ObjectStore, manifest: Manifest, code: Sequence[str] = ()) -> StateDict:
    """The weights of a checkpoint, as stored, without building a usable network. They must not be larger than the
    network.

    `code`: see `build`. Raises as `restore` does, also if that network is not installed.
    """
    return _weights_for(built(manifest.model, code), store, manifest)


def _weights_for(classifier: nn.Module, store: ObjectStore, manifest: Manifest) -> StateDict:
    held = load_arrays(store, manifest, [MODEL_FILE], _most_bytes(classifier))
    return as_tensors(held[MODEL_FILE])


def state_bytes(classifier: nn.Module) -> bytes:
    """Parameters and buffers in the safetensors format."""
    return packed(on_host(classifier.state_dict()))


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors in host memory."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def packed(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors in host memory, in the safetensors format."""
    return bytes(safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}))


def tensors_of(data: bytes, most_bytes: int | None = None) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a packed one (`essp_common/tensors/packed.py`), which may then expand to
    at most `most_bytes`.

    Raises `PermanentError` for any other file.
    """
    if data.startswith(MAGIC):
        return as_tensors(unpack(data, most_bytes=most_bytes))
    try:
        return dict(safetensors.torch.load(data))
    except safetensors.SafetensorError as error:
        raise PermanentError(f"the weights are not a file of tensors: {error}") from error


def arrays_of(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Tensors in host memory as arrays that share their memory."""
    return {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}


def as_tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Arrays as tensors that share their memory."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def load_state(classifier: nn.Module, data: bytes) -> None:
    """The inverse of `state_bytes`; `data` may be packed. Raises `PermanentError` for weights of another network."""
    load_tensors(classifier, tensors_of(data, _most_bytes(classifier)))


def _most_bytes(classifier: nn.Module) -> int:
    """The largest size of a file with its parameters and buffers, for any number type."""
    tensors: Mapping[str, Tensor] = classifier.state_dict()
    return _LARGEST_NUMBER_BYTES * sum(tensor.numel() for tensor in tensors.values())


def load_member(classifier: nn.Module, store: ObjectStore, member: Member) -> None:
    """Load the weights of a member of the model in folder `store`. Raises `NotFound`, and `PermanentError`, which names
    the file, for weights that were changed or belong to another network."""
    data = member_weights(store, member)
    with _named(store.uri(member.file)):
        load_state(classifier, data)


def member_tensors(store: ObjectStore, member: Member, code: Sequence[str] = ()) -> StateDict:
    """The weights of a member as stored, limited to the size of its network. `code`: see `build`. Raises as
    `load_member` does, and `ConfigError` if that network is not installed."""
    most_bytes = _most_bytes(built(member.model, code))
    data = member_weights(store, member)
    with _named(store.uri(member.file)):
        return tensors_of(data, most_bytes)


@contextmanager
def _named(uri: str) -> Iterator[None]:
    """Adds the name of the file to errors."""
    try:
        yield
    except PermanentError as error:
        raise PermanentError(f"{uri}: {error}") from error


def load_tensors(classifier: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Set parameters and buffers. Raises `PermanentError` for weights of another network."""
    try:
        classifier.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise PermanentError(f"the weights belong to another network: {_in_a_line(error)}") from error


def _made(entry: Network, name: str) -> nn.Module:
    try:
        made = entry.make()
    except ConfigError:
        raise
    except Exception as error:  # code of another package may raise any error
        raise ConfigError(f"model {name}: cannot be made: {type(error).__name__}: {error}") from error
    for path, layer in made.named_modules():
        if isinstance(layer, LazyModuleMixin) and layer.has_uninitialized_params():  # type: ignore[misc]
            raise ConfigError(
                f"model {name}: {path} is a {type(layer).__name__}, which has no weights before it has seen something; "
                "send a clip through the network where it is made, or use a layer of a given size",
                code="unsupported",
            )
    return made


def _refuse_types(classifier: Classifier, name: str) -> None:
    """Refuse number types that cannot be saved, before training starts."""
    for path, tensor in classifier.state_dict().items():
        if (dtype := str(tensor.dtype).removeprefix("torch.")) not in DTYPES:
            raise ConfigError(
                f"model {name}: {path} is of {dtype}, which checkpoints do not hold; make it float32 (with amp: true a "
                f"GPU still computes in half precision)",
                code="unsupported",
            )


def _channels_last(classifier: Classifier) -> None:
    for layer in classifier.modules():
        if isinstance(layer, nn.Conv2d):
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)


def _repeated(values: tuple[float, ...], channels: int) -> Tensor:
    if len(values) > 1 and channels % len(values):
        raise ConfigError(f"a photograph has a multiple of {len(values)} channels, not {channels}", code="conflict")
    return torch.tensor(values).repeat(channels // len(values))


def _head(layer: nn.Module, classes: int) -> nn.Module:
    """A last layer of the same kind as `layer` for this many classes."""
    if isinstance(layer, nn.Linear):
        return nn.Linear(layer.in_features, classes)
    if isinstance(layer, nn.Conv3d) and layer.kernel_size == (1, 1, 1):
        return nn.Conv3d(layer.in_channels, classes, kernel_size=1)
    raise TypeError(f"the last layer is a {type(layer).__name__}, neither linear nor a convolution of one position")


def _replace(backbone: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(backbone.get_submodule(parent), name, layer)


def _fit_stem(backbone: nn.Module, entry: Network, channels: int) -> None:
    """Give the first convolution `channels` input channels, with new weights if the number changes."""
    stem = backbone.get_submodule(entry.stem)
    if not isinstance(stem, nn.Conv2d | nn.Conv3d):
        raise TypeError(f"{entry.stem} is a {type(stem).__name__}, no convolution of pictures or clips")
    if stem.in_channels != channels:
        if stem.groups > 1 or is_parametrized(stem):
            raise TypeError(f"{entry.stem} has groups or a parametrised weight, so it takes {stem.in_channels} alone")
        stem.in_channels = channels
        stem.weight = nn.Parameter(stem.weight.new_empty(stem.out_channels, channels, *stem.kernel_size))
        nn.init.kaiming_normal_(stem.weight, nonlinearity="relu")


def _load_backbone(backbone: nn.Module, entry: Network, weights: StateDict, description: ModelDescription) -> None:
    """Load all layers except the classifiers, and log what was loaded and what was not."""
    new = (entry.head, *([entry.auxiliary_head] if entry.auxiliary_head else []))
    fresh = tuple(f"{path}." for path in new)
    named = named_as(backbone.state_dict().keys(), weights)
    state = {name: tensor for name, tensor in named.tensors.items() if not name.startswith(fresh)}
    stem, averaged = f"{entry.stem}.weight", False
    if stem in state and state[stem].ndim > 1 and state[stem].shape[1] != description.channels:
        state[stem] = state[stem].mean(dim=1, keepdim=True).repeat_interleave(description.channels, dim=1)
        averaged = True
    try:
        missing, unexpected = backbone.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise ConfigError(
            f"these weights do not fit {description.name}: {_in_a_line(error)}", code="conflict"
        ) from error
    missing = [k for k in missing if not k.startswith(fresh) and not k.endswith("num_batches_tracked")]
    random = [name for name in missing if name.startswith("AuxLogits.")]
    missing = [name for name in missing if name not in random]
    if missing or unexpected:
        raise ConfigError(
            f"these weights do not belong to {description.name}: {len(missing)} tensors missing{_first(missing)}, "
            f"{len(unexpected)} unknown{_first(unexpected)}; set `model` to the model of the weights, or give them its "
            "names (docs/networks.md says which layouts are known)",
            code="conflict",
        )
    _refuse_no_numbers(state, description.name)
    left_out = sorted(name for name in named.tensors if name.startswith(fresh))
    _log.info(
        "%s starts from weights%s: %d tensors loaded%s; left out, as that layer is new for the %d classes: %s%s",
        description.name,
        f" in the layout of {named.layout}" if named.layout else "",
        len(state),
        f", {stem} averaged for {description.channels} channels" if averaged else "",
        len(description.classes),
        ", ".join(left_out) or "nothing",
        f"; not in the file, so drawn at random: AuxLogits ({len(random)} tensors)" if random else "",
    )


def _refuse_no_numbers(state: StateDict, name: str) -> None:
    """Refuse weights that contain NaN, from a diverged training or a damaged file: each step would give a loss of NaN,
    which no learning rate avoids. Infinities are allowed, because they may be masks."""
    damaged = [path for path, tensor in state.items() if tensor.isnan().any()]
    if damaged:
        raise ConfigError(
            f"these weights of {name} have values that are not numbers (NaN) in {len(damaged)} tensors"
            f"{_first(damaged)}: they are damaged, or the training diverged; start from others",
            code="unreadable",
        )


def _in_a_line(error: RuntimeError) -> str:
    """PyTorch's message in one line; it may have a line for each tensor."""
    return shorten(str(error), _MOST_SAID, placeholder=" ...")


def _first(names: list[str]) -> str:
    return f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if names else ""


def _seed_dropout(classifier: Classifier, entry: Network, p: float) -> None:
    """Let all dropout layers draw from the classifier's generator; `p`: for each `nn.Dropout`. A network without
    dropout gets a layer before its last one.

    Layers whose own probability is 0 do not drop anything; they are kept.
    """
    backbone = classifier.backbone
    plain = False
    for path, layer in list(backbone.named_modules(remove_duplicate=False)):
        if isinstance(layer, nn.Dropout) and layer.p > 0:
            _replace(backbone, path, SeededDropout(p, classifier.dropout))
            plain = True
        for kind, seeded in _SEEDED.items():
            if isinstance(layer, kind):
                _replace(backbone, path, seeded(cast("float", layer.p), classifier.dropout))
    if not plain:
        head = backbone.get_submodule(entry.head)
        _replace(backbone, entry.head, nn.Sequential(SeededDropout(p, classifier.dropout), head))


def _refuse_unseeded(backbone: nn.Module, name: str) -> None:
    """Refuse layers that draw from torch's global generator inside torch functions: a resumed training would differ
    from an uninterrupted one."""
    for path, layer in backbone.named_modules():
        if remedy := _unseeded(layer):
            raise ConfigError(
                f"model {name}: {path} is a {type(layer).__name__} that draws random numbers which no training can "
                f"repeat; {remedy}",
                code="unsupported",
            )


def _refuse_without_statistics(backbone: nn.Module, name: str) -> None:
    """Refuse batch normalisations without running statistics: even in evaluation they normalise by the batch, so the
    score of a clip would depend on the other clips of its batch and on the number of ranks."""
    for path, layer in batch_norms(backbone).items():
        if layer.running_mean is None or layer.running_var is None:
            raise ConfigError(
                f"model {name}: {path} is a {type(layer).__name__} without running statistics, which makes the "
                "score of a clip depend on "
                "the others of its batch; make it with track_running_stats=True, or use nn.GroupNorm",
                code="unsupported",
            )


def _unseeded(layer: nn.Module) -> str:
    """The remedy for a layer whose random numbers cannot be seeded; empty if it has none, or they can be seeded."""
    if isinstance(layer, nn.MultiheadAttention) and layer.dropout > 0:
        return "give it dropout=0, and put an nn.Dropout behind it"
    if isinstance(layer, nn.RNNBase) and layer.dropout > 0 and layer.num_layers > 1:
        return "give it dropout=0, and put an nn.Dropout between layers of their own"
    if isinstance(layer, nn.RReLU) and layer.lower < layer.upper:
        return "use nn.LeakyReLU"
    if isinstance(layer, nn.FractionalMaxPool2d | nn.FractionalMaxPool3d):
        return "use nn.AdaptiveMaxPool2d or 3d"
    if isinstance(layer, torchvision.ops.DropBlock2d) and layer.p > 0:  # DropBlock3d is a subclass
        return "use nn.Dropout2d or 3d"
    return ""
