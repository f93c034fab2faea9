"""`essp compare`: finished and unfinished training jobs next to each other, from their outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from essp.cli.console import open_console, say
from essp.comparison.comparison import (
    Comparison,
    compare,
    figure_words,
    interval_words,
    metric_names,
    pair_words,
)
from essp.comparison.runs import read_all
from essp.folders import written
from essp_common.artifacts.figures import NAMES
from essp_common.artifacts.manifest import PhaseRecord
from essp_common.errors import ConfigError
from essp_common.quantities import duration, percent
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores

_EPOCHS = 6
"""Epochs of each curve in the terminal."""
_LEAST = 2


def main(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Outputs of training jobs: paths or URIs. The first is the baseline."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Also write a page with the curves over each other, as in compare.html.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compare training jobs: the settings that differ, their curves, and their figures with intervals.

    Jobs are compared on their test split, or on the validation split if one has no test split, and video by video with
    the first one. Jobs that have not completed are compared by settings and curves alone. Classes, videos and versions
    that differ are reported.
    """
    if len(runs) < _LEAST:
        raise ConfigError("give the outputs of two jobs or more, as in runs/a runs/b", field="RUN", code="missing")
    if len(set(runs)) < len(runs):
        twice = next(run for run in runs if runs.count(run) > 1)
        raise ConfigError(f"{twice} is given twice", field="RUN", code="conflict")
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{out}: the page is HTML; name it for example compare.html", field="--out", code="invalid")
    found = compare(read_all(runs, Stores(Settings().stores)))
    if as_json:
        typer.echo(json.dumps(found.document(), indent=2))
    else:
        _print(found, open_console())
    for note in found.notes:
        say(f"note: {note}")
    if out is not None:
        from essp.comparison.page import render  # matplotlib, which only the page needs

        with written(out):
            out.write_text(render(found), encoding="utf-8")
        typer.echo(f"page  {out}", err=True)


def _print(found: Comparison, console: Console) -> None:
    console.print(_settings(found) if found.settings else "the jobs have the same settings", "", sep="\n")
    if any(found.histories.values()):
        console.print(_curves(found), "", sep="\n")
    if found.results:
        console.print(_results(found))
    for pair in found.pairs:
        say(pair_words(pair), console)


def _settings(found: Comparison) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("setting", overflow="fold")
    for job in found.jobs:
        table.add_column(job.label, overflow="fold")
    for one in found.settings:
        table.add_row(one.field, *(one.words(job.label) for job in found.jobs))
    return table


def _curves(found: Comparison) -> Table:
    """A row for each trainer: a metric of the validation at some epochs, and its best."""
    metric = found.judged_by
    curves = {name: _by_epoch(history, metric) for name, history in found.histories.items()}
    last = max((max(curve, default=0) for curve in curves.values()), default=0)
    epochs = sorted({round(1 + step * (last - 1) / max(1, _EPOCHS - 1)) for step in range(_EPOCHS)}) if last else []
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(f"validation {NAMES[metric]}, epoch", overflow="fold")
    for epoch in epochs:
        table.add_column(str(epoch), justify="right")
    table.add_column("best", justify="right")
    for name, curve in curves.items():
        best = max(curve, key=lambda epoch: (curve[epoch], -epoch), default=None)
        words = "" if best is None else f"{percent(curve[best])} ({best})"
        table.add_row(name, *(percent(curve[epoch]) if epoch in curve else "" for epoch in epochs), words)
    return table


def _by_epoch(history: Sequence[PhaseRecord], metric: str) -> dict[int, float]:
    """Epoch, from 1 -> the metric of its validation, by video if there is one."""
    found = {}
    for record in history:
        value = record.metrics.get(f"video_{metric}", record.metrics.get(metric))
        if record.purpose == "validation" and value is not None:
            found[record.epoch + 1] = value
    return found


def _results(found: Comparison) -> Table:
    names = metric_names(found.results)
    took = {job.label: job.seconds for job in found.jobs}
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(found.split, overflow="fold")
    table.add_column("trainer", overflow="fold")
    for name in ("videos", *names.values()):
        table.add_column(name, justify="right")
    table.add_column("95 % of top-1", justify="right")
    table.add_column("took", justify="right")
    before = ""
    for one in found.results:
        seconds = took[one.job] if one.job != before else None
        table.add_row(
            one.job if one.job != before else "",
            one.trainer,
            f"{one.videos:,}",
            *(figure_words(name, one.figures) for name in names),
            interval_words(one),
            "" if seconds is None else duration(seconds),
            style="bold green" if one is found.best else "",
        )
        before = one.job
    return table
