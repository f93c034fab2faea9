"""The published figures as a table between two marks of a Markdown file, where it replaces the last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.published import Published

SIMULATED = ("autoscaling.", "gpu_allocation")
"""Figures of simulations: the same wherever they are run, and told in docs/pools.md."""
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def table(published: Published) -> str:
    """The runs, and what was measured in which."""
    figures = [(figure, run) for figure, run in published.figures if not figure.name.startswith(SIMULATED)]
    used = {run for _, run in figures}
    runs = [run for run in published.runs if run["time"] in used]
    numbers = {run["time"]: number for number, run in enumerate(runs, 1)}
    return "\n".join(
        [
            *_versions(numbers, runs),
            "",
            "| run | its end, UTC | machine | load average at the end | rounds | clips (n) |",
            "|---|---|---|---|---|---|",
            *(_run(numbers[run["time"]], run) for run in runs),
            "",
            "| figure | value | rounds | aim | | run |",
            "|---|---|---|---|---|---|",
            *(_row(figure, numbers[run]) for figure, run in figures),
        ]
    )


def insert(text: str, path: Path) -> None:
    """Put `text` between the marks in a file. Raises `ValueError` when it has none."""
    whole = path.read_text(encoding="utf-8")
    begin, end = whole.index(BEGIN) + len(BEGIN), whole.index(END)
    path.write_text(f"{whole[:begin]}\n{text}\n{whole[end:]}", encoding="utf-8")


def _versions(numbers: Mapping[str, int], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each set of versions, with the numbers of its runs."""
    found: dict[str, list[int]] = {}
    for run in runs:
        used = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        found.setdefault(used, []).append(numbers[run["time"]])
    if len(found) == 1:
        return [f"{used}." for used in found]
    return [f"- {used}: runs {', '.join(map(str, of))}" for used, of in found.items()]


def _run(number: int, run: Mapping[str, Any]) -> str:
    """Of the first runs that were published, some numbers are texts."""
    load = run["load"] if isinstance(run["load"], str) else f"{run['load']:.1f}"
    when = run["time"].replace("T", " ")[: len("2026-11-25 13:01")]
    cells = [number, when, f"{run['cpus']} CPUs ({run['cpu']})", load, run["rounds"], run["clips"]]
    return f"| {' | '.join(map(str, cells))} |"


def _row(figure: Figure, run: int) -> str:
    rounds = "" if figure.low is None or figure.high is None else f"{figure.low:.3g} to {figure.high:.3g}"
    aim = figure.aim
    verdict = "" if aim is None else "met" if aim.met(figure.value) else "missed"
    return f"| `{figure.name}` | {figure.value:.3g} {figure.unit} | {rounds} | {aim or ''} | {verdict} | {run} |"
