"""Exports a network of a model as a program for other runtimes: ONNX or `torch.export`.

A program takes decoded frames, as they come from the job's `clip.resize` or from its feature, and returns
probabilities. Like `essp predict`, it cuts the squares for evaluation, resizes and normalises them, and averages over
frames and views. Before it is returned, it is run on synthetic frames and its results are compared with the network's.
"""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from essp.api.models import Model, StreamModel
from essp_common.errors import ConfigError, Conflict, NotFound, PermanentError
from essp_common.objects.port import ObjectStore
from essp_engine.features.port import ArraySpec
from essp_engine.features.registry import output_of
from essp_engine.learning.augment import Evaluated, mirrors, squares

ProgramFormat = Literal["onnx", "torch"]
SUFFIXES: dict[ProgramFormat, str] = {"onnx": ".onnx", "torch": ".pt2"}

INPUT, OUTPUT = "frames", "probabilities"
_DOCUMENT = "model.json"
_OPSET = 20
_CLIPS = 2
"""Number of synthetic clips with which the program is traced and compared."""
_ALIKE = 2e-3
"""Maximum difference of probabilities. Runtimes resize with another order of operations, so that a pixel may differ by
one level."""


@dataclass(frozen=True, slots=True)
class Program:
    """A network as a file."""

    data: bytes
    shape: tuple[int, ...]
    """Shape of its input, `(B, T, H, W, C)`, without B, which is variable."""
    dtype: str
    """Data type of its input: uint8 or float32."""
    error: float
    """The largest difference of a probability from the network's, on synthetic frames."""


def program(model: Model, stream: StreamModel, size: tuple[int, int], form: ProgramFormat) -> Program:
    """Convert one network of a model, with the input that its feature computes from frames of this `(height, width)`.

    Raises `PermanentError` if the results of the program differ from the network's.
    """
    clip = ArraySpec((model.clip.of(stream.view).frames, *size, 3), "uint8")
    seen = output_of(stream.feature, stream.params, clip, snippets=model.clip.snippets)
    shape, dtype = seen.shape, seen.dtype
    clips = _made_up((_CLIPS, *shape), np.dtype(dtype))
    with torch.inference_mode():
        expected = np.stack([stream.score(clip) for clip in clips])
    whole = _Whole(stream, shape[1], shape[2]).eval()
    with _quiet():
        made, found = _WAYS[form](whole, clips)
    error = float(np.abs(found - expected).max())
    if not error <= _ALIKE:
        raise PermanentError(
            f"{stream.trainer}: the {form} program gives other answers than the network (by {error:.2g}); it was not "
            "written"
        )
    return Program(made, shape, dtype, error)


def frame_size(model: Model, given: tuple[int, int] | None, view: str = "") -> tuple[int, int]:
    """Height and width of the frames that a program takes, of this view.

    Raises `ConfigError` if they depend on the video and `given` is None.
    """
    resize = model.clip.of(view).resize
    if given is not None:
        return given
    if resize.mode in ("exact", "crop"):
        return resize.height, resize.width
    raise ConfigError(
        f"with clip.resize.mode: {resize.mode} frames have the size of their video, and a program takes one "
        "size; say which, as in --frame 256x340",
        field="--frame",
        code="missing",
    )


