"""What saving a training costs: bytes, what of it is lost by rounding, and how long a step waits for it.

Sizes are shares of the bytes of the numbers as they lie in memory. The training is a real one (`image_training.py`),
and its files are packed by what packs those of a trainer (`checkpoints/delta_packer.py`), in the order in which it
saves. Sizes do not depend on the machine or its load, so each is measured once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from benchmarks.checkpoint_saver import AsyncDcp, Saver, torch_save
from benchmarks.disk_load import loaded
from benchmarks.figures import Aim, Figure, Scale
from benchmarks.hogwild import Images, made_up
from benchmarks.image_training import MODEL, OPTIMIZER, ImageTraining, State, answers, pretrained
from benchmarks.measure import spread
from essp.bench.checkpoint import random_files
from essp.bench.saving import Burst, Direct, Files, room_for
from essp.bench.saving import Saver as StoreSaver
from essp.demo.photographs import BACKGROUNDS, TEXTURES, photograph
from essp.records.images import covering, decoded
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.throttled import Device, ThrottledStore, parse_throttle
from essp_common.tensors.packed import EXACT, Packing, pack, unpack
from essp_engine.learning.models import arrays_of, as_tensors
from essp_engine.learning.torchvision_compat import torchvision
from essp_trainer.checkpoints.delta_packer import Packer

_SAVES, _BETWEEN, _EXACT_EVERY = 16, 10, 8
"""Checkpoints of the training, the steps from each to the next, and what a job has unless it says otherwise."""
_MODELS = (("resnet50", "resnet50"), ("vit_b_16", "vit_b"))
"""Of torchvision, and what figures call them."""
_EVERY_S = 30.0
"""From save to save, as trainings do."""
_SLOW, _BURST_BYTES = "133MB/s,8ms", 2**27
"""The store behind a burst buffer, and a checkpoint of a network like ResNet-50 with momentum, rounded."""
_PLAIN = 5
"""Steps beside no save: before, between and after saves."""
_CROPS, _SIDE = 10, 224
"""Of each photograph, at random; as large as the network was trained for."""

Arrays = Mapping[str, NDArray[Any]]


def checkpoint_size(scale: Scale) -> Iterator[Figure]:
    """Sizes of the checkpoints of a training: exact, as differences, and in 8 bits by channel."""
    saves, between, count = (3, 1, 64) if scale.quick else (_SAVES, _BETWEEN, 2000)
    training = ImageTraining(*made_up(count, 0))
    packer, packings = Packer(True, _EXACT_EVERY), {MODEL: EXACT, OPTIMIZER: EXACT}
    rounding, rounded = Packer(True, _EXACT_EVERY), {MODEL: EXACT, OPTIMIZER: Packing(bits=8)}
    sizes: dict[str, list[float]] = {MODEL: [], OPTIMIZER: [], "all": [], "rounded": []}
    for number in range(saves):
        for _ in range(between):
            training.step()
        state = training.state()
        whole = sum(map(_bytes, state.values()))
        packed = _packed(packer, state, packings, number)
        for name in (MODEL, OPTIMIZER):
            sizes[name].append(packed[name] / _bytes(state[name]))
        sizes["all"].append(sum(packed.values()) / whole)
        sizes["rounded"].append(sum(_packed(rounding, state, rounded, number).values()) / whole)
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
        ("rounded", "checkpoint_delta_size.q8_momentum", None),
    ):
        values = sizes[name]
        yield Figure(figure, float(np.mean(values)), "share", aim, min(values), max(values), detail)


def checkpoint_q8(scale: Scale) -> Iterator[Figure]:
    """8 bits by channel: the size of weights trained on ImageNet, and how many photographs they classify alike."""
    torch.set_num_threads(1)
    model = pretrained()
    arrays = arrays_of(model.state_dict())
    packed = pack(arrays, Packing(bits=8))
    by_one = pack(arrays, Packing(bits=8, scope="global", exact_one_dimensional=False))
    yield Figure("checkpoint_q8_size", len(packed) / _bytes(arrays), "share", Aim(most=0.26))
    sets: list[tuple[str, Images, bytes, Aim | None]] = []
    if scale.photographs is not None:
        whole = photographs(scale.photographs)
        sets.append(("checkpoint_q8_same", whole, packed, Aim(least=0.99)))
        sets.append(("checkpoint_q8_same.global", whole, by_one, None))
    sets.append(("checkpoint_q8_same.parts", crops(2 if scale.quick else _CROPS), packed, None))
    exact = {name: answers(model, images, _SIDE) for name, images, _, _ in sets}
    for name, images, data, aim in sets:
        model.load_state_dict(as_tensors(unpack(data)))
        same = float((answers(model, images, _SIDE) == exact[name]).mean())
        yield Figure(
            name, same, "share", aim, detail={"images": len(images), "classes": len(set(exact[name].tolist()))}
        )


def photographs(folder: Path) -> Images:
    """The square in the middle of each JPEG file, seven eighths of the shorter side, as usual: `(N, 224, 224, 3)`."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        raise SystemExit(f"{folder}: there is no JPEG file")
    larger, edge = _SIDE + 32, 16
    squares = [covering(decoded(file.read_bytes()), larger, larger) for file in files]
    return np.stack([square[edge:-edge, edge:-edge] for square in squares])


