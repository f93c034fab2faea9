"""`python -m benchmarks.untrimmed`: what a background class and highlights are worth in untrimmed videos.

It makes videos of which two parts show a class and two thirds or more the background alone, and lists the parts. Then
it trains two models on the parts, one of them with a background class, and classifies with each of the two, in every
way that it has,

    untrimmed   whole test videos, with clips at even distances over all of them
    trimmed     the parts of these videos that show the class, each as a video of its own

    top-1       percent that are answered with their class
    mAP         percent, of the segments that were found in the whole videos, as ActivityNet defines it

Prints a table, and writes `untrimmed.json` to `--dir`. Running it again goes on where it stopped. `--minutes 60` makes
one long video besides, `long.mp4`, in which a class is seen every five seconds, and `long.csv`, which says where.
docs/segments.md has a run.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from essp.catalog.build import BuildOptions, build
from essp.demo.photographs import Picture
from essp.demo.scene import Scene, render
from essp.embedded.composition import Embedded
from essp.evaluation.segments import Stretch, evaluate
from essp_common.artifacts import layout
from essp_common.artifacts.predictions import read_predictions
from essp_common.artifacts.segments import read_segments
from essp_common.catalog.file import read_catalog
from essp_common.job.spec import JobSpec, parse_spec
from essp_common.job.status import JobState
from essp_common.runtime.config import Settings
from essp_common.runtime.cores import cpu_count
from essp_common.wiring import Stores
from essp_engine.preflight.preflight import preflight
from essp_engine.video.synthetic import Encoding, write_video

TEXTURES, MOTIONS = ("coins", "grass", "gravel"), ("left", "right")
BACKGROUND = "background"
OVERLAPS = tuple(round(0.1 * tenth, 1) for tenth in range(1, 10))
_VIDEOS = {"train": 16, "validation": 5, "test": 10}
"""Of each class."""
_FRAMES, _PARTS, _PART = 240, 2, (28, 41)
"""Frames of a video; parts of it that show its class, and from how many to how many frames each has."""
_SIZE = (160, 128)
_FPS = 25
_EVERY_S = 0.2
_ROOTS = ("file:///",)
_LABELS = ("path", "label", "split", "start_frame", "end_frame")


@dataclass(frozen=True, slots=True)
class Video:
    """One video of the set."""

    texture: str
    motion: str
    split: str
    take: int

    @property
    def label(self) -> str:
        return f"{self.texture}-{self.motion}"

    @property
    def path(self) -> str:
        return f"videos/{self.split}/{self.label}-{self.take:03d}.mp4"

    @property
    def parts(self) -> list[tuple[int, int]]:
        """First and last frame of each part that shows the class, in order and well apart."""
        random = np.random.default_rng([self.take, len(self.split), *self.label.encode()])
        lengths = random.integers(*_PART, _PARTS)
        room = _FRAMES // _PARTS
        begins = [room * part + int(random.integers(10, room - length - 10)) for part, length in enumerate(lengths)]
        return [(begin, begin + int(length) - 1) for begin, length in zip(begins, lengths, strict=True)]


def videos() -> Iterator[Video]:
    """All videos of the set."""
    for split, count in _VIDEOS.items():
        for take in range(count):
            for texture in TEXTURES:
                for motion in MOTIONS:
                    yield Video(texture, motion, split, take)


def pictures(video: Video) -> Iterator[Picture]:
    """The frames of a video."""
    seen = [any(first <= frame <= last for first, last in video.parts) for frame in range(_FRAMES)]
    return render(Scene(video.texture, video.motion, video.split, video.take, *_SIZE), seed=0, seen=seen)


def make(root: Path, video: Video) -> None:
    """Write one video; what is there already is left."""
    path = root / video.path
    if path.exists():
        return
    partial = path.with_name(f".{path.name}")
    write_video(partial, pictures(video), Encoding(fps=_FPS))
    partial.replace(path)


def make_all(root: Path) -> None:
    """Write the videos with one process a core."""
    for split in _VIDEOS:
        (root / "videos" / split).mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(cpu_count(), mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(make, root, video) for video in videos()]:
            done.result()


def make_long(root: Path, minutes: int) -> None:
    """Write a video of `minutes` minutes, made of the test videos' scenes, and where it shows which class."""
    scenes = [video for video in videos() if video.split == "test"]
    chosen = [scenes[place % len(scenes)] for place in range(minutes * 60 * _FPS // _FRAMES)]
    frames = chain.from_iterable(pictures(video) for video in chosen)
    write_video(root / "long.mp4", frames, Encoding(fps=_FPS, gop=50))
    with (root / "long.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("path", "label", "start_s", "end_s"))
        for place, video in enumerate(chosen):
            for first, last in video.parts:
                begin, end = place * _FRAMES + first, place * _FRAMES + last + 1
                rows.writerow(("long.mp4", video.label, begin / _FPS, end / _FPS))


def write_labels(path: Path, chosen: Sequence[Video], parts: bool) -> None:
    """List the parts of these videos that show their classes, or the videos as they are."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(_LABELS if parts else _LABELS[:3])
        for video in chosen:
            for part in video.parts if parts else [()]:
                rows.writerow([video.path, video.label, video.split, *part])


_TRAINING = """\
name: {name}
output: {root}/{name}
epochs: {epochs}
data: {{catalog: "{root}/{name}.parquet"}}
clip: {{frames: 6, resize: {{mode: crop, height: 128, width: 128}}, codec: {{name: jpeg}}}}
sampling: {{clips_per_epoch: {clips}, clips_per_video: 2, background: {background}}}
streams:
  rgb: {{feature: rgb}}
  flow: {{feature: flow, params: {{method: dis, length: 5}}}}
trainers:
  rgb: &trainer
    stream: rgb
    model: small
    batch_size: 16
    dropout: 0.2
    optimizer: {{lr: 0.05, steps: [{half}, {most}], weight_decay: 0.005}}
    augment: {{crop: 112, scales: [1.0, 0.875], flip: false}}
  flow: {{<<: *trainer, stream: flow}}
limits: {{budget: 64MiB, coupled: true}}
"""
_PREDICTION = """\
name: {name}
output: {root}/{name}
data: {{catalog: "{root}/{catalog}.parquet"}}
sampling: {{every_s: {every_s}}}
predictor: {{model: "{root}/{model}", segments: {segments}, highlight: {highlight}}}
limits: {{budget: 64MiB}}
"""
_WAYS = {
    "plain": ("plain", "null"),
    "plain, contrast": ("plain", "{weight: contrast}"),
    "background": ("background", "null"),
    "background, actionness": ("background", "{weight: actionness}"),
    "background, contrast": ("background", "{weight: contrast}"),
}
"""Way of classifying -> the model, and `predictor.highlight`."""


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one way of classifying, in percent."""

    way: str
    untrimmed: float
    trimmed: float
    precision: dict[str, float]
    """Overlap -> mean average precision."""


def catalogs(root: Path) -> None:
    """The catalogs of the two trainings, and of what is classified."""
    every = list(videos())
    tests = [video for video in every if video.split == "test"]
    lists: dict[str, tuple[Sequence[Video], bool, str | None]] = {
        "plain": (every, True, None),
        "background": (every, True, BACKGROUND),
        "untrimmed": (tests, False, None),
        "trimmed": (tests, True, None),
    }
    for name, (chosen, parts, background) in lists.items():
        write_labels(root / f"{name}.csv", chosen, parts)
        options = BuildOptions("csv", background=background)
        build(f"file://{root}/{name}.csv", f"file://{root}/{name}.parquet", _ROOTS, options)


def run(text: str) -> JobSpec:
    """Run a job to its end; one that has ended stays as it is."""
    checked = preflight(parse_spec(text), Stores(_ROOTS))
    spec, started = checked.spec, time.monotonic()
    with Embedded(checked, Settings()) as job:
        while not job.ended(1.0):
            pass
        status = job.status()
    if status.state != JobState.COMPLETED:
        raise SystemExit(f"{spec.name}: {status.reason or status.state}")
    typer.echo(f"{spec.name}: {time.monotonic() - started:.0f} s", err=True)
    return spec


def top1(root: Path, spec: JobSpec, catalog: str) -> float:
    """Percent of the videos of a catalog that were answered with their class."""
    stores = Stores(_ROOTS)
    answers, _ = read_predictions(stores.under(spec.output), layout.PREDICTIONS)
    labels = {row.id: row.class_name for row in read_catalog(*stores.resolve(f"file://{root}/{catalog}.parquet")).rows}
    return 100 * float(np.mean([row.class_name == labels[row.video_id] for row in answers]))


def precision(spec: JobSpec) -> dict[str, float]:
    """Mean average precision of the segments of a job, by overlap and on average over all overlaps."""
    found = read_segments(Stores(_ROOTS).under(spec.output), layout.SEGMENTS)
    given = (Stretch(s.video_id, s.class_name, s.first_frame, s.last_frame + 1, s.score) for s in found)
    labelled = (
        Stretch(video.path, video.label, first, last + 1)
        for video in videos()
        if video.split == "test"
        for first, last in video.parts
    )
    result = evaluate(given, labelled, OVERLAPS)
    by_overlap = {f"{overlap:g}": 100 * value for overlap, value in zip(OVERLAPS, result.mean.tolist(), strict=True)}
    return by_overlap | {"mean": 100 * result.average}


def classify(root: Path, way: str) -> Row:
    """Classify the test videos and their parts in one way."""
    model, highlight = _WAYS[way]
    fields: dict[str, Any] = {"root": f"file://{root}", "model": model, "highlight": highlight, "every_s": _EVERY_S}
    specs = {
        catalog: run(
            _PREDICTION.format(
                name=f"{catalog}-{way.replace(', ', '-')}",
                catalog=catalog,
                segments=str(catalog == "untrimmed").lower(),
                **fields,
            )
        )
        for catalog in ("untrimmed", "trimmed")
    }
    scores = {catalog: top1(root, spec, catalog) for catalog, spec in specs.items()}
    return Row(way, scores["untrimmed"], scores["trimmed"], precision(specs["untrimmed"]))


def main(
    directory: Annotated[Path, typer.Option("--dir", help="Where everything goes.")] = Path("untrimmed"),
    epochs: Annotated[int, typer.Option(help="Of each training.", min=2)] = 20,
    clips: Annotated[int, typer.Option(help="Of one epoch.", min=16)] = 480,
    minutes: Annotated[int, typer.Option(help="Of one long video that is made besides; 0: none.", min=0)] = 0,
) -> None:
    """Make the videos, train, classify, and print what came of it."""
    root = directory.absolute()
    make_all(root)
    if minutes:
        make_long(root, minutes)
    catalogs(root)
    fields: dict[str, Any] = {"root": f"file://{root}", "epochs": epochs, "half": epochs // 2, "most": epochs * 3 // 4}
    for name, background in (("plain", "null"), ("background", BACKGROUND)):
        run(_TRAINING.format(name=name, background=background, clips=clips, **fields))
    rows = [classify(root, way) for way in _WAYS]
    for row in rows:
        shown = "  ".join(f"{row.precision[overlap]:5.1f}" for overlap in ("0.3", "0.5", "0.7", "mean"))
        typer.echo(f"{row.way:24} top-1 {row.untrimmed:5.1f}  trimmed {row.trimmed:5.1f}  mAP {shown}")
    (root / "untrimmed.json").write_text(json.dumps([asdict(row) for row in rows], indent=2), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
