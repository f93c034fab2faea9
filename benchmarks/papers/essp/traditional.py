"""The traditional pipeline: frames and flow of all videos as JPEG files on disk, and then a DataLoader over them.

Frames are extracted by the `ffmpeg` command (`-q:v 2`, its usual quality for this), one video a process and a core.
Flow is computed from these files by OpenCV's DIS with its fastest preset, as ESSP does, within 20 px, and written as
two grey JPEG files for each pair of frames, as TSN's tools do. A sample is the middle frame of a clip and the stack of
its flow fields, both cropped at random and mirrored. Both networks learn from the same batch, so that each file is read
once.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.papers.machine import Marks
from essp_common.runtime.cores import cpu_count
from essp_engine.features.opencv import load_opencv
from essp_engine.learning.networks import Small

BOUND_PX = 20.0
_QUALITY = 95


@dataclass(frozen=True, slots=True)
class Task:
    """The videos and the settings that both pipelines train with."""

    videos: tuple[Path, ...]
    labels: tuple[int, ...]
    size: int = 256
    crop: int = 224
    length: int = 10
    """Flow fields of a clip."""
    stride: int = 1
    batch: int = 16
    epochs: int = 10

    @property
    def reach(self) -> int:
        """Frames from the first of a clip to its last."""
        return self.length * self.stride + 1


def check_tools() -> None:
    """Raises `RuntimeError` without the `ffmpeg` command."""
    if shutil.which("ffmpeg") is None:
        raise RuntimeError("the traditional pipeline needs the command ffmpeg: apt-get install ffmpeg")


def extract_all(task: Task, folder: Path) -> None:
    """Frames and flow of all videos, on all cores."""
    with ProcessPoolExecutor(cpu_count(), get_context("fork")) as pool:
        for done in [pool.submit(_extract, task, number, folder) for number in range(len(task.videos))]:
            done.result()


def flow_again(task: Task, folder: Path) -> None:
    """Flow of all videos, from frames that are there."""
    with ProcessPoolExecutor(cpu_count(), get_context("fork")) as pool:
        for done in [pool.submit(_write_flow, task, folder / f"{n:05d}") for n in range(len(task.videos))]:
            done.result()


def _extract(task: Task, number: int, folder: Path) -> None:
    own = folder / f"{number:05d}"
    own.mkdir(parents=True)
    scaled = f"scale={task.size}:{task.size}"
    command = ["ffmpeg", "-loglevel", "fatal", "-nostdin", "-threads", "1", "-i", str(task.videos[number])]
    command += ["-vsync", "0", "-vf", scaled, "-q:v", "2", str(own / "img_%05d.jpg")]
    subprocess.run(command, check=True)
    _write_flow(task, own)


def _write_flow(task: Task, folder: Path) -> None:
    """Of each frame and the one `stride` frames later."""
    cv2 = load_opencv()
    method = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
    frames = [cv2.imread(str(path), cv2.IMREAD_GRAYSCALE) for path in sorted(folder.glob("img_*.jpg"))]
    for number, (first, second) in enumerate(zip(frames, frames[task.stride :], strict=False), 1):
        fields = method.calc(first, second, None)
        codes = ((fields + BOUND_PX) * (255 / (2 * BOUND_PX))).clip(0, 255).round().astype(np.uint8)
        for axis, name in enumerate("xy"):
            path = folder / f"flow_{name}_{number:05d}.jpg"
            cv2.imwrite(str(path), codes[..., axis], [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])


def bytes_in(folder: Path, pattern: str) -> int:
    """Bytes of the files of this name."""
    return sum(path.stat().st_size for path in folder.rglob(pattern))


class Samples(Dataset[tuple[NDArray[np.uint8], NDArray[np.uint8], int]]):
    """A clip of each video from its files: `(crop, crop, 3)` and `(crop, crop, 2 * length)` uint8, and the class."""

    def __init__(self, task: Task, folder: Path) -> None:
        self._task = task
        self._folders = [folder / f"{number:05d}" for number in range(len(task.videos))]
        self._counts = [len(list(own.glob("flow_x_*.jpg"))) for own in self._folders]

    def __len__(self) -> int:
        return len(self._folders)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int]:
        cv2 = load_opencv()
        task, own, random = self._task, self._folders[index], np.random.default_rng()
        last = self._counts[index] - task.length * task.stride
        first = int(random.integers(0, max(1, last + 1)))
        numbers = [min(first + task.stride * step, self._counts[index] - 1) + 1 for step in range(task.length)]
        top, left = random.integers(0, task.size - task.crop + 1, 2)
        seen = slice(top, top + task.crop), slice(left, left + task.crop)
        middle = cv2.imread(str(own / f"img_{numbers[task.length // 2]:05d}.jpg"))
        planes = [
            cv2.imread(str(own / f"flow_{axis}_{number:05d}.jpg"), cv2.IMREAD_GRAYSCALE)[seen]
            for number in numbers
            for axis in "xy"
        ]
        picture, stack = middle[seen][..., ::-1], np.stack(planes, -1)
        if random.random() < 0.5:
            picture, stack = picture[:, ::-1], stack[:, ::-1].copy()
            stack[..., ::2] = 255 - stack[..., ::2]
        return np.ascontiguousarray(picture), stack, task.labels[index]


def train(task: Task, folder: Path, marks: Marks) -> int:
    """Both networks, epoch after epoch. Marks the first trained batch and the end of each epoch; returns the clips of
    an epoch."""
    classes = max(task.labels) + 1
    networks = [network_of(channels, classes) for channels in (3, 2 * task.length)]
    optimizers = [torch.optim.SGD(network.parameters(), 0.01, momentum=0.9) for network in networks]
    loader: DataLoader[Any] = DataLoader(
        Samples(task, folder), batch_size=task.batch, shuffle=True, num_workers=cpu_count()
    )
    for epoch in range(task.epochs):
        for pictures, stacks, labels in loader:
            for values, network, optimizer in zip((pictures, stacks), networks, optimizers, strict=True):
                scaled = (values.permute(0, 3, 1, 2).float() - 128) / 64
                loss = nn.functional.cross_entropy(network(scaled), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            marks.set("first batch")
        marks.set(f"epoch {epoch + 1}")
    return len(task.videos)


def network_of(channels: int, classes: int) -> nn.Module:
    """ESSP's `small`, for these channels and classes."""
    network = Small()
    first, last = network[0], network[-1]
    assert isinstance(first, nn.Conv2d)
    assert isinstance(last, nn.Linear)
    network[0] = nn.Conv2d(channels, first.out_channels, 5, stride=2, padding=2, bias=False)
    network[-1] = nn.Linear(last.in_features, classes)
    return network


