"""The figures of a run beside their aims, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Aim, Figure

_MET, _MISSED = "#2a7f62", "#c8553d"


def draw(figures: Sequence[Figure], path: Path) -> None:
    """Write a PNG of all figures that have an aim; nothing where there is none."""
    aimed = [(figure, figure.aim) for figure in figures if figure.aim is not None and figure.value > 0]
    if not aimed:
        return
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(9, 1.0 + 0.21 * len(aimed)), layout="constrained")
    axes = canvas.subplots()
    axes.set_xscale("log")
    for row, (figure, aim) in enumerate(aimed):
        better = _better(figure.value, aim)
        axes.barh(row, better - 1, left=1, color=_MET if aim.met(figure.value) else _MISSED, height=0.7)
        ends = [_better(bound, aim) for bound in (figure.low, figure.high) if bound and bound > 0]  # a logarithmic axis
        if len(ends) == 2:
            axes.plot(ends, [row, row], color="black", linewidth=0.8)
        unit = "" if figure.unit == "ratio" else f" {figure.unit}"
        axes.annotate(f" {figure.value:.3g}{unit} ({aim})", (max(1.0, better, *ends), row), va="center", fontsize=7)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(aimed)), [figure.name for figure, _ in aimed], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("times better than its aim; line: from the lowest to the highest round")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.15, y=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path, dpi=110)


def _better(value: float, aim: Aim) -> float:
    """How many times a value is better than its aim; below 1: it misses it."""
    return value / aim.least if aim.least is not None else (aim.most or 0.0) / value
