"""Results of a benchmark: rows with a configuration and its measurements, as a table, JSON and a plot.

Each configuration is run several times. The first run is discarded, because caches and libraries warm up in it. A value
is the median of the other runs, shown with the lowest and the highest of them. `partial` marks an interrupted
benchmark.

    columns = (Column("samples_per_s", "images/s"), Column("cpu_cores", "cores", 2))
    Results("io", facts, ("store", "threads"), columns, rows, sentences)
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of a quantity over several runs."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of the values, in run order. The first run is discarded unless it is the only one."""
        return cls(tuple(values[1:] or values))

    @property
    def median(self) -> float:
        """The median, which is the reported value."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The lowest value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The highest value."""
        return max(self.values)


@dataclass(frozen=True, slots=True)
class Column:
    """A measured quantity."""

    name: str
    """Name with its unit, for example `bytes_per_s`."""
    title: str
    digits: int = 1
    scale: float = 1.0
    """A value is divided by this to be shown under `title`."""

    def shown(self, spread: Spread) -> str:
        """The median, followed by the range if the runs differ in the digits shown."""
        median, low, high = (
            f"{value / self.scale:,.{self.digits}f}" for value in (spread.median, spread.low, spread.high)
        )
        return median if low == high else f"{median} ({low}-{high})"


@dataclass(frozen=True, slots=True)
class Row:
    """A configuration and its measurements."""

    labels: Mapping[str, str | int]
    values: Mapping[str, Spread]


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a benchmark, complete or partial."""

    title: str
    facts: Mapping[str, Any]
    """What was measured and where: source, sizes, settings, machine."""
    keys: Sequence[str]
    """Names of the labels, in the order of the table's columns."""
    columns: Sequence[Column]
    rows: Sequence[Row]
    sentences: Sequence[str] = ()
    """Conclusions from the figures."""
    partial: bool = False

    def document(self) -> dict[str, Any]:
        """The results as a document for JSON."""
        return {
            "benchmark": self.title,
            "partial": self.partial,
            "facts": dict(self.facts),
            "rows": [
                {
                    **row.labels,
                    **{
                        name: {
                            "median": spread.median,
                            "low": spread.low,
                            "high": spread.high,
                            "runs": list(spread.values),
                        }
                        for name, spread in row.values.items()
                    },
                }
                for row in self.rows
            ],
            "sentences": list(self.sentences),
        }

    def json(self) -> str:
        """The document as JSON text."""
        return json.dumps(self.document(), indent=2, ensure_ascii=False)

    def table(self) -> Table:
        """A table with one line per row. Labels with the same value in all rows are left out."""
        keys = [key for key in self.keys if len(self._labels(key)) > 1] or list(self.keys[:1])
        columns = [column for column in self.columns if any(column.name in row.values for row in self.rows)]
        table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
        for key in keys:
            numbers = all(isinstance(label, int) for label in self._labels(key))
            table.add_column(key, justify="right" if numbers else "left", overflow="fold")
        for column in columns:
            table.add_column(column.title, justify="right", overflow="fold")
        for row in self.rows:
            cells = [str(row.labels.get(key, "")) for key in keys]
            table.add_row(
                *cells,
                *(column.shown(row.values[column.name]) if column.name in row.values else "" for column in columns),
            )
        return table

    def _labels(self, key: str) -> set[str | int]:
        """All values of the label `key`."""
        return {label for row in self.rows if (label := row.labels.get(key, "")) != ""}
