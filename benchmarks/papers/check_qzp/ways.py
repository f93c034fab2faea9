"""The combinations of Check-QZP, and the training loops whose checkpoints they write.

Q rounds to 8 bits, Z compresses by gzip, P writes in a child process, and the next checkpoint waits for the last one. Q
has one range over all numbers of a file, as the paper prints it, or one for each output channel, with arrays of one
dimension exact. `none` is `torch.save`. The others write with the code of a trainer (`checkpoint_saver.py`), which
reads each file back. Z and P are without byte planes and differences, which the paper does not have; `essp` is what a
job of ESSP does unless it says otherwise, which has both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.checkpoint_saver import Saver, torch_save
from benchmarks.image_training import MODEL, OPTIMIZER
from essp_common.tensors.packed import EXACT, Codec, Packing, Scope
from essp_engine.learning.torchvision_compat import torchvision

GRADIENTS, DETECTOR = "gradients.tensors", "fasterrcnn_"
CLASSES = 11
"""Of VisDrone, with the background."""
_SIDE, _BATCH = 64, 2

Tensors = Mapping[str, Mapping[str, Tensor]]
"""File -> name -> tensor."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to save."""

    name: str
    scope: Scope = "channel"
    """With Q."""

    @property
    def packing(self) -> Packing | None:
        """How files are written; None: by `torch.save`."""
        if self.name in ("none", "essp"):
            return None if self.name == "none" else EXACT
        codec: Codec = "gzip" if "Z" in self.name else "none"
        if "Q" in self.name:
            return Packing(8, self.scope, self.scope == "channel", codec, planes=False)
        return Packing(codec=codec, planes=False)

    @property
    def parallel(self) -> bool:
        """Whether a child process writes."""
        return "P" in self.name or self.name == "essp"

    def __str__(self) -> str:
        if self.name == "none":
            return "none (`torch.save`)"
        if self.name == "essp":
            return "ESSP's default"
        return (
            f"{self.name}, {'one range' if self.scope == 'global' else 'by channel'}" if "Q" in self.name else self.name
        )


NONE, ESSP, QZP = Way("none"), Way("essp"), Way("QZP")
WAYS: Mapping[str, Way] = {
    "none": NONE,
    **{name: Way(name) for name in ("Z", "P", "ZP")},
    **{
        f"{name}.{scope}": Way(name, scope)
        for name in ("Q", "QZ", "QP", "QZP")
        for scope in ("global", "channel")
    },
    "essp": ESSP,
}  # fmt: skip
"""By the names that steps have."""


class Saving:
    """Saves a loop in one of these ways, and counts seconds and bytes."""

    def __init__(self, way: Way, folder: Path) -> None:
        self.sizes: list[int] = []
        """Bytes of each checkpoint."""
        self.ended_s = 0.0
        """When the last one was on the disk (`time.perf_counter`)."""
        self._folder = folder
        packing = way.packing
        self._saver = None if packing is None else Saver(folder, way.parallel, packing, delta=way.name == "essp")

    def save(self, tensors: Tensors, moving: list[tuple[str, str]]) -> None:
        """Begin one; `moving` may change when this returns, the rest after `wait_for_copy`."""
        if self._saver is not None:
            self._saver.save(tensors, moving)
            return
        torch_save(tensors, self._folder)
        self.ended_s = time.perf_counter()
        self.sizes.append(sum((self._folder / file).stat().st_size for file in tensors))

    def wait_for_copy(self) -> None:
        """Until the update of the next step may begin."""
        if self._saver is not None:
            self._saver.wait_for_copy()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._saver is not None and self._saver.busy

    def finish(self) -> None:
        """Until the last one is on the disk."""
        if self._saver is not None:
            self._saver.finish()
            self.ended_s, self.sizes = self._saver.ended_s, self._saver.sizes

    def close(self) -> None:
        """End the child."""
        if self._saver is not None:
            self._saver.close()


