"""`python -m benchmarks`: measure the hot path against its limit and its alternatives.

Prints lines `name value unit`, and writes them with their details to `results/latest.json`, benchmark by benchmark,
and in the end, as bars, to `results/latest.png`; with `--publish` also to `figures.json`, and from there into README.md
and to `docs/benchmarks.png`. `--resume` continues an interrupted run. Progress and the expected duration go to the
error stream. README.md says what each figure is.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from benchmarks import (
    autoscaling,
    bus,
    catalog_builds,
    catalogs,
    checking,
    checkpoints,
    decoding,
    features,
    gpu,
    gpus,
    hogwild,
    image_epochs,
    intake,
    io,
    loader_memory,
    loading,
    master,
    master_jobs,
    page,
    pixels,
    planning,
    pooling,
    records,
    robots,
    training,
    transport,
    views,
)
from benchmarks.figures import Figure, Scale
from benchmarks.plot import draw
from benchmarks.progress import Progress, seconds_of
from benchmarks.published import FILE, Published
from benchmarks.table import insert, table
from essp_common import distribution
from essp_common.runtime.cores import cpu_count

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results")
BENCHMARKS: dict[str, Callable[[Scale], Iterator[Figure]]] = {
    function.__name__: function
    for function in (
        decoding.decode_overhead,
        decoding.decode_peers,
        decoding.cores,
        pooling.planned,
        robots.robot,
        loading.loader_overhead,
        loading.loader_views,
        loading.shared,
        views.multiview,
        pixels.pixels,
        checking.cache_check,
        intake.intake,
        training.dataloader_one_stream,
        training.three_streams,
        training.three_streams_locality,
        transport.redis_handoff,
        transport.shm_handoff,
        transport.s3_bytes,
        bus.bus,
        features.feature,
        features.feature_sharing,
        master.master,
        master_jobs.master_many_jobs,
        catalogs.catalog_million,
        catalog_builds.catalog_quick,
        catalog_builds.catalog_listing,
        loader_memory.loader_memory,
        checkpoints.checkpoint_size,
        checkpoints.checkpoint_q8,
        checkpoints.checkpoint_stall,
        checkpoints.checkpoint_total,
        checkpoints.burst,
        records.records,
        image_epochs.records_coco,
        hogwild.hogwild,
        io.io_threads,
        io.io_prefetch_spread,
        autoscaling.autoscaling,
        gpu.gpu_busy,
        gpu.gpu_stall,
        gpus.gpu_allocation,
        planning.plan_error,
        page.page,
    )
}
_FIGURES = {
    "decode_peers": ("decode_seek", "decode_locality"),
    "checkpoint_size": ("checkpoint_exact_size", "checkpoint_delta_size"),
    "checkpoint_q8": ("checkpoint_q8_size", "checkpoint_q8_same"),
}
"""What the figures of a benchmark begin with, where that is not its own name."""
_OF_A_RUN = ("machine", "cpu", "cpus", "versions", "rounds", "clips", "quick", "full", "photographs")
"""What is the same for all figures of a run."""


def main(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A figure, or what figures begin with: {', '.join(BENCHMARKS)}, or more of it; may be repeated."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option(help="Small numbers that mean nothing, to see that everything runs.")] = False,
    full: Annotated[bool, typer.Option(help="Also 1280x720, HEVC and other GOPs, and a single training.")] = False,
    resume: Annotated[
        bool, typer.Option(help="Continue the interrupted run in the results, and keep what it has measured.")
    ] = False,
    publish: Annotated[
        bool, typer.Option(help="Put the figures into figures.json, README.md and the plot in docs.")
    ] = False,
    redraw: Annotated[
        bool, typer.Option("--draw", help="Measure nothing; write README.md and the plot again from figures.json.")
    ] = False,
    rounds: Annotated[int, typer.Option(help="How often each thing is measured.", min=1)] = 3,
    clips: Annotated[int, typer.Option(help="Clips of the shorter run; the longer one has three times as many.")] = 30,
    videos: Annotated[Path, typer.Option(help="Where the videos are kept.")] = RESULTS / "videos",
    photographs: Annotated[
        Path | None,
        typer.Option(
            help="A folder of JPEG files such as ImageNet has, for checkpoint_q8_same.", file_okay=False, exists=True
        ),
    ] = None,
    results: Annotated[Path, typer.Option(help="Where the results are written.")] = RESULTS,
) -> None:
    """Measure, print lines `name value unit`, write JSON and a plot."""
    if redraw:
        _show(Published.read(FILE))
        return
    chosen = benchmarks_of(only or [])
    if publish and quick:
        _refuse("--quick gives figures that mean nothing; leave --publish out")
    scale = Scale(videos.absolute(), 4 if quick else clips, 1 if quick else rounds, quick, full, photographs)
    latest = results / "latest.json"
    results.mkdir(parents=True, exist_ok=True)
    figures, through = kept(latest, document([], scale)) if resume else ([], [])
    others: list[str] = []
    left = [name for name in chosen if name not in through]
    progress = Progress(left, seconds_of(latest))
    for figure in figures:
        print(line(figure), flush=True)
    for name in left:
        print(progress.begin(name), file=sys.stderr, flush=True)
        for figure in BENCHMARKS[name](scale):
            others.append(figure.name)
            if not only or name in only or figure.name.startswith(tuple(only)):
                figures.append(figure)
                print(line(figure), flush=True)
        progress.end(name)
        through.append(name)
        if figures:
            written = document(figures, scale) | {"seconds": progress.took_s, "through": through}
            partial = latest.with_suffix(".partial")
            partial.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
            partial.replace(latest)  # a kill leaves the results of before
    if not figures and not others:
        _refuse("nothing was measured")
    if not figures:
        _refuse(f"no figure begins with {', '.join(only or [])}; there are: {', '.join(others)}")
    told = json.loads(latest.read_text(encoding="utf-8"))
    draw(figures, results / "latest.png")
    if publish:
        before = Published.read(FILE) if only else Published()
        published = before.with_run(told, figures, _place)
        published.write(FILE)
        _show(published)


def _place(figure: str) -> int:
    """Where the benchmark of a figure stands in the list."""
    return list(BENCHMARKS).index(benchmarks_of([figure])[0])


def _show(published: Published) -> None:
    """The table and the plot of the published figures."""
    draw([figure for figure, _ in published.figures], ROOT / "docs" / "benchmarks.png")
    insert(table(published), ROOT / "benchmarks" / "README.md")


def line(figure: Figure) -> str:
    """A figure as printed."""
    text = f"{figure.name} {figure.value:.3g} {figure.unit}"
    if figure.aim is None:
        return text
    return f"{text}  # aim {figure.aim}: {'met' if figure.aim.met(figure.value) else 'missed'}"


def document(figures: Sequence[Figure], scale: Scale) -> dict[str, object]:
    """All that is known of a run."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": platform.platform(),
        "cpu": _cpu(),
        "cpus": cpu_count(),
        "load": os.getloadavg()[0],
        "versions": {
            name: version(name) for name in (distribution.NAME, "av", "numpy", "opencv-python-headless", "torch")
        },
        "rounds": scale.rounds,
        "clips": scale.clips,
        "quick": scale.quick,
        "full": scale.full,
        "photographs": None if scale.photographs is None else str(scale.photographs),
        "figures": [figure.written() for figure in figures],
    }


