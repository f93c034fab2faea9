"""In how many bytes a training is saved, and what of it is lost by that.

All figures are shares of the bytes of the numbers as they lie in memory. The training is a real one
(`image_training.py`), and its files are packed by what packs a trainer's (`essp_trainer/checkpoints/packer.py`), in the
order in which it saves. Sizes do not depend on the machine or its load, so each is measured once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.figures import Aim, Figure, Scale
from benchmarks.hogwild import Images, made_up
from benchmarks.image_training import MODEL, OPTIMIZER, ImageTraining, answers, pretrained
from essp.demo.photographs import BACKGROUNDS, TEXTURES, photograph
from essp_common.learning.models import arrays_of, as_tensors
from essp_common.tensors.packed import EXACT, Packing, pack, unpack
from essp_trainer.checkpoints.packer import Packer

_SAVES, _BETWEEN, _EXACT_EVERY = 16, 10, 8
"""Checkpoints of the training, the steps from each to the next, and what a job has unless it says otherwise."""
_CROPS, _CROP = 20, 160
"""Of each photograph, at random; each of them shown to the network, scaled to `_SIDE`."""
_SIDE = 128

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
    """Parts of the photographs in scikit-image, so many of each: `(N, 160, 160, 3)`."""
    rng, found = np.random.default_rng(0), []
    for name in (*BACKGROUNDS, *TEXTURES):
        whole = photograph(name, "train")
        height, width = whole.shape[0] - _CROP, whole.shape[1] - _CROP
        for _ in range(each):
            top, left = rng.integers(0, height + 1), rng.integers(0, width + 1)
            found.append(whole[top : top + _CROP, left : left + _CROP])
    return np.stack(found)


def _bytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())
