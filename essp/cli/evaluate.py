"""`essp evaluate segments`: how well the segments found by a model match labels."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from essp.cli.console import open_console, say
from essp.evaluation.segment_lists import SegmentList, named_alike, of_subset, read_found, read_labelled
from essp.evaluation.segments import Evaluation, Numbers, evaluate
from essp.uris import as_uri
from essp_common.errors import ConfigError, NotFound
from essp_common.objects.port import ObjectStore
from essp_common.quantities import counted
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Compare the results of a model with labels.")

_RANGE = re.compile(r"([\d.]+):([\d.]+)(?::([\d.]+))?")
_MOST_OVERLAPS = 1000
_COLUMNS = 5
"""The number of thresholds that the table shows; the mean covers all of them."""
_UNITS = {"s": "seconds", "frames": "frames"}


@app.callback()
def group() -> None:
    """Compare a model's results with labels."""


@app.command("segments")
def segments(
    found: Annotated[
        str,
        typer.Argument(
            help="Results: JSON of `essp predict --segments --json`, the output of a predict job, or "
            "ActivityNet's results; path or URI."
        ),
    ],
    truth: Annotated[str, typer.Option(help="Labels: CSV with path, label, start_s, end_s, or ActivityNet's JSON.")],
    iou: Annotated[
        str, typer.Option(help="Thresholds of overlap: 0.5,0.75 or 0.1:0.9 or 0.1:0.9:0.2.")
    ] = "0.5:0.95:0.05",
    subset: Annotated[
        str | None, typer.Option(help="Use only videos of this part of the labels, as in validation.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compute the mean average precision of segments, as ActivityNet defines it.

    A found segment is right if it overlaps a labelled segment of its class by at least the threshold (intersection over
    union in time), and no segment with a higher score has already matched that label. The mean is over the classes that
    have labels.
    """
    overlaps = _overlaps(iou)
    labelled, given = _read(read_labelled, truth), _read(read_found, found)
    if given.unit != labelled.unit:
        raise ConfigError(
            f"{given.where} is in {_UNITS[given.unit]} and {labelled.where} in {_UNITS[labelled.unit]}; give labels "
            "with start_frame and end_frame, or what was found as JSON of `essp predict`",
            code="conflict",
        )
    given = named_alike(given, labelled)
    asked = labelled if subset is None else of_subset(labelled, subset)
    if not asked.stretches:
        raise ConfigError(f"{labelled.where} labels no segment", code="empty")
    others = labelled.videos - asked.videos
    result = evaluate((each for each in given.stretches if each.video not in others), asked.stretches, overlaps)
    notes = _notes(given, labelled, asked)
    if as_json:
        typer.echo(json.dumps(_document(result, notes), indent=2))
        return
    console = open_console()
    thresholds = counted(len(result.overlaps), "threshold")
    say(f"average precision by overlap, percent; mean over {thresholds}", console, "dim")
    console.print(_table(result))
    for note in notes:
        say(note, console, "yellow")


def _overlaps(text: str) -> tuple[float, ...]:
    """Parse thresholds. Raises `ConfigError`."""
    try:
        if ranged := _RANGE.fullmatch(text):
            low, high, step = float(ranged[1]), float(ranged[2]), float(ranged[3] or 0.1)
            count = int((high - low) / step + 1e-6) + 1
            values = [round(low + number * step, 6) for number in range(min(count, _MOST_OVERLAPS))]
        else:
            values = [float(part) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        values = []
    if not values or not all(0 < value <= 1 for value in values):
        raise ConfigError(
            f"{text}: give numbers above 0 and up to 1, as 0.5,0.75 or 0.1:0.9 or 0.5:0.95:0.05",
            field="--iou",
            code="type",
        )
    return tuple(values)


def _read(read: Callable[[ObjectStore, str], SegmentList], uri: str) -> SegmentList:
    store, key = Stores(Settings().stores).resolve(as_uri(uri))
    try:
        return read(store, key)
    except NotFound as error:
        raise ConfigError(f"{uri} is not there, or has no segments: {error}", code="unreadable") from error


def _notes(given: SegmentList, labelled: SegmentList, asked: SegmentList) -> list[str]:
    """Reasons why the figures may be lower than they should be."""
    notes = []
    if strange := given.videos - labelled.videos:
        notes.append(
            f"{counted(len(strange), 'video')} of {len(given.videos)} in which was searched have no labels, such as "
            f"{min(strange)}: what was found there counts as wrong"
        )
    if missed := asked.videos - given.videos:
        notes.append(
            f"{counted(len(missed), 'labelled video')} of {len(asked.videos)} do not appear in what was found, such as "
            f"{min(missed)}: what is labelled there counts as missed"
        )
    return notes


def _table(result: Evaluation) -> Table:
    """The mean, followed by the classes, best first."""
    step = max(1, -(-(len(result.overlaps) - 1) // (_COLUMNS - 1))) if len(result.overlaps) > _COLUMNS else 1
    columns = list(range(0, len(result.overlaps), step))
    table = Table(
        "class",
        Column("labelled", justify="right"),
        Column("found", justify="right"),
        *(Column(f"{result.overlaps[column]:g}", justify="right") for column in columns),
        Column("mean", justify="right"),
        box=None,
        header_style="bold",
        padding=(0, 2, 0, 0),
    )
    labelled, found = (sum(getattr(one, name) for one in result.classes) for name in ("labelled", "found"))
    _add(table, "all", labelled, found, result.mean, columns, "bold")
    for one in sorted(result.classes, key=lambda one: (-one.precision.mean(), one.class_name)):
        _add(table, one.class_name, one.labelled, one.found, one.precision, columns)
    return table


def _add(
    table: Table, name: str, labelled: int, found: int, precision: Numbers, columns: Sequence[int], style: str = ""
) -> None:
    values = [*precision[list(columns)], precision.mean()]
    table.add_row(Text(name), str(labelled), str(found), *(f"{100 * value:.1f}" for value in values), style=style)


def _document(result: Evaluation, notes: Sequence[str]) -> dict[str, Any]:
    def by_overlap(precision: Numbers) -> dict[str, float]:
        return {f"{overlap:g}": value for overlap, value in zip(result.overlaps, precision.tolist(), strict=True)}

    return {
        "average": result.average,
        "mean": by_overlap(result.mean),
        "classes": [
            {
                "class": one.class_name,
                "labelled": one.labelled,
                "found": one.found,
                "average": float(one.precision.mean()),
                "precision": by_overlap(one.precision),
            }
            for one in result.classes
        ],
        "notes": list(notes),
    }
