"""`python -m benchmarks.accuracy JOB`: whether what saves decoding, or bytes, costs accuracy, on a labelled set.

Trains the job file with several seeds in each of these ways, all else as in the file:

    one by one   `kind: class_balanced`, frames as RGB
    pooled       `kind: pooled`, 8 clips a visit, mixed within a window
    yuv420       as one by one, frames as YUV 4:2:0

Prints the accuracy of the last epochs on the validation videos, mean and standard error over the seeds, writes
`accuracy.json` and draws `accuracy.png` to `--dir`. Running it again goes on where it stopped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from essp.embedded.composition import Embedded, EmbeddedOptions
from essp.job_file import read_job
from essp.report.plots import LIGHT
from essp_common.errors import ConfigError, EsspError
from essp_common.job.spec import JobSpec, parse_spec
from essp_common.job.status import JobState
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from essp_engine.preflight.preflight import preflight

_WAYS: Mapping[str, tuple[str, str]] = {
    "one by one": ("rgb", "class_balanced"),
    "pooled": ("rgb", "pooled"),
    "yuv420": ("yuv420", "class_balanced"),
}
"""Name -> `clip.pixels` and `sampling.kind`."""
_PER_VISIT = 8
_KEPT = ("clips_per_epoch", "clips_per_video", "background")
"""Fields of `sampling` that are as the file has them."""
_LAST = 3
"""Epochs whose mean is the figure: single ones of few videos jump."""

Curves = dict[str, list[list[float]]]
"""`WAY/TRAINER` -> of each seed, the accuracy by video of each epoch."""


def main(
    job: Annotated[Path, typer.Argument(help="The job file, whose catalog has validation videos.")],
    directory: Annotated[Path, typer.Option("--dir", help="Where runs and results go.")] = Path("accuracy"),
    seeds: Annotated[int, typer.Option(min=2, help="Trainings of each way.")] = 5,
    window: Annotated[int, typer.Option(min=8, help="Clips that the pooled plan mixes; a multiple of 8.")] = 512,
) -> None:
    """Train the job in each way with several seeds, and compare."""
    given, file = read_job(job), directory / "accuracy.json"
    directory.mkdir(parents=True, exist_ok=True)
    asked = {"window": window, "job": given.model_dump(mode="json")}
    held: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"asked": asked, "curves": {}}
    if held["asked"] != asked:
        raise ConfigError(f"{file} holds results of another job or window; name another --dir")
    curves: Curves = held["curves"]
    for seed in range(seeds):
        for way in _WAYS:
            if all(len(curves.get(f"{way}/{name}", ())) > seed for name in given.trainers):
                continue
            spec = _changed(given, way, seed, window, directory)
            for name, curve in _trained(spec).items():
                curves.setdefault(f"{way}/{name}", []).append(curve)
            file.write_text(json.dumps(held))
            typer.echo(f"seed {seed}, {way}: done", err=True)
    for name in given.trainers:
        for way in _WAYS:
            mean, error = _level(curves[f"{way}/{name}"])
            typer.echo(f"{name:8} {way:12} {100 * mean:5.1f} % +- {100 * error:.1f}")
    (directory / "accuracy.png").write_bytes(_picture(curves, list(given.trainers)))


def _changed(given: JobSpec, way: str, seed: int, window: int, directory: Path) -> JobSpec:
    pixels, kind = _WAYS[way]
    document, name = given.model_dump(mode="json", exclude_unset=True), f"{way.replace(' ', '-')}-{seed}"
    visits = {"clips_per_visit": _PER_VISIT, "window": window} if kind == "pooled" else {}
    kept = {field: document["sampling"][field] for field in _KEPT if field in document.get("sampling", {})}
    own: dict[str, Any] = {
        "name": name,
        "output": f"file://{directory.resolve()}/{name}",
        "clip": {**document.get("clip", {}), "pixels": pixels},
        "sampling": {**kept, "kind": kind, "seed": seed, **visits},
    }
    return parse_spec(json.dumps({**document, **own}))


def _trained(spec: JobSpec) -> dict[str, list[float]]:
    """Trainer -> its accuracy on the validation videos after each epoch."""
    settings = Settings()
    checked = preflight(spec, Stores(settings.stores), fresh=True)
    with Embedded(checked, settings, EmbeddedOptions(fresh=True)) as running:
        while not running.ended(1.0):
            pass
        status = running.status()
    if status.state is not JobState.COMPLETED:
        raise EsspError(f"{spec.name}: {status.reason}")
    return {
        trainer.name: [each.metrics["video_top1"] for each in trainer.reports if each.purpose == "validation"]
        for trainer in status.trainers
    }


def _level(curves: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mean over the seeds, and its standard error."""
    ends = np.array(curves)[:, -_LAST:].mean(axis=1)
    return float(ends.mean()), float(ends.std(ddof=1) / np.sqrt(len(ends)))


def _picture(curves: Curves, trainers: Sequence[str]) -> bytes:
    """Accuracy over the epochs: lines are means over the seeds, bands their standard errors."""
    figure = Figure(figsize=(4.2 * len(trainers), 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    for place, name in enumerate(trainers, 1):
        axes = figure.add_subplot(1, len(trainers), place, title=name, xlabel="epoch")
        axes.set_ylabel("validation videos right, %")
        for way, colour in zip(_WAYS, LIGHT.lines, strict=False):
            values: NDArray[np.float64] = 100 * np.array(curves[f"{way}/{name}"])
            epochs, mean = np.arange(1, values.shape[1] + 1), values.mean(axis=0)
            error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
            axes.plot(epochs, mean, color=colour, label=way)
            axes.fill_between(epochs, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color=LIGHT.faint)
        axes.legend(frameon=False)
    file = BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()


if __name__ == "__main__":
    try:
        typer.run(main)
    except EsspError as error:
        sys.exit(f"accuracy: {error}")
