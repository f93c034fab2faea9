"""Evaluation and prediction written a second time, plainly: PyAV, OpenCV, PyTorch and loops, without a line of ESSP.

It is given the plan (which clips) and the trained weights. Everything else it does by itself, from the papers and the
documents: decoding, features, views, scores, figures, fusion, and where in a video a class is seen. All in float64.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import av
import cv2
import numpy as np
import torch
import torchvision
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.witness.loop import IMAGENET, SIGNED, Clip, Frames, network, resized

Rows = NDArray[np.float64]
"""`(N, C)` probabilities."""


class Geometry(NamedTuple):
    """The frames of a clip."""

    frames: int
    stride: int
    short_side: int


class Member(NamedTuple):
    """A trained network, and what it sees of a clip."""

    model: str
    weights: Sequence[Tensor]
    classes: int
    feature: str
    params: Mapping[str, Any]
    crop: int
    scale: float
    crops: int


@lru_cache(maxsize=64)
def video(path: str, short_side: int) -> tuple[list[Frames], list[float]]:
    """All frames as displayed, scaled by their short side, and when each is shown."""
    pictures: list[Frames] = []
    seconds = []
    with av.open(path) as container:
        for frame in container.decode(video=0):
            short = min(frame.height, frame.width)
            height, width = round(frame.height * short_side / short), round(frame.width * short_side / short)
            scaled = frame.reformat(width=width, height=height, format="rgb24", interpolation="BICUBIC").to_ndarray()
            pictures.append(np.ascontiguousarray(np.rot90(scaled, round(frame.rotation / 90)), np.uint8))
            seconds.append(float(frame.time) - (container.start_time or 0) / 1e6)
    return pictures, seconds


def decoded(clip: Clip, geometry: Geometry) -> list[Frames]:
    """The frames of a clip; beyond the end of the video its last one."""
    frames, _ = video(clip.path, geometry.short_side)
    return [frames[min(clip.first_frame + i * geometry.stride, len(frames) - 1)] for i in range(geometry.frames)]


def flow(one: Any, other: Any, params: Mapping[str, Any]) -> Any:
    """Displacements as signed codes around 128; the bound is a share of the short side."""
    if params.get("method") == "farneback":
        farneback: Any = cv2.calcOpticalFlowFarneback
        moved = farneback(one, other, None, 0.5, 3, 15, 3, 5, 1.1, 0)
    else:
        dis: Any = cv2.DISOpticalFlow
        moved = dis.create(cv2.DISOPTICAL_FLOW_PRESET_FAST).calc(one, other, None)
    return np.rint(np.clip(moved * np.float32(127 / (params["bound"] * min(one.shape))), -127, 127)) + 128


def feature(clip: Sequence[Frames], name: str, params: Mapping[str, Any]) -> Frames:
    """What a network sees of a clip, `(T, H, W, C)`."""
    if name == "rgb":
        wanted = params["frames"]
        return np.stack([clip[(2 * i + 1) * len(clip) // (2 * wanted)] for i in range(wanted)])
    taken = params["length"] + (name != "frame_stack")
    window = clip[(len(clip) - taken) // 2 :][:taken]
    if name == "frame_stack":
        planes: list[Any] = list(window)
    elif name == "frame_diff":
        planes = [np.clip(after.astype(int) - before, -128, 127) + 128 for before, after in pairwise(window)]
    else:
        grey = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in window]
        middle = len(grey) // 2
        both = [*pairwise(grey[middle:]), *pairwise(grey[middle::-1])]
        planes = [flow(*pair, params) for pair in (both if name == "flow_bidirectional" else pairwise(grey))]
    return np.concatenate(planes, axis=2).astype(np.uint8)[None]


def views(frames: Frames, member: Member) -> Tensor:
    """The squares that are cut from each frame, resized to the crop: `(views * T, C, crop, crop)`."""
    _, height, width, _ = frames.shape
    side = round(min(height, width) * member.scale)
    along = [(0, 1), (1, 1), (2, 1)] if height > width else [(1, 0), (1, 1), (1, 2)]
    places = {1: [(1, 1)], 3: along, 10: [(0, 0), (0, 2), (2, 0), (2, 2), (1, 1)]}[member.crops]
    corners = [((height - side) * down // 2, (width - side) * right // 2) for down, right in places]
    x = torch.cat([resized(frames[:, top : top + side, left : left + side], member.crop) for top, left in corners])
    x = x.double()
    mirrored = x.flip(3)
    if member.feature.startswith("flow"):
        mirrored[:, ::2] = 256 - mirrored[:, ::2]
    return x if member.crops < 10 else torch.cat([x, mirrored])


def classifier(member: Member) -> nn.Module:
    """The network with its weights."""
    if member.model == "small":
        return network(member.weights, member.weights[0].shape[1], member.classes).eval()
    made: nn.Module = torchvision.models.get_model(member.model, weights=None, num_classes=member.classes)
    made.double().load_state_dict(dict(zip(made.state_dict(), member.weights, strict=True)))
    return made.eval()


def probabilities(member: Member, clips: Sequence[Clip], geometry: Geometry) -> Rows:
    """The softmax of the logits' mean over frames and views, for each clip."""
    model, rows = classifier(member), []
    mean, std = IMAGENET if member.feature in ("rgb", "frame_stack") else SIGNED
    for clip in clips:
        x = views(feature(decoded(clip, geometry), member.feature, member.params), member)
        own_mean, own_std = (values.repeat(x.shape[1] // len(values))[:, None, None] for values in (mean, std))
        x = (x - own_mean) / own_std
        with torch.no_grad():
            rows.append(model(x).mean(0).softmax(0).numpy())
    return np.stack(rows)


def by_video(clips: Sequence[Clip], rows: Rows) -> dict[str, tuple[int, Rows]]:
    """Path -> label and mean of the rows of a video's clips."""
    found = defaultdict(list)
    for clip, row in zip(clips, rows, strict=True):
        found[clip.path, clip.label].append(row)
    return {path: (label, np.mean(own, axis=0)) for (path, label), own in found.items()}


def average_precision(relevant: NDArray[np.bool_], scores: Rows) -> float:
    """Precision at each threshold, weighted by the recall that it adds."""
    area, before = 0.0, 0
    for threshold in sorted(set(scores.tolist()), reverse=True):
        hits = int(relevant[scores >= threshold].sum())
        area, before = area + (hits - before) * hits / int((scores >= threshold).sum()), hits
    return area / before


def figures(labels: NDArray[np.intp], rows: Rows) -> dict[str, float]:
    """Loss, top-1, top-5, and means over the classes that occur: accuracy and average precision."""
    given = rows[np.arange(len(rows)), labels]
    rank = (rows > given[:, None]).sum(axis=1)
    occurring = sorted(set(labels.tolist()))
    return {
        "loss": float(-np.log(given).mean()),
        "top1": float((rank < 1).mean()),
        **({"top5": float((rank < 5).mean())} if rows.shape[1] > 5 else {}),
        "mean_class": float(np.mean([(rank[labels == c] < 1).mean() for c in occurring])),
        "mAP": float(np.mean([average_precision(labels == c, rows[:, c]) for c in occurring])),
    }


def fused(parts: Sequence[Rows], weights: Sequence[float], rule: str) -> Rows:
    """A weighted mean; or a product, each power its weight times the effective number of parts."""
    own = np.array(weights)[:, None, None]
    powers = np.maximum(parts, 1e-4) ** (own / math.fsum(w * w for w in weights))
    odds: Rows = np.sum(own * parts, axis=0) if rule == "mean" else np.prod(powers, axis=0)
    return odds if rule == "mean" else odds / odds.sum(axis=1, keepdims=True)


def segments(rows: Rows, frames: Sequence[tuple[int, int]]) -> list[tuple[int, int, int, float]]:
    """Class, frames `[first, end)` and contrast of the runs of clips that stand out, the surest first."""
    half_way = [(last + 1 + first) // 2 for (_, last), (first, _) in pairwise(frames)]
    edges = [frames[0][0], *half_way, frames[-1][1] + 1]
    found = []
    for label in range(rows.shape[1]):
        scores, runs = rows[:, label], []
        for begin in range(len(scores)):
            for end in range(begin + 1, len(scores) + 1):
                margin = math.ceil((end - begin) / 4)
                around = [*scores[max(0, begin - margin) : begin], *scores[end : end + margin]]
                runs.append((float(scores[begin:end].mean() - (np.mean(around) if around else 0)), begin, end))
        kept: list[tuple[float, int, int]] = []
        for contrast, begin, end in sorted(runs, key=lambda run: -run[0]):
            overlaps = [(min(end, e) - max(begin, b)) / min(end - begin, e - b) for _, b, e in kept]
            if contrast >= 0.2 and max(overlaps, default=0.0) <= 0.5:
                kept.append((contrast, begin, end))
        if scores.max() >= 0.2:
            found += [(label, edges[begin], edges[end], contrast) for contrast, begin, end in kept]
    return sorted(found, key=lambda run: -run[3])
