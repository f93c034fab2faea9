"""Hogwild with two processes: each with a `DataLoader` of its own, or both on one shared `essp.Records`.

Two processes train one network (LeNet, SGD with momentum, batches of 32) without locks. The peer is what the paper of
OneAccess compares with: in each process a torch `DataLoader` with one worker, over a file an image, which the worker
decodes and normalizes, by torchvision's transforms, as the paper's program does. Here each process takes half of the
images of an epoch, in random order, so that both sides make the same number of steps. `.npy` is a second peer, whose
files are numbers as they lie and whose worker computes nothing. `.limit` is the same training on images in memory,
half of them in each process. Time: from before the two processes are forked until both have ended. Each run is a
process of its own.

`hogwild` (python -m benchmarks) is the ratio of the times of one epoch of images that are made up. `python -m
benchmarks.papers oneaccess` trains on CIFAR-10, and measures test errors.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

import essp
from benchmarks.figures import Aim, Figure, Scale
from benchmarks.measure import spread
from essp.records.build import BuildOptions, build
from essp.records.images import jpeg
from essp.records.sources import SourceOptions, open_source
from essp_common.objects.directory import DirectoryStore
from essp_common.records.chunk import Record
from essp_common.records.versions import DataSet
from essp_common.records.writer import Writer
from essp_common.wiring import Stores
from essp_engine.learning.torchvision_compat import torchvision

_PROCESSES, _BATCH, _SIDE = 2, 32, 32
_CLASSES = tuple("abcdefghij")
_RATE, _MOMENTUM = 0.01, 0.9
_transforms = torchvision.transforms
_TRANSFORM = _transforms.Compose([_transforms.ToTensor(), _transforms.Normalize((0.5,) * 3, (0.5,) * 3)])
"""Of the paper's program."""

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Trial:
    """One training."""

    folder: Path
    """Holds the images as files and as records, and the test images in `test.npz`."""
    on: str = "shared"
    """`shared`: one loader; `jpg` or `npy`: one for each process, over such files; `memory`: none."""
    epochs: int = 1
    seed: int = 0
    tested: bool = False
    """After each epoch, which takes time."""
    samples: int = 0
    """`shared`: size of a sample, in batches; two samples are in memory. 0: all images are in memory."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a training came to."""

    seconds: float
    cpu_s: float
    """CPU time of all processes."""
    steps: int
    errors: list[float]
    """Share of the test images that are classified wrongly, after each epoch."""


class Files(Dataset[tuple[Any, int]]):
    """One file an image."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._paths = sorted(map(str, (folder / "train").glob(f"*.{kind}")))
        self._labels = np.load(folder / "labels.npy")
        self._decodes = kind != "npy"

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._paths[index], int(self._labels[index])
        if not self._decodes:
            return np.load(path), label
        with Image.open(path) as image:
            return _TRANSFORM(image.convert("RGB")), label


def hogwild(scale: Scale) -> Iterator[Figure]:
    """An epoch of 8,000 small images by two processes: on two DataLoaders / on one shared loader."""
    count = 128 if scale.quick else 8000
    folder = _stored(scale.root / f"hogwild_{count}", *made_up(count, 0), *made_up(64, 1))
    rounds = [{on: run(Trial(folder, on)) for on in _SIDES} for _ in range(scale.rounds)]
    assert len({outcome.steps for each in rounds for outcome in each.values()}) == 1
    seconds: dict[str, float | str] = {f"{on}_s": round(outcome.seconds, 3) for on, outcome in rounds[-1].items()}
    for name, over, under, aim in (
        ("hogwild", "jpg", "shared", Aim(least=2.5)),
        ("hogwild.npy", "npy", "shared", None),
        ("hogwild.limit", "shared", "memory", None),
    ):
        yield Figure.of(name, spread([each[over].seconds / each[under].seconds for each in rounds]), aim, seconds)
        yield Figure.of(f"{name}.cpu", spread([each[over].cpu_s / each[under].cpu_s for each in rounds]), None, {})


_SIDES = ("jpg", "npy", "shared", "memory")


# --- training ---


def run(trial: Trial) -> Outcome:
    """Run the trial in a process of its own: it forks others, and a process with threads should not."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_trial, args=(trial, sender))
    process.start()
    sender.close()
    try:
        outcome: Outcome = receiver.recv()
    except EOFError:
        raise RuntimeError("a training died; its error stands above") from None
    finally:
        process.join()
    return outcome