def crops(each: int) -> Images:
    """`each` crops of each photograph of textures in scikit-image (grass, ...): `(N, 224, 224, 3)`."""
    rng, found = np.random.default_rng(0), []
    for name in (*BACKGROUNDS, *TEXTURES):
        whole = photograph(name, "train")
        height, width = whole.shape[0] - _SIDE, whole.shape[1] - _SIDE
        for _ in range(each):
            top, left = rng.integers(0, height + 1), rng.integers(0, width + 1)
            found.append(whole[top : top + _SIDE, left : left + _SIDE])
    return np.stack(found)


def _packed(packer: Packer, state: State, packings: Mapping[str, Packing], number: int) -> dict[str, int]:
    """Bytes of each file of the next checkpoint."""
    files = {file.name: len(file.data) for file in packer.pack(str(number), state, packings)}
    packer.settle(True)
    return files


def _bytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())


@dataclass(frozen=True, slots=True)
class Stall:
    """Seconds by which one save makes the loop longer, each way: from the call to the end of the step after it, less
    a step beside no save."""

    ours_s: float
    torch_save_s: float
    dcp_s: float
    waited_s: float
    """How long ESSP's save stops the loop: in the call, and before the update of the step after it."""
    steps: float
    """A step while the child packs / a step beside no save."""


def checkpoint_stall(scale: Scale) -> Iterator[Figure]:
    """How much longer a loop takes by a save of a trainer's child process / by `torch.save`, on a disk that others
    load.

    The first save of a training, which begins the memory and the child, is left out.
    """
    torch.set_num_threads(1)
    scale.root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=scale.root) as temporary, loaded(Path(temporary), jobs=4 if scale.quick else 16):
        for name, figure in _MODELS:
            stalls = _stalls(_Loop(name, 32 if scale.quick else 64), Path(temporary), scale.rounds)
            detail: dict[str, float | str] = {
                "ours_ms": round(1000 * statistics.median(one.ours_s for one in stalls), 1),
                "torch_save_ms": round(1000 * statistics.median(one.torch_save_s for one in stalls), 1),
                "dcp_ms": round(1000 * statistics.median(one.dcp_s for one in stalls), 1),
                "waited_ms": round(1000 * statistics.median(one.waited_s for one in stalls), 1),
            }
            ratio = spread([one.ours_s / one.torch_save_s for one in stalls])
            yield Figure.of(f"checkpoint_stall.{figure}", ratio, Aim(most=0.05), detail)
            waits = spread([one.waited_s / one.torch_save_s for one in stalls])
            yield Figure.of(f"checkpoint_stall.{figure}.waits", waits, Aim(most=0.05), {})
            beside = spread([one.ours_s / one.dcp_s for one in stalls])
            yield Figure.of(f"checkpoint_stall.{figure}.dcp", beside, Aim(most=1.0), {})
            yield Figure.of(f"checkpoint_stall.{figure}.steps", spread([one.steps for one in stalls]), None, {})


def checkpoint_total(scale: Scale) -> Iterator[Figure]:
    """A training with a save each 30 s / without, on a disk that others load.

    Only steps that are made while a save goes on differ, so only those are measured, against as many without one: the
    times of 30 s of steps differ by more than a save makes them longer.
    """
    torch.set_num_threads(1)
    scale.root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=scale.root) as temporary, loaded(Path(temporary), jobs=4 if scale.quick else 16):
        for name, figure in _MODELS:
            loop = _Loop(name, 32 if scale.quick else 64)
            saver = Saver(Path(temporary), parallel=True)
            try:
                loop.step()
                _saving(loop, saver)
                longer_s = [_longer(loop, saver) for _ in range(scale.rounds if scale.quick else 3 * scale.rounds)]
            finally:
                saver.close()
            detail: dict[str, float | str] = {"longer_ms": round(1000 * statistics.median(longer_s), 1)}
            ratio = spread([1 + each_s / _EVERY_S for each_s in longer_s])
            yield Figure.of(f"checkpoint_total.{figure}", ratio, Aim(most=1.01), detail)


