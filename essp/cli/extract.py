"""`essp extract`: write embeddings or features of many videos, on this machine, without a job file.

It is a job with `extract`, run as `essp run` runs one: it resumes after Ctrl-C or a crash, and a video that cannot be
decoded is reported, and does not stop the others.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from essp.catalog.build import BuildOptions, build
from essp.cli import completions
from essp.cli.console import open_console, say
from essp.cli.extraction_job import Asked, extraction_job
from essp.cli.job_file import Sets
from essp.cli.reading_progress import reading_progress
from essp.cli.run import run_watched, settings_of
from essp.cli.view import open_view
from essp.embedded.composition import EmbeddedOptions
from essp.job_file import placed_settings
from essp.uris import as_uri, shown
from essp.weights.fetching import fetch_weights
from essp_common.artifacts import features, layout
from essp_common.artifacts.features import FeatureManifest
from essp_common.artifacts.partial_scores import PartialScores
from essp_common.catalog.file import read_catalog
from essp_common.distribution import require
from essp_common.errors import ConfigError, NotFound, PermanentError
from essp_common.field_names import fields_named
from essp_common.job.fields import plain_name
from essp_common.job.spec import JobSpec, LimitsSpec
from essp_common.job.status import JobState
from essp_common.job.trainer_spec import PACKAGE, PACKAGED_WEIGHTS, names_place
from essp_common.quantities import counted, size
from essp_common.runtime.config import Settings
from essp_common.runtime.cores import cpu_count
from essp_common.runtime.process import EXIT_INTERRUPTED
from essp_common.wiring import Stores
from essp_engine.decoding.probing import ProbeOptions
from essp_engine.preflight.checks import check
from essp_engine.preflight.resolve import ResolvedJob, resolve
from essp_engine.registrations import Declared

_OPTIONS = {
    "name": "--name",
    "extract.network": "--network",
    "extract.weights": "--weights",
    "extract.model": "--model",
    "extract.crop": "--crop",
    "extract.pool": "--pool",
    "extract.reduce": "--reduce",
    "extract.dtype": "--dtype",
    "extract.format": "--format",
    "sampling.every_s": "--every",
    "sampling.every_frames": "--every",
    "sampling.clips_per_video": "--clips",
    "clip.frames": "--frames",
    "clip.stride": "--stride",
    "clip.resize": "--size",
    "clip.resize.height": "--size",
    "clip.resize.width": "--size",
    "streams": "--feature",
    "data.catalog": "SOURCE",
    "output": "--out",
}
"""Job field -> its name in this command."""
_TABLES = (".parquet", ".pq")
_EVERY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|f|)")
_MOST_TOLD = 10


def main(
    source: Annotated[
        str,
        typer.Argument(help="The videos: a catalog (.parquet), or a folder or list of videos; a path or a URI."),
    ],
    out: Annotated[str, typer.Option(help="Folder to write to; a path or a URI.")],
    network: Annotated[
        str | None,
        typer.Option(
            help="Network whose embeddings to write: a torchvision name, timm:NAME, hf:NAME, or your own.",
            autocompletion=completions.models,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Weights of --network: a file, or a trainer of a finished job (RUN/trainers/NAME); default: the "
            "published ones, which are fetched."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Instead of --network: the output of a training job, or its `model` folder.")
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option(
            help="Feature to compute (`essp extractor ls`); may be repeated (default: rgb).",
            autocompletion=completions.features,
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(help="Time from one clip to the next, as in 0.5s; or frames, as in 16f (default: 1s)."),
    ] = None,
    clips: Annotated[
        int | None, typer.Option(help="Instead of --every: this many clips of each video, evenly spaced.", min=1)
    ] = None,
    frames: Annotated[
        int | None, typer.Option(help="Frames of a clip (default: what the network or the feature needs).", min=1)
    ] = None,
    stride: Annotated[int | None, typer.Option(help="Distance of the frames of a clip (default: 1).", min=1)] = None,
    side: Annotated[
        int | None,
        typer.Option("--size", help="Side of the decoded frames in pixels (default: so that --crop fits).", min=8),
    ] = None,
    crop: Annotated[
        int | None, typer.Option(help="Side in pixels of what the network sees (default: its own, or 224).", min=8)
    ] = None,
    pool: Annotated[
        Literal["none", "mean", "max"], typer.Option(help="One vector for each video, over its clips.")
    ] = "none",
    reduce: Annotated[
        Literal["mean", "none"],
        typer.Option(help="Without a network: the mean over frames and positions, or all values of the feature."),
    ] = "mean",
    dtype: Annotated[Literal["float32", "float16"], typer.Option(help="Type of the numbers.")] = "float32",
    form: Annotated[
        Literal["parquet", "npy"],
        typer.Option("--format", help="A table with a row for each vector, or a NumPy file (T, D) for each video."),
    ] = "parquet",
    sets: Sets = None,
    name: Annotated[str | None, typer.Option(help="Name of the job (default: the last part of --out).")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin again: remove what --out has of an earlier job.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --fresh: do not ask first.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be written, and how much; compute nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print events and status as JSON lines; the last line is the result.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the services' logs.")] = False,
) -> None:
    """Write a vector for each clip of many videos: the embedding of a network, or a feature.

    Ctrl-C saves and exits; the same command continues from there. A video that cannot be decoded is
    reported, and the others are processed.
    """
    require("essp extract", "torch")
    settings = settings_of()
    console = open_console(stderr=True)
    output = as_uri(out)
    every_s, every_frames = (None, None) if every is None else _distance(every)
    asked = Asked(
        network=network,
        weights=None if weights is None else as_uri(weights) if names_place(weights) else weights,
        model=None if model is None else as_uri(model),
        features=tuple(feature or ("rgb",)),
        every_s=every_s,
        every_frames=every_frames,
        clips=clips,
        frames=frames,
        stride=stride,
        size=side,
        crop=crop,
        extract={"pool": pool, "reduce": reduce, "dtype": dtype, "format": form},
    )
    stores = Stores(settings.stores)
    with fields_named(_OPTIONS, JobSpec):
        own_side = None if network is None else _side_of(network, settings)
        if network is not None and weights is None:
            asked = _with_weights(asked, network, output, console)
        catalog = f"{output.rstrip('/')}/{layout.CATALOG}" if _is_source(source) else as_uri(source)
        spec = extraction_job(asked, name or _name_of(output), output, catalog, placed_settings(sets or ()), own_side)
        if _is_source(source):
            _build(as_uri(source), catalog, settings, console)
        job = resolve(spec, stores, Declared(code=settings.code))
        limits = _with_room(job)
        spec, job = spec.model_copy(update=limits), replace(job, spec=job.spec.model_copy(update=limits))
        check(job)
        if dry_run:
            _tell_plan(job, stores, settings, as_json)
            return
        if not fresh and (done := _complete(job, stores)) is not None:
            console.print("everything is written already (--fresh begins again)", highlight=False)
        else:
            status = run_watched(spec, open_view(as_json), EmbeddedOptions(fresh=fresh), settings, verbose, yes)
            if not status.state.ended:
                console.print("to continue, give the same command again", highlight=False)
                raise typer.Exit(EXIT_INTERRUPTED)
            if status.state != JobState.COMPLETED:
                raise typer.Exit(1)
            done = features.read_manifest(stores.under(output))
    _tell_result(done, stores, output, as_json, console)


def _distance(text: str) -> tuple[float | None, int | None]:
    """Parse `0.5s`, `0.5` (seconds) or `16f` (frames). Raises `ConfigError`."""
    match = _EVERY.fullmatch(text)
    if match is None or (match[2] == "f" and "." in match[1]):
        raise ConfigError(f"{text!r}: give seconds, as in 0.5s, or frames, as in 16f", field="--every", code="type")
    return (None, int(match[1])) if match[2] == "f" else (float(match[1]), None)


def _name_of(output: str) -> str:
    """A name for the job: the last part of its output, if that is a name."""
    last = PurePosixPath(output).name.lower()
    try:
        return plain_name(re.sub(r"[^a-z0-9_-]+", "-", last).strip("-_")[:63].rstrip("-_"))
    except ValueError:
        return "extract"


def _is_source(source: str) -> bool:
    """Whether these are videos, not a catalog. A catalog of them is then built in the output."""
    return PurePosixPath(source).suffix.lower() not in _TABLES


def _with_room(job: ResolvedJob) -> dict[str, LimitsSpec]:
    """The limits of the job, with a budget that is large enough for its clips."""
    limits = job.spec.limits
    return {"limits": limits.model_copy(update={"budget": max(limits.budget, job.budget.enough_bytes)})}


def _build(uri: str, catalog: str, settings: Settings, console: Console) -> None:
    """Build the catalog of these videos. Raises `ConfigError` if there is one of other videos."""
    store, key = Stores(settings.stores).resolve(catalog)
    try:
        before = read_catalog(store, key, ()).source
    except (NotFound, ConfigError):  # a file that is not a catalog is for `build` to refuse
        before = uri
    if before != uri:
        raise ConfigError(
            f"{shown(catalog)} is a catalog of {shown(before)}; name another folder, or give that catalog instead of "
            "videos",
            field="--out",
            code="exists",
        )
    options = BuildOptions(probe=ProbeOptions(cpu_count(), store_patience_s=settings.store_patience_s))
    try:
        with reading_progress(console, "reading videos") as tell:
            built = build(uri, catalog, settings.stores, options, tell)
    except KeyboardInterrupt:
        say("interrupted; what was read is kept: give the same command again to continue", console)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    for note in built.notes:
        say(f"note: {note}", console)


def _with_weights(asked: Asked, network: str, output: str, console: Console) -> Asked:
    """The published weights of the network, fetched into the output."""
    if network in PACKAGED_WEIGHTS:
        return replace(asked, weights=f"{PACKAGE}{network}")
    if not output.startswith("file://"):
        raise ConfigError(
            f"weights are fetched into a folder of this machine; fetch them first (`essp weights fetch {network}`), "
            "put them into the store, and name the file",
            field="extract.weights",
            code="missing",
        )
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", network)
    file = Path(output.removeprefix("file://")) / "weights" / f"{name}.safetensors"
    if not file.exists():
        console.print(f"fetching the weights of {network}", highlight=False)
        try:
            fetch_weights(network, file)
        except ConfigError as error:
            raise ConfigError(f"{error.problem}; or give the file", field="extract.weights", code="missing") from error
    return replace(asked, weights=as_uri(str(file)))


def _side_of(network: str, settings: Settings) -> int | None:
    """The only input side of a network; None: it accepts several, or there is no such network."""
    from essp_engine.learning.networks import network as known

    try:
        return known(network, settings.code).side
    except ConfigError as error:
        raise error.within("extract.network") from error


def _complete(job: ResolvedJob, stores: Stores) -> FeatureManifest | None:
    """What the output has, if it is what this job would write."""
    output = stores.under(job.spec.output)
    if job.scored_with is None or job.spec.extract is None:
        return None
    try:
        found = features.read_manifest(output)
    except PermanentError:  # there is none, or it is damaged
        return None
    same = PartialScores(output, job.spec, job.phases.digest, job.scored_with).identity == found.identity
    form = job.spec.extract.model_dump(mode="json", include={"pool", "format"})
    return found if same and form == {name: found.extract.get(name) for name in form} else None


def _tell_plan(job: ResolvedJob, stores: Stores, settings: Settings, as_json: bool) -> None:
    """What would be written."""
    view, [plan] = job.phases.view(0), job.phases.plans
    pooled = job.spec.extract is not None and job.spec.extract.pool != "none"
    width = 2 if job.spec.extract is not None and job.spec.extract.dtype == "float16" else 4
    rows = len(view) if pooled else plan.clips
    numbers = dict(_numbers(job, stores, settings))
    facts: dict[str, Any] = {
        "output": job.spec.output,
        "videos": len(view),
        "unusable": len(job.catalog.rows) - len(view),
        "clips": plan.clips,
        "sources": {
            source: {"rows": rows, "numbers": count, "bytes": rows * count * width} for source, count in numbers.items()
        },
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    unusable = f", and {facts['unusable']} that cannot be used" if facts["unusable"] else ""
    typer.echo(f"{counted(len(view), 'video')}{unusable}; {counted(plan.clips, 'clip')} of {job.spec.clip.distance}")
    for source, of in facts["sources"].items():
        typer.echo(f"{source}: {counted(of['rows'], 'vector')} of {of['numbers']} numbers, {size(of['bytes'])}")
    typer.echo(f"to {shown(job.spec.output)}/{layout.FEATURES}")


def _numbers(job: ResolvedJob, stores: Stores, settings: Settings) -> Iterator[tuple[str, int]]:
    """The length of the vectors of each source."""
    extract = job.spec.extract
    if job.model is not None:
        from essp_engine.learning.models import built

        for member in job.model.deciding:
            yield member.trainer, _inputs_of(built(member.model, settings.code).head)
        return
    of_network = None
    if extract is not None and extract.network is not None:
        import torch

        from essp_engine.learning.networks import network

        entry = network(extract.network, settings.code)
        with torch.device("meta"):
            of_network = _inputs_of(entry.make().get_submodule(entry.head))
    for name, stream in job.streams.items():
        whole = extract is not None and extract.reduce == "none"
        shape = stream.shapes[0]
        yield name, of_network or (math.prod(shape) if whole else shape[-1] - stream.layout.facts)


def _inputs_of(head: Any) -> int:
    return int(getattr(head, "in_features", 0) or getattr(head, "in_channels", 0))


def _tell_result(found: FeatureManifest, stores: Stores, output: str, as_json: bool, console: Console) -> None:
    """Where the vectors are, and which videos lack some."""
    store = stores.under(output)
    bad = {name: dict(_bad(features.read_videos(store, name))) for name in found.sources}
    if as_json:
        sources = {
            name: {**source.model_dump(mode="json"), "errors": bad[name]} for name, source in found.sources.items()
        }
        typer.echo(json.dumps({"features": store.uri(layout.FEATURES.rstrip("/")), "sources": sources}))
        return
    for name, source in found.sources.items():
        found_bad = list(bad[name].items())
        for video, error in found_bad[:_MOST_TOLD]:
            say(f"{video}: {error}", console, "yellow")
        if len(found_bad) > _MOST_TOLD:
            console.print(f"and {len(found_bad) - _MOST_TOLD} more: {name}-videos.parquet names all", style="yellow")
        of = f"{counted(source.rows, 'vector')} of {source.numbers} numbers, of {counted(source.videos, 'video')}"
        typer.echo(f"{shown(output).rstrip('/')}/{layout.FEATURES}{name}: {of}, {source.dtype}")


def _bad(videos: Any) -> Iterator[tuple[str, str]]:
    rows = zip(videos.column("video_id").to_pylist(), videos.column("error").to_pylist(), strict=True)
    return ((video, error) for video, error in rows if error is not None)