def _trial(trial: Trial, sender: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(trial.seed)
    model = _network()
    model.share_memory()  # before the processes are forked: else each would train a copy
    torch.optim.SGD(model.parameters(), _RATE)  # loads, once, what each of them would load
    context = multiprocessing.get_context("fork")
    steps = context.Value("q", 0)
    turn = context.Barrier(_PROCESSES + 1) if trial.tested else None
    if trial.on == "memory":
        _in_memory(trial.folder)
    begin, cpu_s = time.perf_counter(), _cpu_s()
    shared = None
    if trial.on == "shared":
        loader = essp.Records(
            trial.folder / "records",
            batch_size=_BATCH,
            sampling=essp.RecordSampling(seed=trial.seed),
            memory=2 * trial.samples * _BATCH * 3 * _SIDE**2 or "1GiB",
        )
        shared = loader.share(processes=_PROCESSES)
    arguments = [(trial, shared, model, number, steps, turn) for number in range(_PROCESSES)]
    processes = [context.Process(target=_train, args=each) for each in arguments]
    for process in processes:
        process.start()
    errors = []
    if turn is not None:
        with np.load(trial.folder / "test.npz") as test:
            images, labels = torch.from_numpy(test["images"]), torch.from_numpy(test["labels"])
        for _ in range(trial.epochs):
            turn.wait()
            errors.append(_error(model, images, labels))
            turn.wait()
    for process in processes:
        process.join()
    seconds, cpu_s = time.perf_counter() - begin, _cpu_s() - cpu_s
    if shared is not None:
        shared.close()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a process of a training failed")
    sender.send(Outcome(seconds, cpu_s, steps.value, errors))


def _cpu_s() -> float:
    """CPU time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _train(trial: Trial, shared: Any, model: nn.Module, number: int, steps: Any, turn: Any) -> None:
    """One of the processes."""
    optimizer = torch.optim.SGD(model.parameters(), _RATE, momentum=_MOMENTUM)
    done = 0
    for epoch in range(trial.epochs):
        batches = _own(trial, epoch, number) if shared is None else ((b.frames[:, 0], b.labels) for b in shared)
        for images, labels in batches:
            optimizer.zero_grad()
            pixels = images if images.is_floating_point() else _pixels(images)
            loss = nn.functional.cross_entropy(model(pixels), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done += 1
        if turn is not None:
            turn.wait()
            turn.wait()
    with steps.get_lock():
        steps.value += done


def _own(trial: Trial, epoch: int, number: int) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of this process's half of an epoch."""
    if trial.on == "memory":
        images, labels = _in_memory(trial.folder)
        order = np.random.default_rng((trial.seed, epoch)).permutation(len(images))[number::_PROCESSES]
        return ((images[some], labels[some]) for some in torch.split(torch.from_numpy(order), _BATCH))
    files = Files(trial.folder, trial.on)
    order = np.random.default_rng((trial.seed, epoch)).permutation(len(files))[number::_PROCESSES]
    return DataLoader(files, _BATCH, sampler=order.tolist(), num_workers=1)


@cache
def _in_memory(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Loaded before the processes are forked."""
    images = np.stack([np.load(path) for path in sorted((folder / "train").glob("*.npy"))])
    return torch.from_numpy(images), torch.from_numpy(np.load(folder / "labels.npy"))


def _network() -> nn.Module:
    """LeNet, which the paper's program trains."""
    features = (nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2))
    layers = (nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
    return nn.Sequential(*features, *layers)


def _pixels(images: torch.Tensor) -> torch.Tensor:
    return images.permute(0, 3, 1, 2) / 127.5 - 1


@torch.inference_mode()
def _error(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    wrong = [
        (model(_pixels(some)).argmax(1) != truth).float()
        for some, truth in zip(torch.split(images, 500), torch.split(labels, 500), strict=True)
    ]
    return float(torch.cat(wrong).mean())


# --- images ---


def made_up(count: int, seed: int) -> tuple[Images, Labels]:
    """Images that a network can learn to tell apart, but not at once: a pattern of their class, moved and turned in
    its colours, under one of another class."""
    patterns = np.random.default_rng(7).normal(size=(len(_CLASSES), 2, 8, 8, 3)).astype(np.float32)
    patterns = np.stack([[cv2.resize(one, (_SIDE, _SIDE)) for one in two] for two in patterns])
    rng = np.random.default_rng((seed, 3))
    labels = rng.integers(0, len(_CLASSES), count)
    images = np.empty((count, _SIDE, _SIDE, 3), np.uint8)
    for image, label in zip(images, labels, strict=True):
        mixed = np.zeros((_SIDE, _SIDE, 3))
        for weight, kind in ((1.0, label), (0.7, rng.integers(0, len(_CLASSES)))):
            pattern = patterns[kind, rng.integers(0, 2)]
            mixed = mixed + weight * np.roll(pattern, rng.integers(0, _SIDE, 2), (0, 1))
        image[...] = np.clip(128 + 45 * (mixed + rng.normal(0, 0.8, mixed.shape)), 0, 255)
    return images, labels


def read_images(source: str, folder: Path, part: str) -> tuple[Images, Labels]:
    """What a folder or an archive has under `part`, scaled."""
    target = folder / f"source_{part}"
    with open_source(Path(source).absolute().as_uri(), Stores(("file:///",)), SourceOptions(within=part)) as found:
        build(found, DataSet(DirectoryStore.from_url(target.as_uri())), BuildOptions("raw", (_SIDE, _SIDE)))
    with essp.Records(target, batch_size=500) as loader:
        batches = list(loader)
    images = np.concatenate([batch.frames[:, 0].numpy() for batch in batches])
    return images, np.concatenate([batch.labels.numpy() for batch in batches])


def _stored(folder: Path, images: Images, labels: Labels, test_images: Images, test_labels: Labels) -> Path:
    """Training images as .npy files, JPEG files and records, test images in one file; made once."""
    if (folder / "test.npz").exists():
        return folder
    (folder / "train").mkdir(parents=True, exist_ok=True)
    with Writer(DataSet(DirectoryStore.from_url((folder / "records").absolute().as_uri())), _CLASSES) as writer:
        for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
            writer.add(Record.of_image(image, label))
            np.save(folder / "train" / f"{number:06}.npy", image)
            (folder / "train" / f"{number:06}.jpg").write_bytes(jpeg(image, 95))
    np.save(folder / "labels.npy", labels)
    np.savez(folder / "test.npz", images=test_images, labels=test_labels)
    return folder