def kept(latest: Path, present: Mapping[str, object]) -> tuple[list[Figure], list[str]]:
    """The figures of the run before, and the benchmarks that gave them. Exits where it was none, or of another kind."""
    try:
        before = json.loads(latest.read_text(encoding="utf-8"))
    except FileNotFoundError:
        _refuse(f"there is no run to go on with in {latest}; leave --resume out")
    differing = [name for name in _OF_A_RUN if before.get(name) != present[name]]
    if differing:
        _refuse(f"the run in {latest} was another one ({', '.join(differing)}); leave --resume out")
    return [Figure.read(figure) for figure in before["figures"]], before.get("through", [])


def _cpu() -> str:
    """Its name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def benchmarks_of(only: Sequence[str]) -> list[str]:
    """The benchmarks that give these figures; all of them for none. Exits where there is none for a name."""
    chosen = {name: _giving(name) for name in only}
    unknown = [name for name, giving in chosen.items() if not giving]
    if unknown:
        _refuse(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    return [name for name in BENCHMARKS if not only or any(name in giving for giving in chosen.values())]


def _giving(figure: str) -> set[str]:
    """The benchmarks whose figures begin with this, or else the one that this goes on from."""
    starts = {start: name for name in BENCHMARKS for start in (name, *_FIGURES.get(name, ()))}
    longer = {name for start, name in starts.items() if start.startswith(figure)}
    shorter = max((start for start in starts if figure.startswith(start)), key=len, default=None)
    return longer or ({starts[shorter]} if shorter else set())


def _refuse(why: str) -> NoReturn:
    print(why, file=sys.stderr)
    raise typer.Exit(2)


if __name__ == "__main__":
    typer.run(main)
