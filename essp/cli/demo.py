"""`essp demo`: the whole journey on a labelled video set that it generates.

    DIR/videos/           the set: real encoded files (essp/demo/dataset.py)
    DIR/catalog.parquet   facts about them
    DIR/job.yaml          the job, to read and to change
    DIR/run/              checkpoints, fused model, report

Running it again continues where it stopped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from essp.catalog.build import BuildOptions, build
from essp.cli.console import open_console
from essp.cli.predict import classify_watched, document, table
from essp.cli.run import run_watched, settings_of
from essp.cli.view import open_view
from essp.demo.dataset import CLASSES, make_dataset
from essp.demo.job import job_text
from essp.demo.taken import check_catalog, check_job
from essp.embedded.composition import EmbeddedOptions
from essp.folders import written
from essp.uris import as_uri, shown
from essp_common.job.spec import parse_spec
from essp_common.job.status import JobState, JobStatus
from essp_common.quantities import percent, size
from essp_common.runtime import metrics
from essp_common.runtime.config import Settings
from essp_common.runtime.process import EXIT_INTERRUPTED
from essp_common.wiring import Stores

_SHOWN = 4


def main(
    directory: Annotated[Path, typer.Option("--dir", help="Folder for all files of the demonstration.")] = Path("demo"),
    videos_per_class: Annotated[int, typer.Option(help="Number of videos in each of the 12 classes.", min=6)] = 30,
    epochs: Annotated[int, typer.Option(help="Number of training epochs.", min=1)] = 8,
    clips_per_epoch: Annotated[int, typer.Option(help="Number of clips in an epoch.", min=16)] = 960,
    seed: Annotated[int, typer.Option(help="Seed of the generated videos.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print events and status as JSON lines.")] = False,
) -> None:
    """Make a labelled video set, train two streams on it, fuse them, and classify videos that neither stream has seen.

    The classes are pairs of a texture and a motion: a single frame shows only the texture, optical flow only the
    motion.
    """
    directory = Path(os.path.abspath(os.path.expanduser(directory)))
    path = directory / "job.yaml"
    text = job_text(as_uri(str(directory)), epochs, clips_per_epoch)
    spec = parse_spec(text, str(path))  # report errors before spending minutes on videos
    console = open_console(stderr=True)
    videos, catalog, stores = directory / "videos", as_uri(str(directory / "catalog.parquet")), Settings().stores
    check_job(path, "--dir")
    check_catalog(catalog, as_uri(str(videos)), Stores(stores), "--dir")
    try:
        _make_videos(videos, videos_per_class, seed, console)
        build(as_uri(str(videos)), catalog, stores, BuildOptions("folders"))
    except KeyboardInterrupt:
        console.print("interrupted; what was made is kept: run the same command again to continue", soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    with written(path):
        path.write_text(text, encoding="utf-8")
    console.print(
        f"training {' and '.join(spec.trainers)}: {shown(as_uri(str(path)))}", highlight=False, soft_wrap=True
    )
    status = run_watched(spec, open_view(as_json), EmbeddedOptions(), settings_of())
    if not status.state.ended:
        console.print("to continue: run the same command again")
        raise typer.Exit(EXIT_INTERRUPTED)
    if status.state != JobState.COMPLETED:
        raise typer.Exit(1)
    _account(directory, status, console)
    _predict(videos, directory / "run", as_json, console)


def _make_videos(videos: Path, per_class: int, seed: int, console: Console) -> None:
    with Progress(
        TextColumn("making videos"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    ) as bar:
        task = bar.add_task("videos", total=per_class * len(CLASSES))
        make_dataset(videos, per_class, seed, lambda done, total: bar.update(task, completed=done, total=total))


def _predict(videos: Path, model: Path, as_json: bool, console: Console) -> None:
    """Classify one video of each of the first few classes of the test split, as `essp predict` does."""
    first = (next(iter(sorted((videos / "test" / name).iterdir()))) for name in sorted(CLASSES)[:_SHOWN])
    unseen = [shown(as_uri(str(video))) for video in first]
    uri = as_uri(str(model))
    console.print(f"essp predict {' '.join(unseen)} --model {shown(uri)}", highlight=False, soft_wrap=True)
    answers = classify_watched(unseen, uri, Settings(), console)
    if as_json:
        typer.echo(json.dumps({"predictions": document(answers, top=1)}))
    else:
        open_console().print(table(answers, top=1))


def _account(directory: Path, status: JobStatus, console: Console) -> None:
    """What is on the disk now, by kind; everything else counts as intermediate files."""
    kinds = {"videos": "videos", "catalog.parquet": "catalog", "job.yaml": "job", "run": "checkpoints, model, report"}
    sizes = dict.fromkeys([*kinds.values(), "intermediate files"], 0)
    for file in directory.rglob("*"):
        if file.is_file():
            top = file.relative_to(directory).parts[0]
            sizes[kinds.get(top, "intermediate files")] += file.stat().st_size
    listed = ", ".join(f"{name} {size(count)}" for name, count in sizes.items())
    console.print(f"on disk: {listed}", highlight=False, soft_wrap=True)
    decoded = f"{status.counts.decoded} clips were decoded once and fed {len(status.trainers)} trainers"
    console.print(decoded if status.counts.decoded else "the run was complete already", highlight=False)
    if decoded_frames := metrics.frames("decoded"):
        console.print(_saved(decoded_frames, len(status.trainers)), highlight=False, soft_wrap=True)


def _saved(decoded: int, trainers: int) -> str:
    """How much decoding was saved by sharing, from the decoder process counters of this run."""
    shared, skipped = (metrics.frames(what) for what in ("shared", "skipped"))
    apart = trainers * (decoded + skipped + shared)
    saved = percent(1 - decoded / apart, 0)
    return f"{decoded} frames were decoded; each trainer on its own would decode {apart}: {saved} saved"
