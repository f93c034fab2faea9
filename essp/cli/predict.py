"""`essp predict`: classify videos with a trained model, through the same decoders and extractors as training.

The videos become a catalog and a predict job, both in a temporary folder, which is run in this process. Answers go
to stdout; a video that cannot be used is reported with the reason, the others are classified, and the exit code is 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from essp.catalog.build import file_row
from essp.catalog.probing import ProbeOptions, Prober
from essp.catalog.sources import VIDEO_SUFFIXES
from essp.cli.dashboard import duration
from essp.cli.interrupt import interruptible
from essp.embedded.composition import Embedded
from essp.uris import as_uri
from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import FusedModel, open_model
from essp_common.artifacts.predictions import Prediction, read_predictions
from essp_common.artifacts.segments import Segment, read_segments
from essp_common.catalog.table import Catalog, VideoRow, write_catalog
from essp_common.errors import ConfigError, EsspError, NotFound, PermanentError
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, JobStatus
from essp_common.runtime.config import Settings
from essp_common.runtime.process import cpu_count, set_up_logging
from essp_common.wiring import Stores

_LOOK_S = 0.1
_CATALOG = "catalog.parquet"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Where in a video a class is seen."""

    class_name: str
    start_s: float
    end_s: float
    score: float


@dataclass(frozen=True)
class Answers:
    """What came of it, by video in the order asked."""

    model: str
    classes: tuple[str, ...]
    rows: tuple[Prediction, ...]
    segments: dict[str, tuple[Stretch, ...]] = field(default_factory=dict)
    """Video -> where its classes are seen, the surest first; empty when that was not asked for."""

    @property
    def complete(self) -> bool:
        """Every video has a class."""
        return all(row.class_name is not None for row in self.rows)


