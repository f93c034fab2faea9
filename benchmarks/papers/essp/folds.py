"""The paper's Tables 2 and 3 as a protocol: which stack, which flow, from scratch or pre-trained, and which fusion.

On a small real set (`--videos FOLDER` with an `index.csv` of the columns path, label, set, sequence, as UT-Interaction
has it): each sequence of a set is left out once, so ten folds a set. All variants of a fold learn in one job, from the
same decoded clips; a step is one job, so a run that is killed loses one fold of one of the two kinds:

    pretrained    efficientnet_lite0 with ImageNet weights, whose last layer is solved for (`probe`)
    scratch       the `small` network, all of whose layers learn

Numbers are accuracies by video, the mean over all folds of both sets, with a 95 % interval over the folds.
"""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks.papers.document import markdown
from benchmarks.papers.machine import apart
from benchmarks.papers.study import Options, Part, Steps, Values
from essp.catalog.build import BuildOptions, build
from essp.embedded.composition import Embedded, EmbeddedOptions
from essp_common.artifacts import layout, scores
from essp_common.artifacts.fused_model import read_model
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores

STREAMS: Mapping[str, dict[str, Any]] = {
    "rgb-1": {"feature": "rgb", "params": {"frames": 1}},
    "rgb-8": {"feature": "rgb", "params": {"frames": 8}},
    "flow-1": {"feature": "flow", "params": {"length": 1}},
    "flow-5": {"feature": "flow", "params": {"length": 5}},
    "flow-10": {"feature": "flow", "params": {"length": 10}},
    "both-ways-10": {"feature": "flow_bidirectional", "params": {"length": 10}},
    "warped-10": {"feature": "flow_warped", "params": {"length": 10}},
    "vectors-10": {"feature": "motion_vectors", "params": {"length": 10}},
}
TITLES = {
    "rgb-1": "one frame",
    "rgb-8": "eight frames",
    "flow-1": "flow, L = 1",
    "flow-5": "flow, L = 5",
    "flow-10": "flow, L = 10",
    "both-ways-10": "flow both ways, 2 x 5",
    "warped-10": "warped flow, L = 10",
    "vectors-10": "motion vectors of the codec, L = 10",
}
TWO = ("rgb-1", "flow-10")
"""The streams that the paper fuses."""
RULES: Mapping[str, tuple[str, Sequence[str], scores.Rule]] = {
    "two-mean": ("one frame and flow, L = 10, averaged", TWO, "mean"),
    "two-product": ("the same two, multiplied", TWO, "product"),
    "all-mean": ("all of them, averaged", tuple(STREAMS), "mean"),
    "all-product": ("all of them, multiplied", tuple(STREAMS), "product"),
}
"""Fusions without anything to learn: name -> its title, its streams, and how they are fused."""
ROWS = (
    TITLES | {name: title for name, (title, *_) in RULES.items()} | {"fused": "all of them, fused as validation chose"}
)
"""Row of the table -> its title."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How networks learn."""

    title: str
    trainer: dict[str, Any]
    side: int
    """Of frames, in px."""
    epochs: int
    sampling: dict[str, Any]


KINDS: Mapping[str, Kind] = {
    "pretrained": Kind(
        "pre-trained",
        {
            "model": "efficientnet_lite0",
            "weights": "package:efficientnet_lite0",
            "probe": {},
            "batch_size": 8,
            "augment": {"crop": 224, "evaluation_scale": 1.0},
        },
        side=224,
        epochs=3,  # each shows one clip of every video, from another third of it
        sampling={"kind": "uniform"},
    ),
    "scratch": Kind(
        "from scratch",
        {
            "model": "small",
            "batch_size": 16,
            "dropout": 0.2,
            "optimizer": {"lr": 0.05, "unit": "share", "steps": [0.75], "weight_decay": 0.005},
            "augment": {"crop": 112, "scales": [1.0, 0.875], "flip": True},
        },
        side=128,
        epochs=4,
        sampling={"kind": "class_balanced", "clips_per_epoch": 480},
    ),
}
"""The training of all variants of a job."""
FUSIONS = ("average", "product", "weighted", "weighted_product", "best")
_ROOTS = ("file:///",)
_INTERVAL = 1.96


def catalog_of(videos: Path, number: str, work: Path) -> Path:
    """The catalog of one set, whose groups are its sequences."""
    path = work / f"{videos.name}-set{number}.parquet"
    work.mkdir(parents=True, exist_ok=True)
    listed = work / f"{videos.name}-set{number}.csv"
    with listed.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("path", "label", "group"))
        rows.writerows((videos / row["path"], row["label"], row["sequence"]) for row in index_of(videos, number))
    build(f"file://{listed}", f"file://{path}", _ROOTS, BuildOptions("csv"))
    return path


