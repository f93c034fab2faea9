"""Its Tables 1 to 4, Figures 2 to 5: how long a training waits for each batch, and how long it computes.

A step waits for a batch, then trains ResNet-18 or ResNet-152 on it, from random weights. Each run is a process of its
own. The first steps of a run are left out: they make threads, and memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure

import essp
from benchmarks.image_epochs import closed, records_of
from benchmarks.image_peers import Photos, torch_loader
from benchmarks.papers.document import markdown, number
from benchmarks.papers.machine import apart
from benchmarks.papers.oneaccess.pictures import cifar, large, large_records
from benchmarks.papers.study import Options, Part, Steps, Values
from benchmarks.records import Files
from essp_engine.learning.networks import network

MODELS = {"resnet18": "ResNet-18", "resnet152": "ResNet-152"}
LOADERS = {
    "records": "`essp.Records`, pixels",
    "files0": "`DataLoader`, JPEG files, 0 workers",
    "files1": "`DataLoader`, JPEG files, 1 worker",
}
COLOURS = {"records": "#2a7f62", "files0": "#c8553d", "files1": "#d9a441"}
WARM = 3
"""Steps of a run that do not count."""


@dataclass(frozen=True, slots=True)
class Study:
    """Images of one size."""

    name: str
    batch: int
    steps: Mapping[str, int]
    """Model -> steps of a run."""
    paper: Mapping[str, tuple[str, str]]
    """Model -> mean, median, deviation of data and of compute time, in ms."""


SMALL = Study(
    "cifar_steps",
    32,
    {"resnet18": 60, "resnet152": 25},
    {
        "resnet18": ("12.05 / 15.60 / 15.60", "15.60 / 46.83 / 50.01"),
        "resnet152": ("9.15 / 15.61 / 7.66", "610.7 / 609.2 / 64.47"),
    },
)
LARGE = Study(
    "large_steps",
    8,
    {"resnet18": 25, "resnet152": 6},
    {
        "resnet18": ("375.3 / 375.2 / 11.06", "40.49 / 39.83 / 2.17"),
        "resnet152": ("365.2 / 358.0 / 33.96", "719.5 / 717.9 / 32.99"),
    },
)


def trained(study: Study, options: Options, model_name: str, loader_name: str) -> dict[str, list[float]]:
    """Milliseconds of waiting and of computing, step by step."""
    steps = 2 + WARM if options.quick else study.steps[model_name] + WARM
    loader = _loaders(study, options)[loader_name]()
    torch.manual_seed(0)
    model = network(model_name).make()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    took: dict[str, list[float]] = {"data_ms": [], "compute_ms": []}
    batches = iter(loader)
    for _ in range(steps):
        began = time.perf_counter()
        batch = next(batches)
        got = time.perf_counter()
        frames, labels = (batch.frames[:, 0], batch.labels) if isinstance(batch, essp.Batch) else batch
        output = model(frames.permute(0, 3, 1, 2) / 255)
        loss = torch.nn.functional.cross_entropy(output, labels.clamp(min=0))  # photographs have no class, -1
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        took["data_ms"].append(round(1000 * (got - began), 4))
        took["compute_ms"].append(round(1000 * (time.perf_counter() - got), 2))
    closed(loader)
    return took


def _loaders(study: Study, options: Options) -> dict[str, Callable[[], Iterable[Any]]]:
    if study.name == SMALL.name:
        images = cifar(options)
        records, files = images.records, Files(images.files, ".jpg")
    else:
        photos = large(options)
        records, files = large_records(options, "raw"), Photos(photos, len(list(photos.iterdir())))
    return {
        "records": partial(records_of, records, study.batch),
        "files0": partial(torch_loader, files, study.batch, 0),
        "files1": partial(torch_loader, files, study.batch, 1),
    }


def _steps(study: Study, options: Options) -> Steps:
    for turn in range(options.rounds):
        for model in MODELS:
            for loader in LOADERS:
                yield f"{model}.{loader}.{turn}", partial(apart, trained, study, options, model, loader)


def _table(study: Study, values: Values) -> str:
    rows = []
    for model, title in MODELS.items():
        for loader, name in LOADERS.items():
            runs = [value for key, value in values.items() if key.startswith(f"{model}.{loader}.")]
            if not runs:
                continue
            data, compute = ([ms for run in runs for ms in run[kind][WARM:]] for kind in ("data_ms", "compute_ms"))
            share = sum(data) / (sum(data) + sum(compute))
            rows.append([title, name, told(data), told(compute), f"{100 * share:.1f} %"])
        rows.append([title, "the paper: PyTorch, on a GPU", *study.paper[model], ""])
    head = ["network", "loader", "data: mean / median / deviation, ms", "compute: the same, ms", "waiting for data"]
    return markdown(head, rows)


def told(values: list[float]) -> str:
    """Mean, median and standard deviation."""
    return " / ".join(number(each(values)) for each in (statistics.mean, statistics.median, statistics.stdev))


def _draw(values: Values) -> Figure:
    figure = Figure(figsize=(8.5, 3.2), layout="constrained")
    axes: Any = figure.subplots(1, 2, sharey=True)
    for panel, (model, title) in zip(axes, MODELS.items(), strict=True):
        for loader, name in LOADERS.items():
            if (run := values.get(f"{model}.{loader}.0")) is None:
                continue
            panel.plot(run["data_ms"][WARM:], color=COLOURS[loader], label=name.replace("`", ""))
            panel.plot(run["compute_ms"][WARM:], "--", color=COLOURS[loader], linewidth=0.8)
        panel.set_yscale("log")
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("step")
    axes[0].set_ylabel("ms; solid: data, dashed: compute")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=7)
    return figure


def _part(study: Study, about: str, needs: str) -> Part:
    return Part(study.name, about, partial(_steps, study), partial(_table, study), _draw, quiet=True,
                uses=("rounds", needs), needs=(needs,))  # fmt: skip


CIFAR_PART = _part(SMALL, "data and compute time of each step, CIFAR-10", "images")
LARGE_PART = _part(LARGE, "data and compute time of each step, photographs", "photos")
