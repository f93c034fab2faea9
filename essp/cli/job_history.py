"""`essp job why`: the story of one clip. `essp job dump`: everything known about a job, in one file for a bug report.

Both read the history in the job's output, so they also work after the job has ended and without a master.
"""

from __future__ import annotations

import io
import json
import platform
import time
import zipfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from google.protobuf.json_format import MessageToDict
from pydantic import BaseModel
from rich.table import Table

from essp.account import Account, account_of
from essp.audit.invariants import check
from essp.audit.story import Story, consumer_words, purpose_in, story_of
from essp.cli import completions, rest
from essp.cli.console import open_console, say
from essp.cli.job_output import no_history, status_of
from essp.folders import written
from essp.uris import as_uri
from essp_common.artifacts import layout
from essp_common.artifacts.history import History
from essp_common.artifacts.timeline import TimelineFile
from essp_common.catalog.schema import PLANNED
from essp_common.distribution import NAME, version
from essp_common.errors import ConfigError, EsspError, NotFound
from essp_common.job.spec import stored_spec
from essp_common.job.status import PurposeName, phase_title, purpose_name
from essp_common.pb.v1.messages_pb2 import HistorySegment
from essp_common.quantities import counted, size
from essp_common.records.rows import open_data
from essp_common.runtime.addresses import without_secrets
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from essp_engine.planning.phases import Phases

_PURPOSES: tuple[PurposeName, ...] = get_args(PurposeName)
_MOST_STORIES = 10
"""Clips of one video whose stories are shown."""

Job = Annotated[
    str,
    typer.Argument(help="A job of the master, or the output of one: folder or URI.", autocompletion=completions.jobs),
]


def why(
    job: Job,
    index: Annotated[
        int | None,
        typer.Argument(help="Index of the clip, as in messages and `essp deadletter ls`.", min=0, show_default=False),
    ] = None,
    video: Annotated[
        str, typer.Option(help="Instead of an index: all clips of this video, by its id or file name.")
    ] = "",
    epoch: Annotated[int, typer.Option(help="Epoch of the clip, counted from 1.", min=1)] = 1,
    purpose: Annotated[str, typer.Option(help=f"Pass of the clip: {', '.join(_PURPOSES)}.")] = "train",
    server: rest.Server = rest.SERVER,
    token: rest.Token = "",
    as_json: rest.AsJson = False,
) -> None:
    """Show the story of one clip, or of each clip of a video: when it was issued, decoded, lost, replaced, and which
    trainers used it."""
    if (index is None) == (not video):
        raise ConfigError("give the index of a clip, or --video; not both", field="INDEX", code="conflict")
    stores = Stores(Settings().stores)
    output, segments = _history_of(job, server, token, stores)
    place = _purpose(purpose), epoch - 1 if purpose in ("train", "validation") else 0
    if index is not None:
        if (story := story_of(segments, *place, index)) is None:
            raise _no_such_clip(output, segments, purpose, epoch, index)
        planned = _planned(segments, story, stores)
        if as_json:
            typer.echo(json.dumps(_document(output, story, planned)))
        else:
            _print(story, planned)
        return
    indices = _clips_of(video, segments, place, stores)
    stories = [story for each in indices[:_MOST_STORIES] if (story := story_of(segments, *place, each)) is not None]
    if as_json:
        typer.echo(json.dumps([_document(output, story, _planned(segments, story, stores)) for story in stories]))
        return
    for story in stories:
        _print(story, _planned(segments, story, stores))
    if len(indices) > _MOST_STORIES:
        rest = ", ".join(map(str, indices[_MOST_STORIES:]))
        typer.echo(f"and {counted(len(indices) - _MOST_STORIES, 'clip')} more, by index: {rest}", err=True)


def _document(output: str, story: Story, planned: dict[str, str | int] | None) -> dict[str, object]:
    steps = [{"time_ms": step.time_ms, "run": step.run, "what": step.what} for step in story.steps]
    found = {"output": output, "purpose": story.purpose, "epoch": story.epoch, "index": story.index}
    return {**found, "planned": planned, "steps": steps, "lacking": story.lacking}