def index_of(videos: Path, number: str = "") -> list[dict[str, str]]:
    """The rows of `index.csv`, of one set or of all."""
    with (videos / "index.csv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if number in ("", row["set"])]


def fold(catalog: Path, kind: str, group: str, quick: bool) -> dict[str, Any]:
    """Train all variants on everything but a group, and judge them on it."""
    torch.set_num_threads(1)
    how, streams = KINDS[kind], {name: STREAMS[name] for name in (TWO if quick else STREAMS)}
    document = {
        "name": f"{kind}-{group}",
        "epochs": 1 if quick else how.epochs,
        "data": {"catalog": f"file://{catalog}", "left_out": {"group": group}, "validation_fraction": 0.1},
        "clip": {
            "frames": 16,
            "resize": {"mode": "exact", "height": how.side, "width": how.side},
            "motion": "vectors-10" in streams,
        },
        "sampling": {"clips_per_video": 3, **({"clips_per_epoch": 32} if quick else how.sampling)},
        "streams": streams,
        "trainers": {name: {"stream": name, "choose": "last", "threads": 1, **how.trainer} for name in streams},
        "aggregation": {"strategies": list(FUSIONS)},
        "limits": {"budget": "2GiB"},
    }
    with tempfile.TemporaryDirectory(prefix="essp-folds-") as folder:
        spec = JobSpec.model_validate(document | {"output": f"file://{folder}/run"})
        with Embedded(spec, Settings(), EmbeddedOptions(fresh=True, alone=True, decoders=1)) as job:
            while not job.ended(1.0):
                pass
            status = job.status()
        if status.state is not JobState.COMPLETED:
            raise RuntimeError(f"{spec.name} {status.state}: {status.reason}")
        store = Stores(_ROOTS).under(spec.output)
        model = read_model(store, layout.MODEL_MANIFEST)
        keys = {name: layout.scores(name, "test", spec.epochs - 1) for name in streams}  # by the epochs before the test
        tested = {name: scores.by_video(scores.read(store, key)) for name, key in keys.items()}
    assert model.test is not None
    top1 = {name: figures["top1"] for name, figures in model.test.members.items()}
    for name, (_, wanted, rule) in RULES.items():
        parts = {stream: tested[stream] for stream in wanted if stream in tested}
        top1[name] = float(scores.fuse(parts, dict.fromkeys(parts, 1.0), rule).right.mean())
    return {
        "videos": model.test.videos,
        "top1": top1 | {"fused": model.test.fused["top1"]},
        "strategy": model.strategy,
    }


def _steps(options: Options) -> Steps:
    assert options.videos is not None
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    index = index_of(options.videos)
    for kind in KINDS:
        for number in sorted({row["set"] for row in index})[: 1 if options.quick else None]:
            catalog = catalog_of(options.videos, number, options.work)
            groups = sorted({row["sequence"] for row in index if row["set"] == number}, key=int)
            for group in groups[:1] if options.quick else groups:
                yield f"{kind}.set{number}.{group}", partial(apart, fold, catalog, kind, group, options.quick)


def accuracy(folds: Sequence[Mapping[str, Any]], name: str, over: str = "") -> tuple[float, float]:
    """Percent of all videos, and half the width of the 95 % interval, by the spread over folds.

    `over`: how much more than this one, fold by fold, in points.
    """
    right = np.array([one["top1"][name] - (one["top1"][over] if over else 0) for one in folds], float)
    videos = np.array([one["videos"] for one in folds], float)
    mean = float((right * videos).sum() / videos.sum())
    error = float(np.sqrt(((videos * (right - mean)) ** 2).sum() / max(1, len(folds) - 1) * len(folds)) / videos.sum())
    return 100 * mean, 100 * _INTERVAL * error


def _folds(values: Values, kind: str) -> list[Mapping[str, Any]]:
    return [value for key, value in values.items() if key.startswith(f"{kind}.")]


def _shown(values: Values) -> list[str]:
    """The kinds that have at least half as many folds as the other."""
    counts = {kind: len(_folds(values, kind)) for kind in KINDS}
    return [kind for kind, count in counts.items() if 2 * count >= max(counts.values())]


def _table(values: Values) -> str:
    kinds = _shown(values)
    rows = []
    for name, title in ROWS.items():
        row = [title]
        for kind in kinds:
            folds = [one for one in _folds(values, kind) if name in one["top1"]]
            row.append("{:.1f} ± {:.1f}".format(*accuracy(folds, name)) if folds else "")
        rows.append(row)
    heads = [f"{KINDS[kind].title}, {len(_folds(values, kind))} folds, %" for kind in kinds]
    gains = [_gain(kind, _folds(values, kind)) for kind in kinds]
    left = [f"Not measured yet: {KINDS[kind].title}." for kind in KINDS if kind not in kinds]
    return "\n\n".join([markdown(["what the network sees", *heads], rows), *gains, *left])


def _gain(kind: str, folds: Sequence[Mapping[str, Any]]) -> str:
    """What fusing all streams adds to the best of them."""
    streams = [name for name in TITLES if name in folds[0]["top1"]]
    best = max(streams, key=lambda name: accuracy(folds, name)[0])
    points, width = accuracy(folds, "all-product", best)
    how = KINDS[kind].title.capitalize()
    return (
        f"{how}, the product of all of them gains {points:.1f} ± {width:.1f} points, fold by fold, on the best single "
        f"one ({TITLES[best]})."
    )


def _draw(values: Values) -> Figure | None:
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes: Any = figure.subplots()
    names = list(ROWS)
    for offset, kind, colour in ((-0.15, "pretrained", "#2a7f62"), (0.15, "scratch", "#33658a")):
        folds = _folds(values, kind)
        if kind in _shown(values):
            shown = [name for name in names if name in folds[0]["top1"]]
            found = [accuracy(folds, name) for name in shown]
            places = [names.index(name) + offset for name in shown]
            means, widths = zip(*found, strict=True)
            axes.errorbar(means, places, xerr=widths, fmt="o", color=colour, label=KINDS[kind].title, capsize=2)
    axes.set_yticks(range(len(names)), list(ROWS.values()))
    axes.invert_yaxis()
    axes.set_xlabel("videos classified correctly, %")
    figure.legend(loc="outside upper right", ncols=2)
    return figure


PART = Part("folds", "accuracy by what the network sees, pre-trained and from scratch", _steps, _table, _draw,
            uses=("videos",), needs=("videos",))  # fmt: skip
