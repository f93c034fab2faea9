"""A real training that consumes the batches of a benchmark.

It is the training of Chien and others (2018): AlexNet with Adam at a rate of 1e-3, from new weights. Clips are learned
with the small network that jobs select with `model: small`, frame by frame, and the scores are averaged. Both include
the normalisation and, on a GPU, the transfer of the batch. A step ends when the device has computed it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from essp.bench.learner import IMAGES
from essp.bench.pipeline import Batch
from essp_common.artifacts.manifest import MODEL_FILE, OPTIMIZER_FILE, ModelDescription
from essp_common.errors import ConfigError, OutOfMemory
from essp_common.job.feature_layout import COLOURS
from essp_common.tensors.packed import Packing, pack
from essp_engine.learning.models import arrays_of, build, on_host

_RATE = 1e-3
_AS_IT_IS = Packing(codec="none", planes=False)
_DROPOUT = 0.5
_LEAST_SIDE = 63
"""AlexNet's pooling reduces smaller images to nothing."""


class Training:
    """A model in training."""

    def __init__(self, model: str, classes: Sequence[str], side: int, device: str = "auto", seed: int = 0) -> None:
        """`model`: `IMAGES` or `CLIPS`. `device`: cpu, cuda or auto.

        Raises `ConfigError` if the GPU is missing or the images are too small.
        """
        self.device = _device(device)
        if model == IMAGES and side < _LEAST_SIDE:
            raise ConfigError(
                f"images of {side} pixels are too small for AlexNet; give --size {_LEAST_SIDE} or more, or --step-time "
                "for a simulated accelerator",
                field="--size",
                code="range",
            )
        self.name = f"{model} on {self.device}"
        self.losses: list[float] = []
        """The loss of each step."""
        description = ModelDescription(
            name=model,
            feature="rgb",
            layout=COLOURS,
            channels=3,
            classes=tuple(classes) if len(classes) > 1 else ("one", "other"),
            dropout=_DROPOUT,
            crop=side,
            evaluation_scale=1.0,
        )
        self._model = build(description, seed).to(self.device).train()
        self._optimiser = torch.optim.Adam(self._model.parameters(), lr=_RATE)

    def step(self, batch: Batch) -> float:
        """Forward pass, backward pass and update. Raises `OutOfMemory`."""
        begin_s = time.perf_counter()
        try:
            self._learn(batch)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise OutOfMemory(f"{self.device} has no room for a batch of {batch.count}; lower --batch") from error
        return time.perf_counter() - begin_s

    def checkpoint(self) -> dict[str, bytes]:
        """Weights and optimizer state as files, the same as a trainer of ESSP saves, uncompressed."""
        state = self._optimiser.state_dict()["state"]
        tensors = {f"{number}.{name}": value for number, values in state.items() for name, value in values.items()}
        return {
            MODEL_FILE: pack(arrays_of(on_host(self._model.state_dict())), _AS_IT_IS),
            OPTIMIZER_FILE: pack(arrays_of(on_host(tensors)), _AS_IT_IS),
        }

    def _learn(self, batch: Batch) -> None:
        frames, labels = self._on_device(batch)
        self._model.dropout.reseed(len(self.losses))
        self._optimiser.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(self._model(frames).logits, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        self.losses.append(float(loss.detach()))  # waits for the device

    def _on_device(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """`(B, T, H, W, 3)` and `(B,)`. A sample without a label counts as the first class."""
        if batch.frames is None or batch.labels is None:
            raise ValueError("a batch that was not decoded")
        frames, labels = torch.from_numpy(batch.frames), torch.from_numpy(batch.labels).clamp(min=0)
        frames = frames.unsqueeze(1) if frames.ndim == 4 else frames
        if self.device.type == "cuda":
            frames, labels = frames.pin_memory(), labels.pin_memory()
        return frames.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


def _device(wanted: str) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "cuda: there is no GPU here, or torch was installed without CUDA; use cpu or auto",
            field="--device",
            code="unsupported",
        )
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)
