"""A training written a second time, plainly: PyAV, OpenCV, PyTorch and a loop, without a line of ESSP.

It is given the plan (which clips, in which order) and the initial weights. Everything else it does by itself, from the
papers and the documents: decoding, flow, crops, normalisation, network, learning rate, optimizer, average, figures.
All in float64, with dropout 0.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import av
import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

Frames = NDArray[np.uint8]
IMAGENET = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], dtype=torch.float64) * 255
SIGNED = torch.tensor([[128.0], [57.63]], dtype=torch.float64)


class Clip(NamedTuple):
    """One clip of the plan."""

    path: str
    label: int
    first_frame: int


class Settings(NamedTuple):
    """What a job says: the size of frames, the feature, and a trainer's fields."""

    side: int
    frames: int
    flow: Mapping[str, Any] | None
    rgb_frames: int
    epochs: int
    seed: int
    trainer: Mapping[str, Any]


@lru_cache(maxsize=64)
def video(path: str, side: int) -> Frames:
    """All frames, scaled until they cover the square, and cut at the centre."""
    with av.open(path) as container:
        found = []
        for frame in container.decode(video=0):
            share = max(side / frame.height, side / frame.width)
            height, width = max(side, round(frame.height * share)), max(side, round(frame.width * share))
            picture = frame.reformat(width=width, height=height, format="rgb24", interpolation="BILINEAR").to_ndarray()
            top, left = (height - side) // 2, (width - side) // 2
            found.append(picture[top : top + side, left : left + side])
        return np.stack(found)


def feature(clip: Clip, job: Settings) -> Frames:
    """Evenly spaced frames of the clip, `(T, H, W, 3)`; or its stacked DIS flow, `(1, H, W, 2 L)`."""
    frames = video(clip.path, job.side)[clip.first_frame : clip.first_frame + job.frames]
    if job.flow is None:
        return frames[[(2 * i + 1) * job.frames // (2 * job.rgb_frames) for i in range(job.rgb_frames)]]
    grey = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames]
    dis: Any = cv2.DISOpticalFlow
    planes = []
    for one, other in pairwise(grey[: job.flow["length"] + 1]):
        moved = dis.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST).calc(one, other, None)
        planes.append(np.rint(np.clip(moved * np.float32(127 / (job.flow["bound"] * job.side)), -127, 127)) + 128)
    return np.concatenate(planes, axis=2).astype(np.uint8)[None]


def resized(frames: Frames, side: int) -> Tensor:
    """Squares of `side` pixels, `(T, C, side, side)`; bytes stay bytes."""
    x = torch.from_numpy(np.ascontiguousarray(frames.transpose(0, 3, 1, 2)))
    if x.shape[1] <= 4:
        return functional.interpolate(x, size=(side, side), mode="bilinear")
    return functional.interpolate(x.float(), size=(side, side), mode="bilinear").round()


def trained_view(frames: Frames, job: Settings, epoch: int, index: int) -> Tensor:
    """A random corner or centre region of random sides, and half of the time its mirror image."""
    augment = job.trainer["augment"]
    key = hashlib.blake2b(f"augment/{job.seed}/{epoch}/{index}".encode(), digest_size=8).digest()
    random = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little") >> 1))
    sides = [round(job.side * scale) for scale in augment["scales"]]
    pairs = [(i, j) for i in range(len(sides)) for j in range(len(sides)) if abs(i - j) <= 1]
    height, width = (sides[n] for n in pairs[random.integers(len(pairs))])
    down, right = ((0, 0), (0, 2), (2, 0), (2, 2), (1, 1))[random.integers(5)]
    top, left = (job.side - height) * down // 2, (job.side - width) * right // 2
    view = resized(frames[:, top : top + height, left : left + width], augment["crop"])
    if augment["flip"] and random.random() < 0.5:
        view = view.flip(3)
        if job.flow is not None:
            view[:, ::2] = 256 - view[:, ::2]
    return view


def evaluated_view(frames: Frames, job: Settings) -> Tensor:
    """The centre, resized as in training."""
    side = round(job.side * job.trainer["augment"]["evaluation_scale"])
    top = (job.side - side) // 2
    return resized(frames[:, top : top + side, top : top + side], job.trainer["augment"]["crop"])


