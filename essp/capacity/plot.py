"""Draws a plan: the capacity of each part next to the requested rate, and clips through the simulated setup."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from essp.capacity.limits import Limit
from essp.capacity.simulation import Outcome
from essp.report.plots import LIGHT, Theme, png

_SHOWN = 12


def drawn(limits: Sequence[Limit], outcome: Outcome, rate: float, theme: Theme = LIGHT) -> bytes:
    """Returns a PNG. `rate`: requested clips per second; 0: the highest possible."""
    shown = list(limits[:_SHOWN])[::-1]
    figure = Figure(figsize=(11, 1.6 + 0.34 * max(5, len(shown))), dpi=110, layout="constrained")
    carries, passed = figure.subplots(1, 2, width_ratios=(3, 2))
    reached = rate or outcome.clips_per_s
    colours = [theme.lines[1] if limit is limits[0] else theme.lines[0] for limit in shown]
    bars = carries.barh([limit.name for limit in shown], [limit.clips_per_s for limit in shown], color=colours)
    carries.bar_label(bars, [f" {limit.clips_per_s:,.0f}" for limit in shown], color=theme.ink, fontsize=8)
    carries.axvline(reached, color=theme.ink, linestyle="--", linewidth=1)
    carries.set_xscale("log")
    carries.margins(x=0.12)
    carries.set_title("clips/s that each part carries; dashed: " + ("asked for" if rate else "reached"), fontsize=10)
    times = [time_s for time_s, _ in outcome.passed]
    clips = [count for _, count in outcome.passed]
    passed.plot(times, clips, color=theme.lines[0], label=f"simulated: {outcome.clips_per_s:,.0f} clips/s")
    if rate:
        passed.plot(times, [rate * time_s for time_s in times], "--", color=theme.ink, linewidth=1, label="asked for")
    passed.set_xlabel("seconds")
    passed.set_title("clips that all trainers are through with", fontsize=10)
    passed.legend(frameon=False, labelcolor=theme.ink, fontsize=9)
    return png(figure, theme)
