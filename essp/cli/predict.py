"""`essp predict`: classify videos with a trained model, or pictures with a model for single-frame clips.

Answers go to stdout. A video that cannot be used is reported with the reason; the others are still classified, and the
exit code is 1.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from essp.api.prediction import AS_IN_TRAINING, Answers, Look, classify
from essp.cli.console import open_console
from essp.cli.dashboard import duration
from essp.cli.interrupt import leaving_at_once
from essp.uris import as_uri
from essp_common.errors import ConfigError
from essp_common.field_names import fields_named
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobStatus
from essp_common.quantities import percent
from essp_common.runtime import retry
from essp_common.runtime.config import Settings
from essp_common.runtime.process import set_up_logging

Highlight = Literal["contrast", "actionness"]
_OPTIONS = {
    "predictor.model": "--model",
    "predictor.segments": "--segments",
    "sampling.every_s": "--every",
    "predictor.highlight": "--highlight",
    "predictor.highlight.weight": "--highlight",
    "predictor.highlight.floor": "--floor",
}
"""Job field -> its name in this command."""


def main(
    videos: Annotated[list[str], typer.Argument(help="Videos: files, folders of files, or URIs.")],
    model: Annotated[str, typer.Option(help="Fused model: a job's output, or its `model` folder; path or URI.")],
    top: Annotated[int, typer.Option(help="Number of classes to show for each video.", min=1)] = 5,
    segments: Annotated[
        bool, typer.Option("--segments", help="Also report the segments of each video in which a class is seen.")
    ] = False,
    every: Annotated[
        str | None,
        typer.Option(
            help="Time from one clip of a video to the next, as in 0.5s (default: as many clips as in training, with "
            "--segments one a second)."
        ),
    ] = None,
    highlight: Annotated[
        Highlight | None,
        typer.Option(
            help="Give more weight to clips in which something is seen, by this measure (default: equal weights)."
        ),
    ] = None,
    floor: Annotated[float, typer.Option(help="With --highlight: minimum weight of a clip, at most 1.")] = 0.1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the services' logs.")] = False,
) -> None:
    """Classify videos, or pictures if the model was trained on single-frame clips."""
    look = Look(segments, None if every is None else _seconds(every), highlight, floor)
    settings = Settings()
    set_up_logging(settings if verbose else settings.model_copy(update={"log_level": "ERROR"}))
    logging.getLogger(retry.__name__).setLevel(logging.WARNING)  # while it waits for a store, it says so
    with fields_named(_OPTIONS, JobSpec):
        answers = classify_watched(videos, as_uri(model), settings, open_console(stderr=True), look)
    if as_json:
        typer.echo(json.dumps(document(answers, top), indent=2))
    else:
        open_console().print(table(answers, top))
    if not answers.complete:
        raise typer.Exit(1)


def classify_watched(
    videos: Sequence[str], model_uri: str, settings: Settings, console: Console, look: Look = AS_IN_TRAINING
) -> Answers:
    """Classify while `console` shows the progress. Ctrl-C stops it and raises `KeyboardInterrupt`."""
    with leaving_at_once("leaving; nothing is kept"), console.status("reading the videos") as shown:
        return classify(videos, model_uri, settings, lambda status, count: shown.update(_progress(status, count)), look)


def table(answers: Answers, top: int) -> Table:
    """One block per video, the likeliest class first; the predicted classes are bold."""
    shown = Table("video", "class", Column("score", justify="right"), box=None, padding=(0, 2, 0, 0))
    for row in answers.rows:
        name = Text(row.video_id, overflow="fold")
        if row.class_name is None:
            shown.add_row(name, Text(row.error or "", "red"), "")
        for rank, (class_name, score) in enumerate(row.top(answers.classes, top)):
            said = class_name in answers.labels(row) if answers.independent else rank == 0
            style = "bold" if said else "dim"
            shown.add_row("" if rank else name, Text(class_name, style), Text(percent(score), style))
        for segment in answers.segments.get(row.video_id, ()):
            span = f"{segment.start_s:.1f} to {segment.end_s:.1f} s: {segment.class_name}"
            shown.add_row("", Text(span, "cyan"), Text(f"{segment.score:.2f}", "cyan"))
        if row.class_name is not None and row.error is not None:
            shown.add_row("", Text(f"from {row.clips} clips only: {row.error}", "yellow"), "")
    return shown


def document(answers: Answers, top: int) -> dict[str, Any]:
    """The answers as JSON, for programs."""
    return {
        "model": answers.model,
        "videos": [
            {
                "video": row.video_id,
                "class": row.class_name,
                "top": [{"class": name, "score": score} for name, score in row.top(answers.classes, top)],
                **({"labels": list(answers.labels(row))} if answers.independent else {}),
                "clips": row.clips,
                "error": row.error,
                "segments": [
                    {"class": s.class_name, "start_s": s.start_s, "end_s": s.end_s, "score": s.score}
                    for s in answers.segments.get(row.video_id, ())
                ],
            }
            for row in answers.rows
        ],
    }


def _seconds(text: str) -> float:
    """Parse a time such as `0.5s` or `0.5`, in seconds. Raises `ConfigError`."""
    try:
        return float(text.removesuffix("s"))
    except ValueError as error:
        raise ConfigError(f"{text}: give seconds, as in 0.5s", field="--every", code="type") from error


def _progress(status: JobStatus, videos: int) -> str:
    progress = status.progress
    left = "" if progress.eta_s is None else f", about {duration(progress.eta_s)} to go"
    return f"classifying {videos} videos: {progress.done} of {progress.total} clips{left}"
