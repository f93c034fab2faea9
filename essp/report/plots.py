"""Draws curves and the confusion matrix as PNG, for a light and for a dark page.

Only matplotlib's object interface is used. It has no global state, so other threads may run at the same time.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from essp.report.lettering import fonts_for, shortened
from essp_common.artifacts.figures import NAMES
from essp_common.artifacts.manifest import PhaseRecord, TakenChange

_DPI = 110
LEGIBLE_CLASSES = 30
"""With more classes, a confusion matrix has no room for names and numbers."""
_LABEL = 72
"""Maximum number of columns in the label of a sweep's member, which leaves half of the picture for the bars."""
_HEIGHT, _LEGEND_ROWS, _LEGEND_COLUMNS = 4.1, 2, 2
"""Height in inches of a plot of curves whose legend has `_LEGEND_ROWS` rows of `_LEGEND_COLUMNS`."""
_LEGEND_ROW = 0.24
"""Height in inches of a further legend row. It enlarges the picture, so that the curves keep their height."""


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a picture."""

    name: str
    background: str
    ink: str
    faint: str
    lines: tuple[str, ...]
    strong: str
    """The end of the colour ramp that begins at `background` and shows shares."""


# The line colours are the palette of Okabe and Ito, which is distinguishable with any colour vision.
LIGHT = Theme(
    "light", "#ffffff", "#1f2933", "#d9dee4", ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a07700"), "#08519c"
)
DARK = Theme(
    "dark", "#171c22", "#e4e8ec", "#39424d", ("#56b4e9", "#f0803c", "#2fc296", "#e09ac4", "#e6c029"), "#56b4e9"
)


Histories = Mapping[str, Sequence[PhaseRecord]]
"""Trainer -> its reports, by phase."""
Changes = Mapping[str, Sequence[TakenChange]]
"""Trainer -> the changes to the running job that it applied."""
NO_CHANGES: Changes = MappingProxyType({})


def loss(histories: Histories, theme: Theme, changes: Changes = NO_CHANGES) -> bytes:
    """Loss over the epochs: training dashed, validation solid. Outliers far above the other values are cut off and
    counted."""
    figure, axes = _over_epochs(histories, ("loss",), theme, changes)
    series = [
        (colour, *_series(history, purpose, ("loss",)))
        for colour, history in zip(line_colours(theme, len(histories)), histories.values(), strict=True)
        for purpose in ("train", "validation")
    ]
    low, high, cut = bounds([value for _, _, values in series for value in values])
    margin = 0.05 * (high - low or high or 1.0)
    axes.set_ylim(max(0.0, low - margin), high + margin)
    if cut:
        for colour, epochs, values in series:
            above = [epoch for epoch, value in zip(epochs, values, strict=True) if value > high]
            axes.plot(above, [high] * len(above), "^", color=colour, markersize=7)
    axes.set_title("Loss" + (f" ({cut} higher, at the triangle)" if cut else ""))
    return png(figure, theme)


def accuracy(
    histories: Histories,
    best: Mapping[str, int],
    theme: Theme,
    changes: Changes = NO_CHANGES,
    metric: str = "top1",
    unit: str = "video",
) -> bytes:
    """A metric over the epochs: training dashed, validation solid, with the chosen epoch marked."""
    names = (f"video_{metric}", metric)
    figure, axes = _over_epochs(histories, names, theme, changes)
    for colour, (trainer, history) in zip(line_colours(theme, len(histories)), histories.items(), strict=True):
        _mark(axes, history, names, best.get(trainer), colour)
    axes.set_title(f"{NAMES[metric]} (validation by {unit})")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    return png(figure, theme)


def line_colours(theme: Theme, count: int) -> Sequence[str]:
    """A colour for each trainer, from the theme or, if it has too few, from a ramp."""
    if count <= len(theme.lines):
        return theme.lines[:count]
    return [to_hex(colormaps["turbo"](place)) for place in np.linspace(0.08, 0.92, count)]


def epochs_at(history: Sequence[PhaseRecord], change: TakenChange) -> float:
    """The time at which a change was applied, in epochs: 1.5 is the middle of the second one."""
    clips = {record.epoch: record.metrics.get("clips", 0.0) for record in history if record.purpose == "train"}
    return change.epoch + (change.clip / clips[change.epoch] if clips.get(change.epoch) else 0.0)


def bounds(values: Sequence[float]) -> tuple[float, float, int]:
    """The range to draw, such that outliers do not compress the other values.

    Returns the lowest value, the highest value within three times the spread of the lower nine tenths, and the number
    of values above it.
    """
    found = sorted(value for value in values if np.isfinite(value))
    if not found:
        return 0.0, 1.0, 0
    low, common = found[0], found[int(0.9 * (len(found) - 1))]
    limit = low + 3 * (common - low or abs(low) or 1.0)
    inside = [value for value in found if value <= limit]
    return low, inside[-1], len(found) - len(inside)


def _over_epochs(histories: Histories, names: Sequence[str], theme: Theme, changes: Changes) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.6, _HEIGHT), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    for colour, (trainer, history) in zip(line_colours(theme, len(histories)), histories.items(), strict=True):
        for purpose, style in (("train", "--"), ("validation", "-")):
            _line(axes, history, purpose, names, f"{trainer} {purpose}", colour, style)
        for change in changes.get(trainer, ()):
            axes.axvline(epochs_at(history, change), color=colour, linewidth=1.0, linestyle=":")
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))  # there may be only one epoch
    axes.grid(color=theme.faint, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        rows = -(-len(handles) // _LEGEND_COLUMNS)
        figure.set_figheight(_HEIGHT + _LEGEND_ROW * max(0, rows - _LEGEND_ROWS))
        figure.legend(
            handles, labels, loc="outside lower center", ncols=_LEGEND_COLUMNS, frameon=False, labelcolor=theme.ink
        )
    return figure, axes


def sweeps(compared: Mapping[str, Sequence[tuple[str, float]]], theme: Theme) -> bytes:
    """Sweep -> label and figure of each member, best first. Each member has a bar, and the best one's is filled."""
    rows = sum(map(len, compared.values()))
    figure = Figure(figsize=(9, 0.8 * len(compared) + 0.3 * rows), dpi=_DPI, layout="constrained")
    heights = [len(members) + 1 for members in compared.values()]
    parts = figure.subplots(len(compared), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, (sweep, members) in zip(parts, compared.items(), strict=True):
        values = [value for _, value in members]
        fills = [theme.strong, *["none"] * (len(members) - 1)]
        axes.barh(range(len(members)), values, color=fills, edgecolor=theme.strong, height=0.7)
        axes.set_yticks(range(len(members)), [shortened(label, _LABEL) for label, _ in members], fontsize=8)
        axes.invert_yaxis()
        axes.set_title(sweep, loc="left", fontsize=9, color=theme.ink)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    return png(figure, theme)


def confusion(counts: NDArray[np.int64], classes: Sequence[str], theme: Theme) -> bytes:
    """Rows are labels, columns are predictions. Shades are shares of a row, numbers are videos.

    `classes`: their names as returned by `lettering`.
    """
    legible = len(classes) <= LEGIBLE_CLASSES
    side = max(4.0, min(9.0, 1.8 + 0.45 * len(classes)))
    figure = Figure(figsize=(side + 1.4, side), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shares = counts / totals
    ramp = LinearSegmentedColormap.from_list(theme.name, [theme.background, theme.strong])
    image = axes.imshow(shares, cmap=ramp, vmin=0, vmax=1)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, format=PercentFormatter(1.0, symbol=" %"))
    _colour(bar.ax, theme)
    axes.set_xlabel("predicted")
    axes.set_ylabel("label")
    if legible:
        size = 8 if len(classes) <= 16 else 6
        axes.set_xticks(range(len(classes)), classes, rotation=60, ha="right", rotation_mode="anchor", fontsize=size)
        axes.set_yticks(range(len(classes)), classes, fontsize=size)
        _numbers(axes, counts, shares, theme, size)
    return png(figure, theme)


def png(figure: Figure, theme: Theme) -> bytes:
    """The figure as PNG in the colours of a theme."""
    figure.set_facecolor(theme.background)
    for axes in figure.axes:
        _colour(axes, theme)
    sink = io.BytesIO()
    # The file contains no date or version, so equal runs have equal pictures.
    FigureCanvasAgg(figure)
    exact: dict[str, Any] = {"metadata": {"Software": None}}
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        axis.get_ticklabels()  # creates the labels, so that they are found below
    texts: list[Any] = figure.findobj(Text)
    fonts = fonts_for(text.get_text() for text in texts)
    for text in texts:
        text.set_parse_math(False)  # names are not formulas, even if they contain dollar signs
        text.set_fontfamily(fonts.families)
    figure.savefig(sink, format="png", bbox_inches="tight", pad_inches=0.08, **exact)
    return sink.getvalue()


def _colour(axes: Axes, theme: Theme) -> None:
    axes.set_facecolor(theme.background)
    axes.tick_params(colors=theme.ink)
    axes.title.set_color(theme.ink)
    axes.xaxis.label.set_color(theme.ink)
    axes.yaxis.label.set_color(theme.ink)
    for spine in axes.spines.values():
        spine.set_color(theme.faint)


def _series(history: Sequence[PhaseRecord], purpose: str, names: Sequence[str]) -> tuple[list[int], list[float]]:
    points = [
        (record.epoch + 1, next(record.metrics[name] for name in names if name in record.metrics))
        for record in history
        if record.purpose == purpose and any(name in record.metrics for name in names)
    ]
    return [epoch for epoch, _ in points], [value for _, value in points]


def _line(
    axes: Axes,
    history: Sequence[PhaseRecord],
    purpose: str,
    names: Sequence[str],
    label: str,
    colour: str,
    style: str,
) -> None:
    epochs, values = _series(history, purpose, names)
    if epochs:
        options: dict[str, Any] = {"marker": "o", "markersize": 3.5} if len(epochs) < 3 else {}
        axes.plot(epochs, values, style, color=colour, linewidth=1.7, label=label, **options)


def _mark(axes: Axes, history: Sequence[PhaseRecord], names: Sequence[str], epoch: int | None, colour: str) -> None:
    epochs, values = _series(history, "validation", names)
    if epoch is not None and epoch + 1 in epochs:
        axes.plot([epoch + 1], [values[epochs.index(epoch + 1)]], "o", color=colour, markersize=7, fillstyle="none")


def _numbers(axes: Axes, counts: NDArray[np.int64], shares: NDArray[np.float64], theme: Theme, size: int) -> None:
    """Write the counts, light on dark shades and dark on light ones."""
    for row, column in np.argwhere(counts > 0):
        strong = shares[row, column] > 0.5
        colour = ("#ffffff" if strong else theme.ink) if theme is LIGHT else ("#10151a" if strong else theme.ink)
        axes.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize=size, color=colour)
