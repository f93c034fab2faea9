"""What a benchmark has found: rows of a configuration and its measurements, as a table, JSON and a plot.

Of each configuration there are several runs; the first is left out, as caches and libraries warm up in it, and a value
is the median of the others, between the least and the greatest. Where a benchmark was interrupted, `partial` says so.

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
    """A value as several runs gave it."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of the runs' values, in their order. The first run is left out unless it is the only one."""
        return cls(tuple(values[1:] or values))

    @property
    def median(self) -> float:
        """The figure."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The least."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The greatest."""
        return max(self.values)


@dataclass(frozen=True, slots=True)
class Column:
    """A measured quantity."""

    name: str
    """Name with its unit, as in `bytes_per_s`."""
    title: str
    digits: int = 1
    scale: float = 1.0
    """What a value is divided by to be shown under `title`."""

    def shown(self, spread: Spread) -> str:
        """The median, and between what the runs lie where they differ in what is shown."""
        median, low, high = (
            f"{value / self.scale:,.{self.digits}f}" for value in (spread.median, spread.low, spread.high)
        )
        return median if low == high else f"{median} ({low}-{high})"


@dataclass(frozen=True, slots=True)
class Row:
    """A configuration, and what was measured of it."""

    labels: Mapping[str, str | int]
    values: Mapping[str, Spread]


@dataclass(frozen=True, slots=True)
class Results:
    """A finished benchmark, or what there is of it."""

    title: str
    facts: Mapping[str, Any]
    """What was measured, and where: source, sizes, settings, machine."""
    keys: Sequence[str]
    """Names of labels, in the order of the table's columns."""
    columns: Sequence[Column]
    rows: Sequence[Row]
    sentences: Sequence[str] = ()
    """What follows from the figures."""
    partial: bool = False

    def document(self) -> dict[str, Any]:
        """For JSON."""
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
        """The document as text."""
        return json.dumps(self.document(), indent=2, ensure_ascii=False)

    def table(self) -> Table:
        """One line a row; labels that are the same in all rows that have them are left out."""
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
        """The labels under `key` of all rows that have one."""
        return {label for row in self.rows if (label := row.labels.get(key, "")) != ""}