def burst(scale: Scale) -> Iterator[Figure]:
    """How long a training waits for a checkpoint that goes straight to a slow store / to a burst buffer first."""
    size_bytes, saves = (2**20, 2) if scale.quick else (_BURST_BYTES, 4)
    scale.root.mkdir(parents=True, exist_ok=True)
    waits: list[tuple[float, float, float]] = []
    for _ in range(scale.rounds):
        with TemporaryDirectory(dir=scale.root) as temporary:
            slow = ThrottledStore(DirectoryStore(f"{temporary}/slow"), Device(parse_throttle(_SLOW)))
            files = random_files(size_bytes)
            direct_s = _wait(Direct(slow.below("direct")), files, saves)
            staged_s = _wait(Burst(slow.below("burst"), f"{temporary}/fast", room_for(size_bytes)), files, saves)
            fast_s = _wait(Direct(DirectoryStore(f"{temporary}/alone")), files, saves)
        waits.append((direct_s, staged_s, fast_s))
    detail: dict[str, float | str] = {
        "bytes": size_bytes,
        "direct_ms": round(1000 * statistics.median(direct_s for direct_s, _, _ in waits)),
        "staged_ms": round(1000 * statistics.median(staged_s for _, staged_s, _ in waits)),
    }
    yield Figure.of("burst", spread([direct_s / staged_s for direct_s, staged_s, _ in waits]), Aim(least=2.6), detail)
    yield Figure.of("burst.fast", spread([staged_s / fast_s for _, staged_s, fast_s in waits]), Aim(most=1.05), {})


def _wait(saver: StoreSaver, files: Callable[[], Files], saves: int) -> float:
    """Median seconds of a save, each begun when the one before is in the store."""
    found = []
    try:
        for step in range(1, saves + 1):
            made = files()
            began_s = time.perf_counter()
            saver.save(step, made)
            found.append(time.perf_counter() - began_s)
            saver.finish()
    finally:
        saver.abandon()
    return statistics.median(found)


class _Loop:
    """A plain loop over made-up pixels: SGD with momentum, batches of two."""

    def __init__(self, name: str, side: int) -> None:
        options = {"image_size": side} if name == "vit_b_16" else {}
        self._model = getattr(torchvision.models, name)(weights=None, **options)
        self._optimizer = torch.optim.SGD(self._model.parameters(), 1e-3, momentum=0.9)
        self._pixels = torch.randn(2, 3, side, side)
        self._labels = torch.zeros(2, dtype=torch.long)
        self._moving = [(MODEL, name) for name, _ in self._model.named_buffers()]
        self._before_update: Callable[[], None] = lambda: None
        self.waited_s = 0.0
        """For saves, so far."""

    def step(self) -> float:
        """Seconds of it, with the wait for a copy that is not complete when the update is due."""
        began_s = time.perf_counter()
        self._optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(self._model(self._pixels), self._labels).backward()  # type: ignore[no-untyped-call]
        waiting_s = time.perf_counter()
        self._before_update()
        self.waited_s += time.perf_counter() - waiting_s
        self._optimizer.step()
        return time.perf_counter() - began_s

    def save(self, saver: Saver) -> None:
        """Begin, as a trainer does: what the forward pass changes is copied, the rest beside the next step."""
        began_s = time.perf_counter()
        saver.save(self.tensors(), self._moving)
        self.waited_s += time.perf_counter() - began_s
        self._before_update = saver.wait_for_copy

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Weights and momentum, in place."""
        momentum = {
            name: self._optimizer.state[parameter]["momentum_buffer"]
            for name, parameter in self._model.named_parameters()
        }
        return {MODEL: self._model.state_dict(), OPTIMIZER: momentum}


def _stalls(loop: _Loop, folder: Path, rounds: int) -> list[Stall]:
    saver, peer = Saver(folder, parallel=True), AsyncDcp(folder)
    found = []
    try:
        loop.step()
        loop.save(saver)
        loop.step()
        peer.save(loop.tensors())
        for _ in range(rounds):
            saver.finish()
            peer.finish()
            plain = [loop.step() for _ in range(_PLAIN)]
            torch_save_s = _with_step(loop, lambda: torch_save(loop.tensors(), folder))
            dcp_s = _with_step(loop, lambda: peer.save(loop.tensors()))
            peer.finish()
            plain += [loop.step() for _ in range(_PLAIN)]
            before_s = loop.waited_s
            ours_s = _with_step(loop, lambda: loop.save(saver))
            waited_s = loop.waited_s - before_s
            beside = [loop.step()]
            while saver.busy:
                beside.append(loop.step())
            plain_s = statistics.median(plain + [loop.step() for _ in range(_PLAIN)])
            longer_s = (ours_s - plain_s, torch_save_s - plain_s, dcp_s - plain_s)
            found.append(Stall(*longer_s, waited_s, statistics.median(beside) / plain_s))
    finally:
        saver.close()
        peer.close()
    return found


def _with_step(loop: _Loop, save: Callable[[], None]) -> float:
    """Seconds of a save and the step after it."""
    began_s = time.perf_counter()
    save()
    loop.step()
    return time.perf_counter() - began_s


def _longer(loop: _Loop, saver: Saver) -> float:
    """Seconds by which a save makes a training longer, until it is in the store."""
    began_s = time.perf_counter()
    steps = _saving(loop, saver)
    saved_s = time.perf_counter()
    for _ in range(steps):
        loop.step()
    return (saved_s - began_s) - (time.perf_counter() - saved_s)


def _saving(loop: _Loop, saver: Saver) -> int:
    """Begin a save, and make steps until it is in the store; how many."""
    loop.save(saver)
    loop.step()
    steps = 1
    while saver.busy:
        loop.step()
        steps += 1
    saver.finish()
    return steps
