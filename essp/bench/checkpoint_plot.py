"""Draws what each way to save checkpoints costs as bars: training time, and the time until the store has everything."""

from __future__ import annotations

from matplotlib.figure import Figure

from essp.bench.results import Results
from essp.report.plots import LIGHT, Theme, png


def picture(results: Results, theme: Theme = LIGHT) -> bytes:
    """Returns a PNG. The dashed line is the training without checkpoints."""
    figure = Figure(figsize=(5.2, 3.4), dpi=100, layout="constrained")
    axes = figure.subplots()
    names = [str(row.labels["checkpoints"]) for row in results.rows]
    trained = [row.values["training_s"] for row in results.rows]
    drained = [row.values["drained_s"].median for row in results.rows]
    medians = [spread.median for spread in trained]
    axes.bar(names, medians, 0.6, color=theme.lines[0], alpha=0.85, label="training")
    axes.bar(names, drained, 0.6, bottom=medians, color=theme.lines[1], alpha=0.35, label="until all is in the store")
    lows = [spread.median - spread.low for spread in trained]
    highs = [spread.high - spread.median for spread in trained]
    axes.errorbar(names, medians, [lows, highs], fmt="none", ecolor=theme.ink, elinewidth=1, capsize=3)
    if "none" in names:
        axes.axhline(medians[names.index("none")], color=theme.ink, linestyle="--", linewidth=1)
    axes.set_ylabel("time, s")
    axes.set_xlabel("checkpoints")
    axes.use_sticky_edges = False  # a bar of height zero would otherwise keep the top without a margin
    axes.margins(y=0.1)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=theme.faint, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, labelcolor=theme.ink)
    if results.partial:
        figure.suptitle("interrupted: not all runs", color=theme.ink, fontsize=9)
    return png(figure, theme)
