"""The figures of a run as a table in a Markdown file, between two marks, in place of the one that stood there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import Figure

SIMULATED = ("autoscaling.", "gpu_allocation")
"""Figures of simulations: the same wherever they are run, and told in docs/pools.md."""
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def table(figures: Sequence[Figure], told: Mapping[str, object]) -> str:
    """What was measured, when and where."""
    versions = told["versions"]
    used = ", ".join(f"{name} {number}" for name, number in versions.items()) if isinstance(versions, Mapping) else ""
    where = f"{told['time']}, {told['cpus']} CPUs ({told['cpu']}), load average {told['load']:.1f} at the end; {used}."
    return "\n".join(
        [
            f"{where} {told['rounds']} rounds; costs from runs of {told['clips']} and three times as many clips.",
            "",
            "| figure | value | rounds | aim | |",
            "|---|---|---|---|---|",
            *(_row(figure) for figure in figures if not figure.name.startswith(SIMULATED)),
        ]
    )


def insert(text: str, path: Path) -> None:
    """Put `text` between the marks in a file. Raises `ValueError` when it has none."""
    whole = path.read_text(encoding="utf-8")
    begin, end = whole.index(BEGIN) + len(BEGIN), whole.index(END)
    path.write_text(f"{whole[:begin]}\n{text}\n{whole[end:]}", encoding="utf-8")


def _row(figure: Figure) -> str:
    rounds = "" if figure.low is None or figure.high is None else f"{figure.low:.3g} to {figure.high:.3g}"
    aim = figure.aim
    verdict = "" if aim is None else "met" if aim.met(figure.value) else "missed"
    return f"| `{figure.name}` | {figure.value:.3g} {figure.unit} | {rounds} | {aim or ''} | {verdict} |"
