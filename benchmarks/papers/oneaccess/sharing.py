"""Its Table 6 and Figure 9: Hogwild with two processes, each with a loader of its own, or both on one.

`benchmarks/hogwild.py` has the trainings: LeNet, batches of 32, SGD with momentum, as in the paper's program.
"""

from __future__ import annotations

import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.hogwild import Trial, read_images
from benchmarks.hogwild import run as train
from benchmarks.papers.document import markdown, spread
from benchmarks.papers.oneaccess.pictures import TEST, cifar
from benchmarks.papers.study import Options, Part, Steps, Values

SIDES: dict[str, tuple[str, int, str, str]] = {
    "jpg": ("jpg", 0, "a `DataLoader` in each process, 1 worker, JPEG files, torchvision's transforms", "127"),
    "npy": ("npy", 0, "the same, .npy files, no transforms", ""),
    "shared100": ("shared", 100, "one loader for both, samples of 100 batches", "83.85"),
    "shared500": ("shared", 500, "samples of 500 batches", "53.71"),
    "shared": ("shared", 0, "all images in memory (the paper: samples of 1,000 batches)", "50.5"),
    "memory": ("memory", 0, "none, images in memory", ""),
}
"""Side -> how `hogwild.py` calls it, size of a sample in batches, what it is, the paper's seconds."""
LEARNING = {
    "npy": ("a `DataLoader` in each process", "#c8553d"),
    "shared": ("one loader for both", "#2a7f62"),
    "memory": ("none, images in memory", "#7a8793"),
}
"""Sides whose test error is measured, and their colours."""
EPOCHS = 5


def prepared(options: Options) -> Path:
    """The folder of a trial: all images of CIFAR-10, and its test images."""
    images = cifar(options)
    folder = images.folder / "hogwild"
    if not (folder / "test.npz").exists():
        folder.mkdir(exist_ok=True)
        for name, made in (("train", images.files), ("records", images.records)):
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(made)
        np.save(folder / "labels.npy", images.labels)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            pixels, labels = read_images(str(options.images), Path(temporary), TEST)
        np.savez(folder / "partial.npz", images=pixels, labels=labels)
        (folder / "partial.npz").rename(folder / "test.npz")
    return folder


def trial(options: Options, side: str, number: int, tested: bool) -> dict[str, Any]:
    """One training: seconds, processor seconds, steps, and with `tested` the test error after each epoch."""
    on, relative, _, _ = SIDES[side]
    folder = prepared(options)
    epochs = (2 if options.quick else EPOCHS) if tested else 1
    outcome = train(Trial(folder, on, epochs, number, tested, relative))
    found = {"s": round(outcome.seconds, 3), "cpu_s": round(outcome.cpu_s, 3), "steps": outcome.steps}
    return found | ({"errors": [round(error, 4) for error in outcome.errors]} if tested else {})


def _steps(options: Options) -> Steps:
    for number in range(options.rounds):
        for side in SIDES:
            yield f"{side}.{number}", partial(trial, options, side, number, False)


def _table(values: Values) -> str:
    rows = []
    for side, (_, _, title, paper) in SIDES.items():
        runs = {key.split(".")[1]: value for key, value in values.items() if key.split(".")[0] == side}
        if not runs:
            continue
        ratios = [
            run["s"] / values[f"shared.{number}"]["s"] for number, run in runs.items() if f"shared.{number}" in values
        ]
        times = (spread([run[what] for run in runs.values()]) for what in ("s", "cpu_s"))
        rows.append([title, *times, spread(ratios, "{:.2f}") if ratios else "", paper])
    return markdown(["loader", "s", "CPU s", "time / one loader, all in memory", "the paper, s"], rows)


def _error_steps(options: Options) -> Steps:
    for number in range(options.rounds):
        for side in LEARNING:
            yield f"{side}.{number}", partial(trial, options, side, number, True)


def _errors(values: Values, side: str) -> list[list[float]]:
    return [value["errors"] for key, value in values.items() if key.split(".")[0] == side]


def _error_table(values: Values) -> str:
    rows = []
    for side, (title, _) in LEARNING.items():
        last = [100 * errors[-1] for errors in _errors(values, side)]
        if last:
            deviation = f"{statistics.stdev(last):.1f}" if len(last) > 1 else ""
            rows.append([title, str(len(last)), f"{statistics.mean(last):.1f}", deviation])
    return markdown(["loader", "seeds", f"test error after {EPOCHS} epochs, %", "standard deviation"], rows)


def _draw_errors(values: Values) -> Figure:
    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    axes: Any = figure.subplots()
    for side, (title, colour) in LEARNING.items():
        runs = np.array(_errors(values, side))
        if runs.size:
            epochs = range(1, runs.shape[1] + 1)
            axes.plot(epochs, 100 * runs.mean(0), color=colour, label=title.replace("`", ""))
            axes.fill_between(epochs, 100 * runs.min(0), 100 * runs.max(0), color=colour, alpha=0.2)
    axes.set_xticks(range(1, EPOCHS + 1))
    axes.set_xlabel("epoch")
    axes.set_ylabel("test error, %")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
    return figure


PART = Part("hogwild", "an epoch by two processes that train one network", _steps, _table, quiet=True,
            uses=("rounds", "images"), needs=("images",))  # fmt: skip
ERROR_PART = Part("convergence", "test error of two processes that train one network, by epoch", _error_steps,
                  _error_table, _draw_errors, uses=("rounds", "images"), needs=("images",))  # fmt: skip
