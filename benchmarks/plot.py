"""The ratios of a run as bars, each with its aim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Figure

_MET, _MISSED, _NO_AIM = "#2a7f62", "#c8553d", "#7a8793"


def draw(figures: Sequence[Figure], path: Path) -> None:
    """Write a PNG of all figures that are ratios; nothing where there is none."""
    ratios = [figure for figure in figures if figure.unit == "ratio"]
    if not ratios:
        return
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(9, 0.9 + 0.4 * len(ratios)), layout="constrained")
    axes = canvas.subplots()
    for row, figure in enumerate(ratios):
        low, high = (figure.value if bound is None else bound for bound in (figure.low, figure.high))
        axes.barh(row, figure.value, color=_colour(figure), height=0.6)
        axes.plot([low, high], [row, row], color="black", linewidth=1)
        aim = figure.aim
        for bound in (aim.most, aim.least) if aim is not None else ():
            if bound is not None:
                axes.plot([bound, bound], [row - 0.4, row + 0.4], "k--", linewidth=1.5)
        label = f" {figure.value:.2f}" + (f"  (aim {aim})" if aim is not None else "")
        axes.annotate(label, (max(figure.value, high), row), va="center", fontsize=8)
    axes.set_yticks(range(len(ratios)), [figure.name for figure in ratios], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("ratio; line: from the lowest to the highest round; dashed: the aim")
    axes.margins(x=0.25)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path, dpi=120)


def _colour(figure: Figure) -> str:
    if figure.aim is None:
        return _NO_AIM
    return _MET if figure.aim.met(figure.value) else _MISSED
