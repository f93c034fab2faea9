"""`essp validate`: what a job would do, and whether it can run, without starting it."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Annotated, Any

import typer
from rich.table import Table

from essp.cli.console import open_console, say
from essp.cli.divisions import Folds, Splits, checked, divisions_of
from essp.cli.doctor import failing as servers_failing
from essp.cli.doctor import not_ready
from essp.cli.fresh import preflight_asking, tell
from essp.cli.job_file import Epochs, JobFile, Named, Sets, load_job, options_named
from essp.embedded.composition import embedded_settings
from essp.embedded.devices import check_devices
from essp.embedded.videos import missing_videos
from essp.uris import shown
from essp_common.artifacts.removal import Removal
from essp_common.job.spec import JobSpec
from essp_common.job.status import phase_title
from essp_common.pb.v1.messages_pb2 import Purpose
from essp_common.quantities import counted, size
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores, open_cache
from essp_engine.planning.decode_cost import decode_cost
from essp_engine.preflight.preflight import Preflight
from essp_engine.registrations import Declared

_SHARED = 1.05
"""The saving of shared decoding is reported if it reduces the decoded frames by at least this factor."""


def main(
    job: JobFile,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Check it as `essp run --fresh` would, and say what that removes.")
    ] = False,
    sets: Sets = None,
    name: Named = None,
    epochs: Epochs = None,
    splits: Splits = None,
    folds: Folds = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a job file, and say what it would do. With ESSP_BUS or ESSP_CACHE, also check the servers, as `essp doctor`
    does.

    Exit code 2: the job cannot run, with the reasons; 6: its servers are missing or not set up for it. Nothing is
    started or written. With --splits or --folds: what each division of the data set would train, validate and test on.
    """
    settings = Settings()
    spec, stores = load_job(job, epochs, sets, name), Stores(settings.stores)
    declared = Declared(code=settings.code)
    with options_named(epochs, splits, folds, name):
        divisions = divisions_of(spec, splits, folds, stores)
        if divisions:
            found = checked(divisions, stores, fresh, True, declared)
        else:
            found = [preflight_asking(spec, stores, fresh, True, declared)]
    away = ""
    if settings.bus.startswith("memory:"):  # otherwise workers may be on other machines
        check_devices(spec)
        away = missing_videos(found[0], stores)
    failing = servers_failing(settings)
    of_jobs = dict.fromkeys(warning for one in found for warning in one.warnings)
    warnings = [*of_jobs, *(() if failing else _room(spec, settings))]
    if away:
        warnings.append(f"data.catalog: {away}")
    told = {"warnings": warnings, "failing": failing}
    facts = {each.name: _facts(one) for each, one in zip(divisions, found, strict=True)} if divisions else {}
    if as_json:
        typer.echo(json.dumps(({"divisions": facts} if divisions else _facts(found[0])) | told, indent=2))
    elif divisions:
        _print_divisions(facts)
    else:
        _print(_facts(found[0]))
    for one in found:
        tell(one)
    for warning in warnings:
        say(f"warning: {warning}")
    if failing:
        raise not_ready(failing)