def dump(
    job: Job,
    out: Annotated[
        Path | None, typer.Option(help="The file to write (default: JOB.zip in the current folder).")
    ] = None,
    server: rest.Server = rest.SERVER,
    token: rest.Token = "",
    as_json: rest.AsJson = False,
) -> None:
    """Write everything known about a job into one file, for a bug report: its fields, status, history, audit, and its
    course over time.

    The file contains names of videos, but no videos, no weights, and no passwords or signatures of URLs.
    """
    stores = Stores(Settings().stores)
    status = status_of(job, server, token)
    output, segments = _history_of(job, server, token, stores)
    account, course = account_of(segments), TimelineFile(stores.under(output)).read()
    path = Path(f"{account.runs[-1].spec.name}.zip") if out is None else out
    about = {
        "distribution": f"{NAME} {version()}",
        "python": platform.python_version(),
        "machine": platform.platform(),
        "output": output,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    parts = {
        "about.json": _text(about),
        "job.json": _text(json.loads(account.runs[-1].snapshot.spec_json)),
        "status.json": _text(json.loads(account.status_json or "null") if status is None else status),
        "audit.json": _text(_findings(account)),
        "history.jsonl": "".join(f"{_text(entry, None)}\n" for entry in _entries(segments)),
        "ledger.json": "" if account.ledger is None else _text(MessageToDict(account.ledger)),
        layout.TIMELINE: "" if course is None else _text(course, None),
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            if text:
                archive.writestr(name, text)
    with written(path), path.open("xb") as file:  # "x": never overwrite an existing file
        file.write(packed.getvalue())
    if as_json:
        typer.echo(json.dumps({"file": str(path), "bytes": packed.tell()}))
    else:
        typer.echo(f"{path}: {size(packed.tell())}; it has the names of videos, and no videos or weights")


def _history_of(job: str, server: str, token: str, stores: Stores) -> tuple[str, list[HistorySegment]]:
    status = status_of(job, server, token)
    output = as_uri(job) if status is None else status.output
    segments = list(History(stores.under(output)).read())
    if not any(entry.HasField("started") for segment in segments for entry in segment.entries):
        raise no_history(output)
    return output, segments


def _no_such_clip(output: str, segments: list[HistorySegment], purpose: str, epoch: int, index: int) -> NotFound:
    """The error, which says which clips the job has."""
    runs = account_of(segments).runs
    named = [(purpose_in(run.snapshot, plan), plan) for run in runs for plan in run.snapshot.phases]
    plans = [(name, plan) for name, plan in named if name is not None]
    clips = {phase_title(name, plan.epoch): plan.clips for name, plan in plans}
    epochs = {name: plan.epoch + 1 for name, plan in sorted(plans, key=lambda each: each[1].epoch)}
    passes = ", ".join(f"{name} ({counted(count, 'epoch')})" for name, count in epochs.items())
    title = phase_title(purpose, epoch - 1)
    has = f"has {counted(clips[title], 'clip')}, counted from 0" if title in clips else "is not a pass of this job"
    return NotFound(f"{output} has no clip {index} in {title}: that {has}; the job has {passes}")


def _purpose(word: str) -> PurposeName:
    for name in _PURPOSES:
        if name == word:
            return name
    raise ConfigError(f"{word!r} is not a pass; use {', '.join(_PURPOSES)}", field="--purpose", code="unknown")


def _clips_of(video: str, segments: list[HistorySegment], place: tuple[PurposeName, int], stores: Stores) -> list[int]:
    """The indices of the clips of a video in a pass. Raises `NotFound`."""
    phases = _phases(segments, stores)
    title = phase_title(*place)
    for number, plan in enumerate(phases.plans):
        if (purpose_name(plan.purpose, phases.spec.kind), plan.epoch) != place:
            continue
        rows, clips = phases.view(number).rows, phases.plan(number)
        names = [rows.text("id", row) for row in range(len(rows))]
        wanted = {row for row, name in enumerate(names) if name == video}
        wanted = wanted or {row for row, name in enumerate(names) if name.rpartition("/")[2] == video}
        if not wanted:
            raise NotFound(f"{title} has no video {video!r}{_elsewhere(video, names, phases)}")
        found = [index for index in range(plan.clips) if clips.clip(index, 0).video in wanted]
        if not found:
            raise NotFound(f"{title} has no clip of {video}: not every epoch draws every video; try --epoch 2")
        return found
    raise NotFound(f"{title} is not a pass of this job")


def _elsewhere(video: str, names: Sequence[str], phases: Phases) -> str:
    """The passes that have this video, or a video of the pass with a similar name."""
    purposes = dict[PurposeName | None, None]()
    for number, plan in enumerate(phases.plans):
        rows = phases.view(number).rows
        if any(video in (name := rows.text("id", row), name.rpartition("/")[2]) for row in range(len(rows))):
            purposes[purpose_name(plan.purpose, phases.spec.kind)] = None
    if purposes:
        return f"; it is in {', '.join(map(str, purposes))} (--purpose)"
    near = get_close_matches(video, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _phases(segments: list[HistorySegment], stores: Stores) -> Phases:
    """The passes of the job's last run, planned again. Raises what reading the catalog raises."""
    snapshot = next(
        entry.started.snapshot
        for segment in reversed(segments)
        for entry in reversed(segment.entries)
        if entry.HasField("started")
    )
    spec = stored_spec(snapshot.spec_json, "the job of this history")
    return Phases(spec, open_data(spec, stores, PLANNED))


def _planned(segments: list[HistorySegment], story: Story, stores: Stores) -> dict[str, str | int] | None:
    """The planned clip; None if the catalog can no longer be read."""
    try:
        phases = _phases(segments, stores)
    except EsspError as error:
        say(f"essp: the plan of the job cannot be made again: {error}")
        return None
    for number, plan in enumerate(phases.plans):
        name = purpose_name(plan.purpose, phases.spec.kind)
        if (name, plan.epoch) == (story.purpose, story.epoch) and story.index < plan.clips:
            clip = phases.plan(number).clip(story.index, max(story.attempts.values(), default=0))
            rows = phases.view(number).rows
            return {"video": rows.text("id", clip.video), "first_frame": clip.first_frame}
    return None


def _findings(account: Account) -> list[object]:
    return [finding.model_dump() for finding in check(account, None, None, round(time.time() * 1000))]


def _entries(segments: list[HistorySegment]) -> Iterator[dict[str, Any]]:
    for segment in segments:
        for entry in segment.entries:
            yield MessageToDict(entry)


def _text(document: Any, indent: int | None = 2) -> str:
    """The document as JSON; empty for None."""
    plain = document.model_dump(mode="json") if isinstance(document, BaseModel) else document
    return "" if plain is None else json.dumps(_shareable(plain), indent=indent)


def _shareable(value: Any) -> Any:
    """Without passwords and signatures in URLs, also in those of a job that is stored as a text."""
    if isinstance(value, dict):
        return {name: _shareable(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_shareable(inner) for inner in value]
    if not isinstance(value, str):
        return value
    try:
        return json.dumps(_shareable(json.loads(value))) if value.startswith("{") else without_secrets(value)
    except ValueError:  # no job, just a name that begins like one
        return without_secrets(value)


def _print(story: Story, planned: dict[str, str | int] | None) -> None:
    console = open_console()
    title = f"clip {story.index} of {phase_title(story.purpose, story.epoch)}"
    if planned is not None:
        title += f": {planned['video']}, from frame {planned['first_frame']} on"
    console.print(title, style="bold", highlight=False)
    table = Table(box=None)
    for column in ("TIME (UTC)", "RUN", ""):
        table.add_column(column)
    for step in story.steps:
        at = datetime.fromtimestamp(step.time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(at, str(step.run), step.what)
    console.print(table)
    if story.lacking:
        console.print(f"not used yet by {', '.join(map(consumer_words, story.lacking))}", highlight=False)
