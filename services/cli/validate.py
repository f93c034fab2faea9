"""`essp validate`: what a job would do, and whether it can, without doing any of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from essp_common.catalog.table import read_catalog
from essp_common.checkpoint import read_latest
from essp_common.config import Settings
from essp_common.pb.v1.messages_pb2 import Purpose
from essp_common.plan import empty_classes
from essp_common.spec import JobSpec
from essp_common.wiring import Stores
from services.cli.dashboard import size
from services.cli.job_file import load_job
from services.master.passes import Passes
from services.master.sizing import bounds_of, parts_of, unit_clips


@dataclass(frozen=True)
class Outlook:
    """What a job would do."""

    job: str
    output: str
    classes: int
    videos: dict[str, int]
    """Purpose -> videos it draws from."""
    clips: dict[str, int]
    """Purpose -> clips of all its passes."""
    most_bytes_per_clip: int
    """Of a clip and its features together."""
    clips_within_budget: int
    resumes_at: dict[str, str]
    """Trainer -> where its latest checkpoint stands."""
    warnings: tuple[str, ...]


def main(
    job: Annotated[Path, typer.Argument(help="The job file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a job file, and say what it would do. Nothing is written. Exit code 2: it cannot run, and why."""
    outlook = foresee(load_job(job), Stores(Settings().stores))
    if as_json:
        typer.echo(json.dumps(asdict(outlook), indent=2))
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("job", outlook.job)
    table.add_row("output", outlook.output)
    table.add_row("classes", str(outlook.classes))
    for purpose, videos in outlook.videos.items():
        table.add_row(purpose, f"{videos} videos, {outlook.clips[purpose]} clips")
    held = f"{outlook.clips_within_budget} of up to {size(outlook.most_bytes_per_clip)}"
    table.add_row("outstanding clips", f"{held}, features included")
    for trainer, position in outlook.resumes_at.items():
        table.add_row(f"trainer {trainer}", position)
    Console().print(table)
    for warning in outlook.warnings:
        typer.echo(f"warning: {warning}", err=True)


def foresee(spec: JobSpec, stores: Stores) -> Outlook:
    """Work out what a job would do. Raises `ConfigError` or `NotFound` for one that cannot run."""
    passes = Passes(spec, read_catalog(*stores.resolve(spec.data.catalog)))
    bounds = bounds_of(passes, parts_of(spec))
    unit_clips(spec, bounds)
    most = max(sum(parts) for parts in bounds)
    clips: dict[str, int] = {}
    for (purpose, _), plan in zip(passes.order, passes.plans, strict=True):
        clips[_name(purpose)] = clips.get(_name(purpose), 0) + plan.clips
    output = stores.under(spec.output)
    resumes = {}
    for trainer in spec.trainers:
        latest = read_latest(output, trainer)
        at = "begins" if latest is None else f"goes on in epoch {latest.epoch + 1}, after {latest.step} clips"
        resumes[trainer] = "is done" if latest is not None and latest.final else at
    missing = empty_classes(passes.view(0)) if spec.trainers else ()
    return Outlook(
        job=spec.name,
        output=spec.output,
        classes=len(passes.view(0).classes),
        videos={_name(purpose): len(view) for purpose, view in passes.views},
        clips=clips,
        most_bytes_per_clip=most,
        clips_within_budget=spec.limits.budget // most,
        resumes_at=resumes,
        warnings=tuple(f"class {name} has no usable training video" for name in missing),
    )


def _name(purpose: Purpose) -> str:
    return Purpose.Name(purpose).lower()