def export_programs(
    model: Model, target: ObjectStore, form: ProgramFormat, frame: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Write a program for each network of a model, and `model.json` with their inputs and how their scores are fused.

    Returns the content of `model.json`. Raises `Conflict` if it already exists, and what `program` raises.
    """
    if encoders := [name for name, stream in model.streams.items() if stream.layout.values == "descriptor"]:
        raise ConfigError(
            f"{', '.join(encoders)} encodes descriptors, which has no network to export as a program; export with "
            "--format essp",
            code="unsupported",
        )
    sizes = {name: frame_size(model, frame, stream.view) for name, stream in model.streams.items()}
    if model.rule is None:
        raise ConfigError(
            f"the model fuses by {model.strategy}, and model.json of programs can only say mean or product; train with "
            "aggregation.strategies: [average, product, best, weighted, weighted_product], or export with --format "
            "essp",
            code="unsupported",
        )
    try:
        target.head(_DOCUMENT)
    except NotFound:
        pass
    else:
        raise Conflict(f"{target.uri(_DOCUMENT)} is there already; name another folder, or remove it first")
    networks = {}
    for name, stream in model.streams.items():
        made = program(model, stream, sizes[name], form)
        file = name + SUFFIXES[form]
        target.put(file, made.data)
        networks[name] = {
            "file": file,
            "feature": stream.feature,
            "params": stream.params,
            **({"view": stream.view} if stream.view else {}),
            "weight": stream.weight,
            "input": {"name": INPUT, "shape": ["clips", *made.shape], "dtype": made.dtype},
            "output": {"name": OUTPUT, "shape": ["clips", len(model.classes)], "dtype": "float32"},
            "error": made.error,
        }
    document = {
        "format": form,
        "classes": list(model.classes),
        "background": model.background,
        "independent": model.independent,
        "rule": model.rule,
        "clip": model.clip.model_dump(mode="json"),
        "frame": dict(zip(("height", "width"), frame_size(model, frame), strict=True)),
        "clips_per_video": model.clips_per_video,
        "networks": networks,
    }
    target.put(_DOCUMENT, json.dumps(document, indent=2).encode())
    return document


class _Whole(nn.Module):
    """Evaluation and network in one module that uses only tensors."""

    def __init__(self, stream: StreamModel, height: int, width: int) -> None:
        super().__init__()
        self.classifier = stream.module
        seen = Evaluated(stream.crop, stream.scale, stream.views)
        self._crop = stream.crop
        self._side, self._places = squares(height, width, seen)
        self._mirrored = stream.layout.mirrored if mirrors(seen) else ""

    def forward(self, frames: Tensor) -> Tensor:
        """`(B, T, H, W, C)` -> `(B, K)`."""
        side = self._side
        views = [
            self._resized(frames[:, :, top : top + side, left : left + side].float()) for top, left in self._places
        ]
        if self._mirrored:
            views += [self._in_mirror(view, frames.dtype) for view in views]
        seen = torch.cat(views, dim=1)
        if frames.dtype == torch.uint8:
            seen = seen.round().to(torch.uint8)
        probabilities: Tensor = self.classifier(seen).probabilities()
        return probabilities

    def _resized(self, square: Tensor) -> Tensor:
        if self._side == self._crop:
            return square
        flat = square.flatten(0, 1).permute(0, 3, 1, 2)
        made = functional.interpolate(flat, size=(self._crop, self._crop), mode="bilinear", align_corners=False)
        return made.permute(0, 2, 3, 1).reshape(-1, square.shape[1], self._crop, self._crop, square.shape[4])

    def _in_mirror(self, view: Tensor, dtype: torch.dtype) -> Tensor:
        mirrored = view.flip(3)
        if self._mirrored != "horizontal_motion":
            return mirrored
        across, down = mirrored[..., 0::2], mirrored[..., 1::2]
        across = torch.remainder(-across, 256) if dtype == torch.uint8 else -across
        return torch.stack((across, down), dim=-1).flatten(-2)


def _torch_program(whole: nn.Module, clips: NDArray[Any]) -> tuple[bytes, NDArray[Any]]:
    buffer = io.BytesIO()
    torch.export.save(_traced(whole, clips), buffer)
    buffer.seek(0)
    with torch.inference_mode():
        found: NDArray[Any] = torch.export.load(buffer).module()(torch.from_numpy(clips)).numpy()
    return buffer.getvalue(), found


def _onnx_program(whole: nn.Module, clips: NDArray[Any]) -> tuple[bytes, NDArray[Any]]:
    runtime = onnx_runtime()  # must be called before the exporter loads it
    made = torch.onnx.export(
        _traced(whole, clips), dynamo=True, input_names=[INPUT], output_names=[OUTPUT], opset_version=_OPSET,
        verbose=False,
    )  # fmt: skip
    assert made is not None
    data = made.model_proto.SerializeToString()
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    [found] = session.run([OUTPUT], {INPUT: clips})
    return data, found


def onnx_runtime() -> ModuleType:
    """The module `onnxruntime`, loaded with its telemetry disabled.

    Since 1.29 it reports what it runs, and on which machine, to its makers, and keeps a file for this purpose in the
    home folder. It reads the environment variable when it is loaded.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return import_module("onnxruntime")  # imported only here because it takes a second and is rarely needed


_WAYS = {"onnx": _onnx_program, "torch": _torch_program}


def _traced(whole: nn.Module, clips: NDArray[Any]) -> torch.export.ExportedProgram:
    with torch.no_grad():
        batch = torch.export.Dim("clips", min=1, max=2**16)
        return torch.export.export(whole, (torch.from_numpy(clips),), dynamic_shapes=({0: batch},))


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's warnings about its own internals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _made_up(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Smooth frames, like those of pictures. With noise, the comparison would mostly test how edges are resized."""
    rng = np.random.default_rng(1)
    coarse = torch.from_numpy(rng.random((shape[0] * shape[1], shape[4], 8, 8)))
    smooth = functional.interpolate(coarse, size=shape[2:4], mode="bilinear").permute(0, 2, 3, 1).reshape(shape).numpy()
    return np.ascontiguousarray(smooth * 255 if dtype == np.uint8 else smooth - 0.5).astype(dtype)
