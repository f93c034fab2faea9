"""Tables and figures of a paper's page, from the JSON files of its parts and from nothing else.

A page has a pair of marks for each part, `<!-- values of NAME -->` and `<!-- end of NAME -->`. Between them this module
writes what was measured where, the table, and the figure, if the part has one, as `NAME.svg` beside the JSON file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.papers.study import FIRST, Part, values_of

_STYLE: Any = {
    "svg.hashsalt": "essp",  # the same numbers give the same file
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 9,
    "legend.frameon": False,
}
_BUSY = 2.0
"""Load average for each core, above which other programs must have run."""


def write_page(page: Path, parts: Mapping[str, Part], folder: Path) -> list[str]:
    """Draw the figures, and put the tables between the marks of the page. Returns the parts without a file."""
    text, missing = page.read_text(encoding="utf-8"), []
    for name, part in parts.items():
        file = folder / f"{name}.json"
        if not file.exists():
            missing.append(name)
            continue
        written = section(part, json.loads(file.read_text(encoding="utf-8")), folder, page.parent)
        begin, end = f"<!-- values of {name} -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{page} has no marks of {name}: {begin} and {end}")
        text = f"{before}{begin}\n{written}\n{end}{after}"
    page.write_text(text, encoding="utf-8")
    return missing


def section(part: Part, document: Mapping[str, Any], folder: Path, beside: Path) -> str:
    """What the page says between the marks of a part; its figure is drawn on the way."""
    values = values_of(document)
    lines = [measured(document, part.quiet), "", part.table(values)]
    with mpl.rc_context(_STYLE):
        figure = part.draw(values)
        if figure is not None:
            file = BytesIO()
            figure.savefig(file, format="svg", metadata={"Date": None})
            (folder / f"{part.name}.svg").write_bytes(file.getvalue())
            relative = (folder / f"{part.name}.svg").relative_to(beside)
            lines += ["", f"![{part.about}]({relative.as_posix()})"]
    return "\n".join(lines)


def measured(document: Mapping[str, Any], quiet: bool) -> str:
    """One line: when and where, the versions, and the load average of the runs that count. `quiet`: the figures are
    wall times."""
    machine, steps = document["machine"], list(document["steps"].values())
    counted = [step for name, step in document["steps"].items() if not name.endswith(FIRST)] or steps
    loads = [value for step in counted for value in step["load"]]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    days = sorted({step["time"][:10] for step in steps})
    rounds, low, high = document["asked"].get("rounds", 1), min(loads), max(loads)
    line = (
        f"Measured {' to '.join(dict.fromkeys((days[0], days[-1])))} on {machine['cpus']} CPUs ({machine['cpu']}), "
        f"{rounds} round{'s' * (rounds != 1)}, load average {low:.1f} to {high:.1f}; {versions}."
    )
    if quiet and high > _BUSY * machine["cpus"]:
        line += " **The machine had other work: times by the clock are too long; processor time stands.**"
    return line


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def number(value: float) -> str:
    """Three digits; a whole number if it is large."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def spread(values: list[float], form: str = "") -> str:
    """The median, and in parentheses the lowest and highest value if there are several. `form`: default as `number`."""
    ordered = sorted(values)
    half = len(ordered) // 2
    median = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    shown = form.format if form else number
    return shown(median) if len(ordered) < 2 else f"{shown(median)} ({shown(ordered[0])} to {shown(ordered[-1])})"
