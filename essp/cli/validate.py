"""`essp validate`: what a job would do, and whether it can, without doing any of it."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from essp.cli.doctor import failing as servers_failing
from essp.cli.doctor import not_ready
from essp.cli.job_file import load_job
from essp.embedded.composition import embedded_settings
from essp_common.artifacts.checkpoint import read_latest
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import Purpose
from essp_common.planning.phases import Phases
from essp_common.quantities import size
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores, open_cache
from essp_master.job.preflight import catalog_of, check_weights, warnings_of
from essp_master.job.sizing import bounds_of, parts_of, unit_clips


@dataclass(frozen=True)
class Outlook:
    """What a job would do."""

    job: str
    output: str
    classes: int
    videos: dict[str, int]
    """Purpose -> videos it draws from."""
    clips: dict[str, int]
    """Purpose -> clips of all its phases."""
    most_bytes_per_clip: int
    """Of a clip and its features together."""
    clips_within_budget: int
    resumes_at: dict[str, str]
    """Trainer -> where its latest checkpoint stands."""
    warnings: tuple[str, ...]
    failing: tuple[str, ...]
    """What is wrong with the servers of the settings, where they name any; each with its remedy."""


def main(
    job: Annotated[Path, typer.Argument(help="The job file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a job file, and say what it would do; with ESSP_BUS or ESSP_CACHE, the servers as well, as `essp doctor`.

    Exit code 2: it cannot run, and why; 6: its servers are not there, or not set up for it. No part of the job is
    begun or written.
    """
    outlook = foresee(load_job(job), Settings())
    if as_json:
        typer.echo(json.dumps(asdict(outlook), indent=2))
    else:
        _print(outlook)
    for warning in outlook.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if outlook.failing:
        raise not_ready(outlook.failing)


def _print(outlook: Outlook) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("job", outlook.job)
    table.add_row("output", outlook.output)
    table.add_row("classes", str(outlook.classes))
    for purpose, videos in outlook.videos.items():
        table.add_row(purpose, f"{videos} videos, {outlook.clips[purpose]} clips")
    most = size(outlook.most_bytes_per_clip)
    table.add_row("on the way at once", f"{outlook.clips_within_budget} clips of {most} at most, features included")
    for trainer, position in outlook.resumes_at.items():
        table.add_row(f"trainer {trainer}", position)
    Console().print(table)


def foresee(spec: JobSpec, settings: Settings) -> Outlook:
    """Work out what a job would do. Raises `ConfigError` for one that cannot run."""
    stores = Stores(settings.stores)
    phases = Phases(spec, catalog_of(spec, stores))
    check_weights(spec, stores)
    bounds = bounds_of(phases, parts_of(spec))
    unit_clips(spec, bounds)
    most = max(sum(parts) for parts in bounds)
    clips: dict[str, int] = {}
    for (purpose, _), plan in zip(phases.order, phases.plans, strict=True):
        clips[_name(purpose)] = clips.get(_name(purpose), 0) + plan.clips
    output = stores.under(spec.output)
    resumes = {}
    for trainer in spec.trainers:
        latest = read_latest(output, trainer)
        at = "begins" if latest is None else f"goes on in epoch {latest.epoch + 1}, after {latest.step} clips"
        resumes[trainer] = "is done" if latest is not None and latest.final else at
    failing = servers_failing(settings)
    return Outlook(
        job=spec.name,
        output=spec.output,
        classes=len(phases.view(0).classes),
        videos={_name(purpose): len(view) for purpose, view in phases.views},
        clips=clips,
        most_bytes_per_clip=most,
        clips_within_budget=spec.limits.budget // most,
        resumes_at=resumes,
        warnings=warnings_of(phases, bounds) if failing else (*warnings_of(phases, bounds), *_room(spec, settings)),
        failing=failing,
    )


def _room(spec: JobSpec, settings: Settings) -> tuple[str, ...]:
    """A warning where the cache holds less than the budget: then decoders wait for room in it."""
    with closing(open_cache(embedded_settings(spec, settings).cache)) as cache:
        limit = cache.usage().limit_bytes
    if limit >= spec.limits.budget:
        return ()
    held = f"ESSP_CACHE holds {size(limit)}, limits.budget is {size(spec.limits.budget)}"
    return (f"{held}: decoders will wait for room; give the cache more memory, or lower the budget",)


def _name(purpose: Purpose) -> str:
    return Purpose.Name(purpose).lower()
