"""What saving a training costs: bytes, what of it is lost by rounding, and how long a step waits for it.

Sizes are shares of the bytes of the numbers as they lie in memory. The training is a real one (`image_training.py`),
and its files are packed by what packs a trainer's (`essp_trainer/checkpoints/packer.py`), in the order in which it
saves. Sizes do not depend on the machine or its load, so each is measured once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from benchmarks.checkpoint_saver import Saver, torch_save
from benchmarks.disk_load import loaded
from benchmarks.figures import Aim, Figure, Scale
from benchmarks.hogwild import Images, made_up
from benchmarks.image_training import MODEL, OPTIMIZER, ImageTraining, answers, pretrained
from benchmarks.measure import spread
from essp.demo.photographs import BACKGROUNDS, TEXTURES, photograph
from essp_common.learning.models import arrays_of, as_tensors
from essp_common.learning.torchvision_compat import torchvision
from essp_common.tensors.packed import EXACT, Packing, pack, unpack
from essp_trainer.checkpoints.packer import Packer

_SAVES, _BETWEEN, _EXACT_EVERY = 16, 10, 8
"""Checkpoints of the training, the steps from each to the next, and what a job has unless it says otherwise."""
_CROPS, _SIDE = 10, 224
"""Of each photograph, at random; as large as the network was trained for."""

Arrays = Mapping[str, NDArray[Any]]


def checkpoint_size(scale: Scale) -> Iterator[Figure]:
    """Sizes of the checkpoints of a training: exact, as differences, and in 8 bits by channel."""
    saves, between, count = (3, 1, 64) if scale.quick else (_SAVES, _BETWEEN, 2000)
    training = ImageTraining(*made_up(count, 0))
    packer, packings = Packer(True, _EXACT_EVERY), {MODEL: EXACT, OPTIMIZER: EXACT}
    sizes: dict[str, list[float]] = {MODEL: [], OPTIMIZER: [], "all": []}
    for number in range(saves):
        for _ in range(between):
            training.step()
        state = training.state()
        packed = {file.name: len(file.data) for file in packer.pack(str(number), state, packings)}
        packer.settle(True)
        for name in (MODEL, OPTIMIZER):
            sizes[name].append(packed[name] / _bytes(state[name]))
        sizes["all"].append(sum(packed.values()) / sum(map(_bytes, state.values())))
    detail: dict[str, float | str] = {"saves": saves, "steps_between": between, "exact_every": _EXACT_EVERY}
    exact = {name: len(pack(arrays)) / _bytes(arrays) for name, arrays in state.items()}
    together = sum(exact[name] * _bytes(arrays) for name, arrays in state.items()) / sum(map(_bytes, state.values()))
    yield Figure("checkpoint_exact_size", together, "share", Aim(most=0.86))
    yield Figure("checkpoint_exact_size.weights", exact[MODEL], "share")
    yield Figure("checkpoint_exact_size.momentum", exact[OPTIMIZER], "share")
    for name, figure, aim in (
        ("all", "checkpoint_delta_size", Aim(most=0.6)),
        (MODEL, "checkpoint_delta_size.weights", None),
        (OPTIMIZER, "checkpoint_delta_size.momentum", None),
    ):
        values = sizes[name]
        yield Figure(figure, float(np.mean(values)), "share", aim, min(values), max(values), detail)


def checkpoint_q8(scale: Scale) -> Iterator[Figure]:
    """8 bits by channel: the size of weights trained on ImageNet, and how many photographs they classify alike."""
    torch.set_num_threads(1)
    model = pretrained()
    arrays = arrays_of(model.state_dict())
    packed = pack(arrays, Packing(bits=8))
    yield Figure("checkpoint_q8_size", len(packed) / _bytes(arrays), "share", Aim(most=0.26))
    images = crops(2 if scale.quick else _CROPS)
    exact = answers(model, images, _SIDE)
    for name, aim, data in (
        ("checkpoint_q8_same", Aim(least=0.99), packed),
        ("checkpoint_q8_same.global", None, pack(arrays, Packing(bits=8, scope="global", exact_one_dimensional=False))),
    ):
        model.load_state_dict(as_tensors(unpack(data)))
        same = float((answers(model, images, _SIDE) == exact).mean())
        yield Figure(name, same, "share", aim, detail={"images": len(images), "classes": len(set(exact.tolist()))})


def crops(each: int) -> Images:
    """Parts of the photographs in scikit-image, so many of each: `(N, 224, 224, 3)`."""
    rng, found = np.random.default_rng(0), []
    for name in (*BACKGROUNDS, *TEXTURES):
        whole = photograph(name, "train")
        height, width = whole.shape[0] - _SIDE, whole.shape[1] - _SIDE
        for _ in range(each):
            top, left = rng.integers(0, height + 1), rng.integers(0, width + 1)
            found.append(whole[top : top + _SIDE, left : left + _SIDE])
    return np.stack(found)


def _bytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())


@dataclass(frozen=True, slots=True)
class Stall:
    """One save, each way."""

    copy_s: float
    """What the step waits for."""
    torch_save_s: float
    steps: float
    """A step while the child packs / a step beside no save."""


def checkpoint_stall(scale: Scale) -> Iterator[Figure]:
    """How long a step waits for a save by a trainer's child process / for `torch.save`, on a disk that others load.

    The first save of a training, which begins the memory and the child, is left out.
    """
    torch.set_num_threads(1)
    scale.root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=scale.root) as temporary, loaded(Path(temporary), jobs=4 if scale.quick else 16):
        for name, figure in (("resnet50", "resnet50"), ("vit_b_16", "vit_b")):
            stalls = _stalls(_Loop(name, 32 if scale.quick else 64), Path(temporary), scale.rounds)
            ratio = spread([one.copy_s / one.torch_save_s for one in stalls])
            detail: dict[str, float | str] = {
                "copy_ms": round(1000 * min(one.copy_s for one in stalls), 1),
                "torch_save_ms": round(1000 * min(one.torch_save_s for one in stalls), 1),
            }
            yield Figure.of(f"checkpoint_stall.{figure}", ratio, Aim(most=0.05), detail)
            yield Figure.of(f"checkpoint_stall.{figure}.steps", spread([one.steps for one in stalls]), None, {})


class _Loop:
    """A plain loop over made-up pixels: SGD with momentum, batches of two."""

    def __init__(self, name: str, side: int) -> None:
        options = {"image_size": side} if name == "vit_b_16" else {}
        self._model = getattr(torchvision.models, name)(weights=None, **options)
        self._optimizer = torch.optim.SGD(self._model.parameters(), 1e-3, momentum=0.9)
        self._pixels = torch.randn(2, 3, side, side)
        self._labels = torch.zeros(2, dtype=torch.long)

    def step(self) -> float:
        """Seconds of it."""
        began_s = time.perf_counter()
        self._optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(self._model(self._pixels), self._labels).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return time.perf_counter() - began_s

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Weights and momentum, in place."""
        momentum = {
            name: self._optimizer.state[parameter]["momentum_buffer"]
            for name, parameter in self._model.named_parameters()
        }
        return {MODEL: self._model.state_dict(), OPTIMIZER: momentum}


def _stalls(loop: _Loop, folder: Path, rounds: int) -> list[Stall]:
    saver = Saver(folder, parallel=True)
    found = []
    try:
        loop.step()
        saver.save(loop.tensors())
        for _ in range(rounds):
            saver.finish()
            plain = [loop.step() for _ in range(2)]
            began_s = time.perf_counter()
            torch_save(loop.tensors(), folder)
            torch_save_s = time.perf_counter() - began_s
            copy_s = saver.save(loop.tensors())
            beside = [loop.step()]
            while saver.busy:
                beside.append(loop.step())
            found.append(Stall(copy_s, torch_save_s, statistics.median(beside) / statistics.median(plain)))
        saver.finish()
    finally:
        saver.close()
    return found
