"""Published weights of a network, as a file from which a job's trainers can start.

The file keeps the layout of the library that published the weights. For a repository of Hugging Face, its
configuration stays in the library's cache (HF_HOME), where trainers and predictors look for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from essp_common.distribution import needs_extra
from essp_common.errors import ConfigError, EsspError
from essp_common.job.registered import HUGGING_FACE, MODELS, TIMM
from essp_common.validation import suggested

if TYPE_CHECKING:
    from torch import Tensor

_CONFIGURATION = "config.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_SUFFIX = ".safetensors"
_OWN = ("small", "efficientnet_lite0")
"""Networks without weights of torchvision."""


class Fetched(NamedTuple):
    """Weights in a file."""

    file: Path
    source: str


def fetch_weights(model: str, out: Path | None) -> Fetched:
    """Write the weights of `model` to the file `out` (default: a name of its own in this folder).

    Raises `ConfigError` for a model without published weights and for a file that exists or has another suffix than
    `.safetensors`, and `EsspError` if they cannot be downloaded.
    """
    if out is not None:
        _check_free(out)
    with needs_extra(model):
        if model.startswith(HUGGING_FACE):
            return _from_hub(model, out)
        if model.startswith(TIMM):
            return _saved(model, model.removeprefix(TIMM), out, _timm_state)
        if model in _OWN or model not in MODELS:
            known = [name for name in MODELS if name not in _OWN]
            raise ConfigError(
                f"there are no published weights of {model!r}; {suggested(model, known)}, timm:NAME, hf:OWNER/NAME",
                field="model",
                code="unknown",
            )
        return _saved(model, model, out, _torchvision_state)


def _torchvision_state(name: str) -> tuple[dict[str, Tensor], str]:
    import torchvision

    weights = torchvision.models.get_model_weights(name).DEFAULT
    return torchvision.models.get_model(name, weights=weights).state_dict(), str(weights.url)


def _timm_state(name: str) -> tuple[dict[str, Tensor], str]:
    import timm

    made = timm.create_model(name, pretrained=True)
    return made.state_dict(), f"https://huggingface.co/{made.pretrained_cfg.get('hf_hub_id') or name}"


def _saved(
    model: str, name: str, out: Path | None, state_of: Callable[[str], tuple[dict[str, Tensor], str]]
) -> Fetched:
    if model.startswith(TIMM):
        from essp_engine.learning.library_networks import of_library

        of_library(model)  # raises for a model that a job could not use
    try:
        state, source = state_of(name)
    except (OSError, RuntimeError) as error:
        raise _unreachable(model, error) from error
    return Fetched(_written(state, out, name), source)


def _from_hub(model: str, out: Path | None) -> Fetched:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    from essp_engine.learning.library_networks import PROCESSORS, of_library
    from essp_engine.learning.networks import read_state

    repository = model.removeprefix(HUGGING_FACE)
    if "/" not in repository:
        raise ConfigError(
            f"{model} is a family without weights of its own; name a repository: hf:OWNER/NAME",
            field="model",
            code="unknown",
        )
    try:
        hf_hub_download(repository, _CONFIGURATION)
        for name in PROCESSORS:
            with suppress(EntryNotFoundError):
                hf_hub_download(repository, name)
        of_library(model)  # raises for a repository that is not a video classifier, before its weights are loaded
        for name in _WEIGHTS:
            with suppress(EntryNotFoundError):
                cached = Path(hf_hub_download(repository, name))
                break
        else:
            raise ConfigError(f"{model} has neither {' nor '.join(_WEIGHTS)}", field="model", code="unsupported")
    except OSError as error:  # also what huggingface_hub raises
        raise _unreachable(model, error) from error
    state = read_state(cached.read_bytes(), cached.name)
    return Fetched(_written(state, out, repository.partition("/")[2]), f"https://huggingface.co/{repository}")


def _check_free(file: Path) -> None:
    if file.suffix != _SUFFIX:
        raise ConfigError(f"{file} needs a name that ends in {_SUFFIX}", field="--out", code="invalid")
    if os.path.lexists(file):  # `Path.exists` raises for a name that is not valid
        raise ConfigError(f"{file} exists; name another file, or remove it first", field="--out", code="exists")


def _written(state: Mapping[str, Tensor], out: Path | None, name: str) -> Path:
    """The file, always in the safetensors format, by whose suffix trainers read it. A killed write leaves no half file
    under the name."""
    import safetensors.torch
    from safetensors import SafetensorError

    file = out or Path(f"{name}{_SUFFIX}")
    _check_free(file)
    own = {path: tensor.contiguous().clone() for path, tensor in state.items()}  # no two may share memory
    unfinished = file.with_name(f".{file.name}.unfinished")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_file(own, unfinished)
        unfinished.replace(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file} cannot be written: {error}", field="--out", code="unreadable") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return file


def _unreachable(model: str, error: Exception) -> EsspError:
    reason = str(error).strip().partition("\n")[0].rstrip(".")
    return EsspError(
        f"the weights of {model} cannot be downloaded: {type(error).__name__}: {reason}; fetch them on a machine that "
        "can reach the internet, and copy the file"
    )