def main(
    videos: Annotated[list[str], typer.Argument(help="Video files, folders of them, or their URIs.")],
    model: Annotated[str, typer.Option(help="Fused model: a job's output, or its `model` folder; path or URI.")],
    top: Annotated[int, typer.Option(help="How many classes to show of each video.", min=1)] = 5,
    segments: Annotated[
        int, typer.Option(help="Also say where in each video, from so many clips of it; 0: do not.", min=0, max=250)
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the services' logs.")] = False,
) -> None:
    """Classify videos with a trained model."""
    settings = Settings()
    set_up_logging(settings if verbose else settings.model_copy(update={"log_level": "ERROR"}))
    answers = classify(videos, as_uri(model), settings, Console(stderr=True), segments)
    if as_json:
        typer.echo(json.dumps(document(answers, top), indent=2))
    else:
        Console().print(table(answers, top))
    if not answers.complete:
        raise typer.Exit(1)


def classify(videos: Sequence[str], model_uri: str, settings: Settings, console: Console, segments: int = 0) -> Answers:
    """Probe, run the job, collect the answers. `console` shows how far it is.

    `segments`: how many clips of each video to look at to say where in it its classes are seen; 0: do not.
    Raises `NotFound` for a model that is not there, `EsspError` when the job fails as a whole.
    """
    _, model = open_model(Stores(settings.stores), model_uri)
    rows = probe(find(videos, Stores(settings.stores)), settings)
    found: dict[str, Prediction] = {
        row.id: Prediction(row.id, None, 0, (), row.error) for row in rows if row.error is not None
    }
    usable = [row for row in rows if row.error is None]
    where: dict[str, tuple[Stretch, ...]] = {}
    if usable:
        with TemporaryDirectory(prefix="essp-predict-") as folder:
            local = settings.model_copy(
                update={"bus": "memory://", "cache": "memory://", "stores": (*settings.stores, f"file://{folder}")}
            )
            spec = job_of(model, model_uri, f"file://{folder}", segments)
            predicted, where = _run(spec, usable, local, console)
            found |= {row.video_id: row for row in predicted}
    missing = Prediction("", None, 0, (), "nothing of it was decoded")
    answers = tuple(found.get(row.id, replace(missing, video_id=row.id)) for row in rows)
    return Answers(model_uri, model.classes, answers, where)


def find(videos: Iterable[str], stores: Stores) -> list[VideoRow]:
    """A row for each video file that is meant, a folder's files by name; what is not there is a row with the reason."""
    rows: dict[str, VideoRow] = {}
    for text in videos:
        for row in _meant(text, stores):
            rows.setdefault(row.uri, row)
    return list(rows.values())


def probe(rows: Sequence[VideoRow], settings: Settings) -> list[VideoRow]:
    """Fill in what the files hold, or why they cannot be used."""
    wanted = {row.uri: row for row in rows if row.error is None}
    options = ProbeOptions(workers=max(1, min(cpu_count(), len(wanted))))
    with Prober(settings.stores, options) as prober:
        read = {outcome.uri: file_row(wanted[outcome.uri], outcome) for outcome in prober.read(wanted)}
    return [read.get(row.uri, row) for row in rows]


def job_of(model: FusedModel, model_uri: str, output: str, segments: int = 0) -> JobSpec:
    """The predict job: clips as in training, and only the streams that have a say. `segments`: see `classify`."""
    streams = {member.stream: model.streams[member.stream].model_dump() for member in model.deciding}
    return JobSpec.model_validate(
        {
            "name": "predict",
            "output": output,
            "data": {"catalog": f"{output}/{_CATALOG}"},
            "clip": model.clip.model_dump(),
            "sampling": {"kind": "uniform", "clips_per_video": segments or model.clips_per_video},
            "streams": streams,
            "predictor": {"model": model_uri, "segments": segments > 0},
            "limits": {"dead_ratio": 1.0},  # each bad video is reported; they do not spoil the others
        }
    )


def table(answers: Answers, top: int) -> Table:
    """One block a video, the likeliest class first."""
    shown = Table("video", "class", Column("score", justify="right"), box=None, padding=(0, 2, 0, 0))
    for row in answers.rows:
        name = Text(row.video_id, overflow="fold")
        if row.class_name is None:
            shown.add_row(name, Text(row.error or "", "red"), "")
        for rank, (class_name, score) in enumerate(row.top(answers.classes, top)):
            style = "bold" if rank == 0 else "dim"
            shown.add_row("" if rank else name, Text(class_name, style), Text(f"{100 * score:.1f} %", style))
        for stretch in answers.segments.get(row.video_id, ()):
            span = f"{stretch.start_s:.1f} to {stretch.end_s:.1f} s: {stretch.class_name}"
            shown.add_row("", Text(span, "cyan"), Text(f"{stretch.score:.2f}", "cyan"))
        if row.class_name is not None and row.error is not None:
            shown.add_row("", Text(f"from {row.clips} clips only: {row.error}", "yellow"), "")
    return shown


def document(answers: Answers, top: int) -> dict[str, Any]:
    """The same for programs."""
    return {
        "model": answers.model,
        "videos": [
            {
                "video": row.video_id,
                "class": row.class_name,
                "top": [{"class": name, "score": score} for name, score in row.top(answers.classes, top)],
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


def _meant(text: str, stores: Stores) -> list[VideoRow]:
    uri = as_uri(text)
    try:
        store, key = stores.resolve(uri)
        info = store.head(key)
        return [VideoRow(text, uri, "", "", info.size_bytes, info.etag)]
    except NotFound as error:
        missing = VideoRow(text, uri, "", "", 0, "", error=f"vanished: {error}")
    except PermanentError as error:
        return [VideoRow(text, uri, "", "", 0, "", error=f"{error.kind}: {error}")]
    try:
        folder = stores.under(uri)
        files = [info for info in folder.list() if PurePosixPath(info.key).suffix.lower() in VIDEO_SUFFIXES]
    except (NotFound, ConfigError):
        return [missing]
    shown = text.rstrip("/")
    return [
        VideoRow(f"{shown}/{info.key}", folder.uri(info.key), "", "", info.size_bytes, info.etag) for info in files
    ] or [missing]


def _run(
    spec: JobSpec, rows: Sequence[VideoRow], settings: Settings, console: Console
) -> tuple[list[Prediction], dict[str, tuple[Stretch, ...]]]:
    """The answers of the job, and where in each video, if it is to say that."""
    store = Stores(settings.stores).under(spec.output)
    write_catalog(store, _CATALOG, Catalog(tuple(rows)))
    with (
        interruptible("leaving ...") as interrupted,
        Embedded(spec, settings) as embedded,
        console.status(f"classifying {len(rows)} videos") as shown,
    ):
        while not (embedded.ended(_LOOK_S) or interrupted.is_set()):
            shown.update(_progress(embedded.status(), len(rows)))
        status = embedded.status()
    if interrupted.is_set():
        raise KeyboardInterrupt
    if status.state != JobState.COMPLETED:
        raise EsspError(f"the videos were not classified: {status.reason or status.state}")
    answers, _ = read_predictions(store, layout.PREDICTIONS)
    if spec.predictor is None or not spec.predictor.segments:
        return answers, {}
    return answers, _where(read_segments(store, layout.SEGMENTS), rows)


def _where(segments: Iterable[Segment], rows: Sequence[VideoRow]) -> dict[str, tuple[Stretch, ...]]:
    """Segments by video, in seconds. Frames are taken as evenly spaced, which those of some files are not quite."""
    fps = {row.id: row.fps or 1.0 for row in rows}
    found: dict[str, tuple[Stretch, ...]] = {row.id: () for row in rows}
    for s in segments:
        start_s, end_s = s.first_frame / fps[s.video_id], (s.last_frame + 1) / fps[s.video_id]
        found[s.video_id] += (Stretch(s.class_name, start_s, end_s, s.score),)
    return found


def _progress(status: JobStatus, videos: int) -> str:
    progress = status.progress
    left = "" if progress.eta_s is None else f", about {duration(progress.eta_s)} to go"
    return f"classifying {videos} videos: {progress.done} of {progress.total} clips{left}"
