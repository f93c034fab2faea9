"""The experiments of the OneAccess paper as one picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_COLOURS = ("#2a7f62", "#7a8793")


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Write a PNG of what was measured."""
    from matplotlib.figure import Figure

    epochs: dict[str, list[Any]] = defaultdict(list)
    for row in found["rows"]:
        epochs[row["experiment"]].append(row)
    panels: list[tuple[Callable[[Any, Any], None], str, Any]] = [
        (_epoch, title, rows) for title, rows in epochs.items()
    ]
    if found.get("iterations_ms"):
        panels.append((_iterations, "cifar, batches of 4: time to each batch", found["iterations_ms"]))
    if found["samples"]:
        panels.append((_samples, "time to read a sample", found["samples"]))
    if found["steps"]:
        panels.append((_steps, "data and compute time of a step", found["steps"]))
    if not panels:
        return
    rows = -(-len(panels) // 2)
    canvas = Figure(figsize=(13, 4.2 * rows), layout="constrained")
    for axes, (fill, title, values) in zip(canvas.subplots(rows, 2, squeeze=False).flat, panels, strict=False):
        fill(axes, values)
        axes.set_title(title, fontsize=10)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path, dpi=110)


def _epoch(axes: Any, rows: Any) -> None:
    names = [row["what"] for row in rows]
    axes.barh(names, [row["best_s"] for row in rows], color=[_COLOURS[not n.startswith("records")] for n in names])
    axes.set_xscale("log")
    axes.set_xlabel("seconds an epoch (logarithmic)", fontsize=8)
    axes.invert_yaxis()


def _iterations(axes: Any, values: Any) -> None:
    for name, took in values.items():
        axes.plot(took, linewidth=0.7, label=name)
    axes.set_yscale("log")
    axes.set_ylabel("ms", fontsize=8)
    axes.legend(fontsize=7)


def _samples(axes: Any, values: Any) -> None:
    by: dict[str, list[Any]] = defaultdict(list)
    for sample in values:
        by[sample["data"]].append(sample)
    for name, samples in by.items():
        middle = [sample["median_ms"] for sample in samples]
        below = [sample["median_ms"] - sample["low_ms"] for sample in samples]
        above = [sample["high_ms"] - sample["median_ms"] for sample in samples]
        sizes = [sample["size"] for sample in samples]
        axes.errorbar(sizes, middle, (below, above), marker="o", markersize=3, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("records of a sample", fontsize=8)
    axes.set_ylabel("ms", fontsize=8)
    axes.legend(fontsize=7)


def _steps(axes: Any, values: Any) -> None:
    names = [f"{step['data']}, {step['model']}\n{step['loader']}" for step in values]
    data = [step["data_s"] for step in values]
    axes.barh(names, data, color="#c8553d", label="data")
    axes.barh(names, [step["compute_s"] for step in values], left=data, color=_COLOURS[1], label="compute")
    axes.set_xlabel("seconds", fontsize=8)
    axes.invert_yaxis()
    axes.legend(fontsize=7)