def network(weights: Sequence[Tensor], channels: int, classes: int) -> nn.Sequential:
    """Five convolutions with batch normalisation, a global average and a linear layer."""
    layers: list[nn.Module] = []
    for width, kernel, stride in ((32, 5, 2), (48, 3, 2), (96, 3, 2), (128, 3, 2), (128, 3, 1)):
        layers += [
            nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        channels = width
    made = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)).double()
    made.load_state_dict(dict(zip(made.state_dict(), weights, strict=True)))
    return made


def scores(model: nn.Module, views: Sequence[Tensor], job: Settings) -> Tensor:
    """`(B, K)` logits: the mean over the frames of each clip."""
    mean, std = (IMAGENET if job.flow is None else SIGNED)[..., None, None]
    x = torch.stack(list(views)).double()
    made: Tensor = model((x.flatten(0, 1) - mean) / std).unflatten(0, x.shape[:2]).mean(1)
    return made


def rate(settings: Mapping[str, Any], epochs: int, done: float) -> float:
    """The learning rate after `done` epochs."""
    warm, lr = float(settings["warmup"]), float(settings["lr"])
    factor = 0.01 + 0.99 * done / warm if done < warm else 1.0
    if settings["schedule"] == "cosine":
        return lr * factor * (1 + math.cos(math.pi * max(0.0, done - warm) / (epochs - warm))) / 2
    stepped: float = float(settings["gamma"]) ** sum(done >= step for step in settings["steps"])
    return lr * factor * stepped


def training(
    weights: Sequence[Tensor], train: Sequence[Sequence[Clip]], validation: Sequence[Clip], job: Settings, classes: int
) -> Iterator[tuple[list[float], dict[str, float]]]:
    """For each epoch the loss of each step, and the figures of the validation after it."""
    own, rates, channels = job.trainer, job.trainer["optimizer"], weights[0].shape[1]
    model, average = (network(weights, channels, classes) for _ in range(2))
    plain = [p for p in model.parameters() if p.ndim == 1 and not rates["decay_all"]]
    decayed = [p for p in model.parameters() if not any(p is other for other in plain)]
    groups = [{"params": decayed, "weight_decay": rates["weight_decay"]}, {"params": plain, "weight_decay": 0.0}]
    sgd = torch.optim.SGD(groups, lr=1.0, momentum=rates["momentum"], nesterov=rates["nesterov"])
    updates = 0
    for epoch, clips in enumerate(train):
        losses: list[float] = []
        for begin in range(0, len(clips), own["batch_size"]):
            batch = list(enumerate(clips))[begin : begin + own["batch_size"]]
            views = [trained_view(feature(clip, job), job, epoch, index) for index, clip in batch]
            for group in sgd.param_groups:
                group["lr"] = rate(rates, job.epochs, epoch + begin / len(clips))
            labels = torch.tensor([clip.label for _, clip in batch])
            smoothing = own["label_smoothing"]
            loss = functional.cross_entropy(scores(model.train(), views, job), labels, label_smoothing=smoothing)
            sgd.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), rates["clip_grad_norm"])
            sgd.step()
            updates, losses = updates + 1, [*losses, loss.item()]
            share = 1 - min(own["ema"], (1 + updates) / (10 + updates)) if own["ema"] else 1.0
            for mine, theirs in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                mine.copy_(theirs if not mine.is_floating_point() else mine + share * (theirs - mine))
        yield losses, figures(average.eval(), validation, job)


def figures(model: nn.Module, clips: Sequence[Clip], job: Settings) -> dict[str, float]:
    """Loss and top-1 by clip, and by video from the mean of its clips' probabilities."""
    with torch.no_grad():
        rows = [scores(model, [evaluated_view(feature(clip, job), job)], job).softmax(1)[0] for clip in clips]
    videos = defaultdict(list)
    for clip, row in zip(clips, rows, strict=True):
        videos[clip.path, clip.label].append(row)
    means = [(label, torch.stack(found).mean(0)) for (_, label), found in videos.items()]
    by_clip = [(clip.label, row) for clip, row in zip(clips, rows, strict=True)]
    return {
        f"{name}{figure}": sum(value) / len(value)
        for name, pairs in (("", by_clip), ("video_", means))
        for figure, value in (
            ("loss", [-math.log(row[label].item()) for label, row in pairs]),
            ("top1", [float(row.argmax().item() == label) for label, row in pairs]),
        )
    }
