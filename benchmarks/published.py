"""The figures that are published: `figures.json`, from which the table in README.md and docs/benchmarks.png are drawn.

A figure is of the last run that published it; a run of all benchmarks replaces all figures, one of a few benchmarks
those of the same names. The file has each run without its figures, as `results/latest.json` has it, and each figure
with the time of its run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.figures import Figure

FILE = Path(__file__).with_name("figures.json")
_OF_A_RUN = ("time", "machine", "cpu", "cpus", "load", "versions", "rounds", "clips")
"""What is kept of a run."""


@dataclass(frozen=True)
class Published:
    """Figures, and the runs that they are of."""

    runs: Sequence[Mapping[str, Any]] = ()
    """In the order of time."""
    figures: Sequence[tuple[Figure, str]] = ()
    """With the time of its run each, in the order of the table."""

    @classmethod
    def read(cls, path: Path = FILE) -> Self:
        """Raises `FileNotFoundError`."""
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls(found["runs"], [(Figure.read(figure), figure["run"]) for figure in found["figures"]])

    def write(self, path: Path = FILE) -> None:
        """As JSON."""
        figures = [figure.written() | {"run": run} for figure, run in self.figures]
        path.write_text(json.dumps({"runs": self.runs, "figures": figures}, indent=1) + "\n", encoding="utf-8")

    def with_run(self, told: Mapping[str, Any], figures: Sequence[Figure], order: Callable[[str], int]) -> Published:
        """With the figures of another run instead of those of the same names. `order`: of the figure of a name, its
        place in the table; equal ones stay as they are."""
        own = {key: told[key] for key in _OF_A_RUN}
        new = {figure.name: (figure, own["time"]) for figure in figures}
        kept = [new.pop(figure.name, (figure, run)) for figure, run in self.figures]
        both = sorted([*kept, *new.values()], key=lambda pair: order(pair[0].name))
        used = {run for _, run in both}
        runs = sorted([*self.runs, own], key=lambda run: str(run["time"]))
        return Published([run for run in runs if run["time"] in used], both)