class _Detector(nn.Module):
    """Backbone, pyramid and heads of Faster R-CNN, without the choice of regions, whose operators a CPU build of
    torchvision may lack. All weights get gradients, as in training."""

    def __init__(self, backbone: str) -> None:
        super().__init__()
        detection = import_module("torchvision.models.detection")
        body = detection.backbone_utils.resnet_fpn_backbone(
            backbone_name=backbone, weights=None, norm_layer=nn.BatchNorm2d, trainable_layers=5
        )  # torchvision's own choice without weights; a frozen one lets the numbers of 152 layers grow without end
        self.detector = detection.FasterRCNN(body, num_classes=CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        """Losses against targets of nothing, for the whole batch."""
        features = list(self.detector.backbone(pixels).values())
        objects, boxes = self.detector.rpn.head(features)
        regions = functional.adaptive_avg_pool2d(features[0], 7)
        scores, places = self.detector.roi_heads.box_predictor(self.detector.roi_heads.box_head(regions))
        targets = torch.zeros(len(scores), dtype=torch.long)
        squares = sum((one.square().mean() for one in (*boxes, places)), torch.zeros(()))
        found = sum((functional.softplus(one).mean() for one in objects), torch.zeros(()))
        return functional.cross_entropy(scores, targets) + squares + found


class _Classifier(nn.Module):
    def __init__(self, network: str) -> None:
        super().__init__()
        self.network = getattr(torchvision.models, network)(weights=None, num_classes=CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        return functional.cross_entropy(self.network(pixels), torch.zeros(len(pixels), dtype=torch.long))


class Loop:
    """Trains a network of torchvision on random pixels: SGD with momentum, on one core."""

    def __init__(self, network: str) -> None:
        """`network`: a classifier, or `fasterrcnn_` and the name of its backbone."""
        torch.set_num_threads(1)
        torch.manual_seed(0)
        detector = network.removeprefix(DETECTOR)
        self._model: nn.Module = _Classifier(network) if detector == network else _Detector(detector)
        self._optimizer = torch.optim.SGD(self._model.parameters(), 1e-3, momentum=0.9)
        self._pixels = torch.randn(_BATCH, 3, _SIDE, _SIDE)
        self.moving = [(MODEL, name) for name, _ in self._model.named_buffers()]
        """What the forward pass changes."""
        self._before_update: Callable[[], None] = lambda: None
        self.waited_s = 0.0
        """For checkpoints, so far."""

    def step(self) -> None:
        """Learn from the one batch, after a wait for a copy that is not complete when the update is due."""
        self._optimizer.zero_grad(set_to_none=True)
        self._model(self._pixels).backward()
        waiting_s = time.perf_counter()
        self._before_update()
        self.waited_s += time.perf_counter() - waiting_s
        self._before_update = lambda: None
        self._optimizer.step()

    def train(self, seconds: float) -> None:
        """Steps for this long."""
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s:
            self.step()

    def save(self, saving: Saving) -> float:
        """Begin a checkpoint; when (`time.perf_counter`)."""
        asked_s = time.perf_counter()
        saving.save(self.tensors(), self.moving)
        self.waited_s += time.perf_counter() - asked_s
        self._before_update = saving.wait_for_copy
        return asked_s

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Weights and momentum, in place."""
        momentum = {
            name: self._optimizer.state[parameter]["momentum_buffer"]
            for name, parameter in self._model.named_parameters()
        }
        return {MODEL: self._model.state_dict(), OPTIMIZER: momentum}

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of the last step, in place."""
        found = {name: parameter.grad for name, parameter in self._model.named_parameters()}
        return {name: gradient for name, gradient in found.items() if gradient is not None}


def size_of(tensors: Mapping[str, Mapping[str, Any]]) -> int:
    """Bytes of all numbers in memory."""
    return sum(tensor.nbytes for named in tensors.values() for tensor in named.values())