def run(task: Task, folder: Path) -> dict[str, Any]:
    """Extract, train, then change the stride of the flow and train again until the first batch."""
    check_tools()
    marks = Marks()
    extract_all(task, folder)
    marks.set("extracted")
    clips = train(task, folder, marks)
    kept = {"frames": bytes_in(folder, "img_*.jpg"), "flow": bytes_in(folder, "flow_*.jpg")}
    counts = {"frames": len(list(folder.rglob("img_*.jpg"))), "files": sum(1 for p in folder.rglob("*.jpg"))}
    for path in folder.rglob("flow_*.jpg"):
        path.unlink()
    changed = Task(task.videos, task.labels, task.size, task.crop, task.length, 2 * task.stride, task.batch, 1)
    again = Marks()
    flow_again(changed, folder)
    train(changed, folder, again)
    return {"marks": marks.reached, "changed": again.reached, "bytes": kept, "clips": clips, **counts}


def labelled(rows: Sequence[tuple[str, str]]) -> tuple[tuple[Path, ...], tuple[int, ...]]:
    """Paths and class numbers of rows of a catalog: URI and class name of each."""
    classes = sorted({name for _, name in rows})
    return tuple(Path(uri.removeprefix("file://")) for uri, _ in rows), tuple(classes.index(name) for _, name in rows)