def _print_divisions(facts: dict[str, dict[str, Any]]) -> None:
    """A line for each division."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    purposes = list(next(iter(facts.values()))["videos"])
    table.add_column("division", overflow="fold")
    for purpose in purposes:
        table.add_column(f"{purpose} videos", justify="right")
    table.add_column("trainers", overflow="fold")
    for name, of in facts.items():
        stand = ", ".join(dict.fromkeys(of["resumes_at"].values()))
        table.add_row(name, *(str(of["videos"].get(purpose, 0)) for purpose in purposes), stand)
    open_console().print(table)


def _facts(found: Preflight) -> dict[str, Any]:
    """What a job would do, in the form that `--json` prints."""
    phases, largest = found.phases, found.budget.clip_bytes
    clips: dict[str, int] = {}
    for (purpose, _), plan in zip(phases.order, phases.plans, strict=True):
        clips[_name(purpose)] = clips.get(_name(purpose), 0) + plan.clips
    return {
        "job": found.spec.name,
        "output": found.spec.output,
        "classes": len(found.classes),
        **({"records_of": _records(found)} if found.spec.data.records else {}),
        f"{found.spec.data.unit}s": {_name(purpose): len(view) for purpose, view in phases.views},
        "groups": {_name(purpose): groups for purpose, view in phases.views if (groups := view.rows.groups)},
        "clips": clips,
        "most_bytes_per_clip": largest,
        "clips_within_budget": found.spec.limits.budget // largest,
        "decoding": _decoding(found),
        "sweeps": found.spec.sweeps,
        **({"removes": _removed(found.removes)} if found.fresh else {}),
        "resumes_at": {trainer: _resumes_at(found, trainer) for trainer in found.spec.trainers},
    }


def _removed(removal: Removal | None) -> dict[str, Any] | None:
    """What `essp run --fresh` removes; None if there is nothing to remove."""
    if removal is None:
        return None
    return {
        "job": removal.job,
        "objects": len(removal.keys),
        "bytes": removal.bytes,
        "kept": list(removal.kept),
    }


def _records(found: Preflight) -> dict[str, Any]:
    """The data set of each split, its version, and the bytes of the records used."""
    data = found.spec.data
    used = {_name(purpose): view.rows for purpose, view in found.phases.views}
    return {
        split: {
            "uri": uri,
            "version": data.versions[split],
            "bytes": sum(int(rows.numbers("size_bytes")[rows.has("split", split)].sum()) for rows in used.values()),
        }
        for split, uri in data.record_sets.items()
    }


def _decoding(found: Preflight) -> dict[str, Any]:
    """The decoding cost of the first phase, estimated from the catalog's keyframes, compared with decoding each clip
    alone."""
    phases = found.phases
    cost = decode_cost(phases.plan(0), phases.view(0), found.spec.sampling.issue_window, found.budget.unit_clips)
    return {
        "sample_clips": cost.clips,
        "clips_per_pass": round(cost.clips_per_pass, 2),
        "frames_per_clip": round(cost.frames / cost.clips, 1),
        "frames_per_clip_alone": round(cost.frames_alone / cost.clips, 1),
        "times_less": round(cost.times_less, 2),
    }


def _resumes_at(found: Preflight, trainer: str) -> str:
    latest = found.resume.manifests.get(trainer)
    if latest is None:
        return "begins"
    if latest.final:
        if stop := found.resume.stops.get(trainer):
            return f"finished: it {stop.words}"
        return f"finished (--epochs {2 * found.spec.epochs} to continue)"
    if stop := found.resume.stops.get(trainer):
        return f"{stop.words}; continues with what follows all epochs"
    order = found.phases.order
    purpose, epoch = order[min(latest.position.phase_index, len(order) - 1)]
    return f"resumes with {phase_title(_name(purpose), epoch)}, after {latest.step} clips"


def _print(facts: dict[str, Any]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name in ("job", "output", "classes"):
        table.add_row(name, str(facts[name]))
    for split, of in facts.get("records_of", {}).items():
        table.add_row(f"{split} records", f"{shown(of['uri'])} version {of['version']}, {size(of['bytes'])}")
    kind = "records" if "records" in facts else "videos"
    for purpose, videos in facts[kind].items():
        groups = f" of {counted(facts['groups'][purpose], 'group')}" if purpose in facts["groups"] else ""
        of_kind, clips = counted(videos, kind.removesuffix("s")), counted(facts["clips"][purpose], "clip")
        table.add_row(purpose, f"{of_kind}{groups}, {clips}")
    largest = size(facts["most_bytes_per_clip"])
    table.add_row(
        "in flight at once", f"{counted(facts['clips_within_budget'], 'clip')} of {largest} at most, with features"
    )
    decoding = facts["decoding"]
    together = f"{decoding['clips_per_pass']:.3g} records of a file are read together"
    table.add_row("decoding", together if kind == "records" else _said(decoding))
    for sweep, trainers in facts["sweeps"].items():
        table.add_row(f"sweep {sweep}", _swept(len(trainers)))
    for trainer, position in facts["resumes_at"].items():
        table.add_row(f"trainer {trainer}", position)
    open_console().print(table)


def _said(decoding: dict[str, Any]) -> str:
    if decoding["times_less"] < _SHARED:
        return f"{decoding['frames_per_clip_alone']:.0f} frames a clip, each clip by itself"
    return (
        f"each decode feeds {decoding['clips_per_pass']:.1f} clips: {decoding['frames_per_clip']:.0f} frames a clip, "
        f"{decoding['times_less']:.1f} times fewer than clip by clip, by the catalog's keyframes"
    )


def _swept(trainers: int) -> str:
    return (
        f"{counted(trainers, 'trainer')} at once, which share each decoded clip; each needs its own memory and time "
        "on the CPU or GPU"
    )


def _room(spec: JobSpec, settings: Settings) -> tuple[str, ...]:
    """A warning if the cache is smaller than the budget: decoders then wait for room in it."""
    with closing(open_cache(embedded_settings(spec, settings).cache)) as cache:
        limit = cache.usage().limit_bytes
    if limit >= spec.limits.budget:
        return ()
    held = f"ESSP_CACHE holds {size(limit)}, limits.budget is {size(spec.limits.budget)}"
    return (f"{held}: decoders will wait for room; give the cache more memory, or lower the budget",)


def _name(purpose: Purpose) -> str:
    return Purpose.Name(purpose).lower()
