"""Draws results as bars: one panel for each value of a label, one group for each value of another, colours for the
rest.

Bars are medians, with a line from the lowest to the highest run. Raw reads of the same configuration, if present, are
drawn as ticks above its bars.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from essp.bench.results import Column, Results, Row
from essp.report.plots import LIGHT, Theme, png

_WIDTH = 0.8


def bars(results: Results, value: str, groups: str, panels: str, theme: Theme = LIGHT) -> bytes:
    """Returns a PNG. `value`: name of a column; `groups`, `panels`: names of labels. Each panel has its own scale."""
    column = next(column for column in results.columns if column.name == value)
    rows = [row for row in results.rows if value in row.values]
    names = list(dict.fromkeys(row.labels.get(panels, "") for row in rows))
    figure = Figure(figsize=(max(4.0, 3.6 * len(names)), 3.8), dpi=110, layout="constrained")
    axes_of = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(axes_of, names, strict=True):
        _panel(axes, column, [row for row in rows if row.labels.get(panels, "") == name], groups, panels, theme)
        axes.set_title(str(name))
        axes.set_xlabel(groups)
    axes_of[0].set_ylabel(column.title)
    if results.partial:
        figure.suptitle("interrupted: not all runs", color=theme.ink, fontsize=9)
    handles = {
        label: handle for axes in axes_of for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if len(handles) > 1:
        figure.legend(
            handles.values(), handles, loc="outside lower center", ncols=4, frameon=False, labelcolor=theme.ink
        )
    return png(figure, theme)


def _panel(axes: Axes, column: Column, rows: Sequence[Row], groups: str, panels: str, theme: Theme) -> None:
    ticks = list(dict.fromkeys(row.labels[groups] for row in rows))
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(_series(row, groups, panels, rows), []).append(row)
    width = _WIDTH / len(series)
    for number, (label, mine) in enumerate(series.items()):
        spreads = [row.values[column.name] for row in mine]
        medians = [spread.median / column.scale for spread in spreads]
        lows = [(spread.median - spread.low) / column.scale for spread in spreads]
        highs = [(spread.high - spread.median) / column.scale for spread in spreads]
        at = [ticks.index(row.labels[groups]) + (number - (len(series) - 1) / 2) * width for row in mine]
        colour = theme.lines[number % len(theme.lines)]
        axes.bar(at, medians, width * 0.92, color=colour, label=label, alpha=0.85)
        axes.errorbar(at, medians, [lows, highs], fmt="none", ecolor=theme.ink, elinewidth=1, capsize=2)
    axes.set_xticks(range(len(ticks)), [str(tick) for tick in ticks])
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=theme.faint, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _series(row: Row, groups: str, panels: str, rows: Sequence[Row]) -> str:
    """The labels that distinguish a row from the others of its panel and group."""
    telling = [
        name
        for name in row.labels
        if name not in (groups, panels) and len({other.labels.get(name) for other in rows}) > 1
    ]
    return ", ".join(
        f"{name} {value}" if isinstance(value := row.labels[name], int) else str(value) for name in telling
    )
