"""Draws a trace: bytes read, bytes written and cores over time, with the recorded events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from essp.bench.trace import Mark, Sample
from essp.report.plots import LIGHT, Theme, png

_MB = 1e6
_MOST_NAMED_MARKS = 12
"""Beyond this number there is no room for names."""

Value = Callable[[Sample], float]

READ: dict[str, Value] = {
    "store": lambda sample: sample.store_read_bytes_per_s / _MB,
    "process, from disk": lambda sample: sample.process_read_bytes_per_s / _MB,
    "disk": lambda sample: sample.disk_read_bytes_per_s / _MB,
}
WRITTEN: dict[str, Value] = {
    "store": lambda sample: sample.store_written_bytes_per_s / _MB,
    "process, to disk": lambda sample: sample.process_written_bytes_per_s / _MB,
    "disk": lambda sample: sample.disk_written_bytes_per_s / _MB,
}
COMPUTED: dict[str, Value] = {
    "process": lambda sample: sample.process_cpu_cores,
    "machine": lambda sample: sample.machine_cpu_cores,
    "waiting for disk": lambda sample: sample.machine_waiting_cores,
}


def picture(samples: Sequence[Sample], marks: Sequence[Mark] = (), theme: Theme = LIGHT) -> bytes:
    """Returns a PNG."""
    figure = Figure(figsize=(8.5, 5.6), dpi=90, layout="constrained")
    panels = figure.subplots(3, 1, sharex=True)
    for axes, title, lines in zip(
        panels, ("read, MB/s", "written, MB/s", "cores"), (READ, WRITTEN, COMPUTED), strict=True
    ):
        _panel(axes, title, lines, samples, marks, theme)
    panels[-1].set_xlabel("time, s")
    _name_marks(panels[0], marks, theme)
    return png(figure, theme)


def _panel(
    axes: Axes,
    title: str,
    lines: dict[str, Value],
    samples: Sequence[Sample],
    marks: Sequence[Mark],
    theme: Theme,
) -> None:
    """Each rate applies to the interval before its time, so the lines are steps."""
    times = [0.0, *(sample.time_s for sample in samples)]
    rates_of = {name: [value(sample) for sample in samples] for name, value in lines.items()}
    for (name, rates), colour in zip(rates_of.items(), theme.lines, strict=False):
        if not any(rates):
            continue
        axes.stairs(
            rates, times, color=colour, linewidth=1.4, label=name, fill=name in ("store", "process"), alpha=0.75
        )
    for mark in marks:
        axes.axvline(mark.time_s, color=theme.ink, linewidth=0.7, linestyle=":")
    axes.set_ylabel(title)
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, max(times[-1], 1e-3))
    axes.grid(color=theme.faint, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if any(map(any, rates_of.values())):
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, labelcolor=theme.ink, fontsize=8)


def _name_marks(axes: Axes, marks: Sequence[Mark], theme: Theme) -> None:
    for mark in marks if len(marks) <= _MOST_NAMED_MARKS else ():
        axes.annotate(
            mark.what,
            (mark.time_s, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(1, 2),
            textcoords="offset points",
            rotation=35,
            fontsize=7,
            color=theme.ink,
        )
