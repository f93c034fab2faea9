"""Extracting first against streaming: the same videos, the same two networks, the same number of clips.

Both sides run in a process of their own and are watched by the clock and by processor time, children included. ESSP is
a job as `essp run` has it, with its master, decoders, extractor and two trainers, and does more: it validates after
each epoch (on a clip of each of a few videos) and saves checkpoints. The files of the other side are in the page cache
when they are read, which favours extraction: the disk is not measured.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.inputs import VideoSet, make
from benchmarks.papers.document import markdown, spread
from benchmarks.papers.essp import traditional
from benchmarks.papers.essp.traditional import Task
from benchmarks.papers.machine import Marks, apart
from benchmarks.papers.study import Options, Part, Steps, Values
from essp.capacity.extraction import DataSet, Machines, comparison, sample
from essp.capacity.measuring import measure
from essp.catalog.build import BuildOptions, build
from essp.embedded.composition import Embedded, EmbeddedOptions
from essp_common.catalog.file import read_catalog
from essp_common.catalog.splits import splits_of
from essp_common.catalog.view import CatalogView
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, JobStatus
from essp_common.quantities import size
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores

MADE = VideoSet("mpeg4", 12, 320, 240, ".avi", frames=186, videos=60)
"""Like UCF-101: MPEG-4 in AVI of 320x240, a keyframe in 12, 7.3 s each."""
WAYS = {"extract": "extract first", "essp": "ESSP, clip by clip", "pooled": "ESSP, 4 clips a visit"}
SETS = {"made": "made videos like UCF-101's", "real": "real videos"}
_ROOTS = ("file:///",)
_LOOK_S = 0.05
_SECONDS = 10.0


def catalog_of(data: str, options: Options) -> Path:
    """The catalog of a set, built if need be."""
    if data == "made":
        videos = VideoSet("mpeg4", 12, 320, 240, ".avi", frames=40, videos=4) if options.quick else MADE
        return make(videos, options.work / "videos")
    assert options.videos is not None
    path = options.work / f"{options.videos.name}.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        build(f"file://{options.videos}", f"file://{path}", _ROOTS, BuildOptions("folders"))
    return path


def job(catalog: Path, output: str, task: Task, pooled: bool) -> JobSpec:
    """A job with the two streams that the traditional pipeline trains."""
    sampling: dict[str, Any] = {"clips_per_epoch": len(task.videos), "clips_per_video": 1}
    sampling |= {"kind": "pooled", "clips_per_visit": 4, "window": 64} if pooled else {}
    trainer = {"model": "small", "batch_size": task.batch, "augment": {"crop": task.crop}}
    return JobSpec.model_validate(
        {
            "name": "streamed",
            "output": output,
            "epochs": task.epochs,
            "data": {"catalog": f"file://{catalog}", "validation_fraction": 0.05, "test": None},
            "clip": {
                "frames": task.length + 1,
                "stride": task.stride,
                "resize": {"mode": "exact", "height": task.size, "width": task.size},
            },
            "sampling": sampling,
            "streams": {"rgb": {}, "flow": {"feature": "flow", "params": {"length": task.length}}},
            "trainers": {name: {"stream": name, **trainer} for name in ("rgb", "flow")},
            "aggregation": {"strategies": ["average"]},
            "limits": {"budget": "1GiB"},
        }
    )


def _trained(catalog: Path, quick: bool) -> tuple[CatalogView, Task]:
    """The training videos of the job, and the task of both pipelines."""
    found = read_catalog(*Stores(_ROOTS).resolve(f"file://{catalog}"))
    view = splits_of(found, job(catalog, "file:///none", Task((Path(),), (0,)), False).data).train
    rows = [(row.uri, row.class_name) for row in view.rows]
    task = Task(*traditional.labelled(rows))
    return view, replace(task, size=64, crop=56, epochs=2, batch=2, length=3) if quick else task


def extracted(catalog: Path, quick: bool, work: Path) -> dict[str, Any]:
    """The traditional pipeline: extract, then train."""
    view, task = _trained(catalog, quick)
    work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="extracted-", dir=work))
    try:
        found = traditional.run(task, folder)
    finally:
        shutil.rmtree(folder)
    found["bytes"]["videos"] = int(view.rows.numbers("size_bytes").sum())
    found["hours"] = float(view.rows.numbers("duration_s").sum()) / 3600
    return found


def streamed(catalog: Path, quick: bool, pooled: bool) -> dict[str, Any]:
    """ESSP's side: all epochs, then a job with another stride until its first batch."""
    _, task = _trained(catalog, quick)
    marks = Marks()
    _run(job(catalog, "file:///none", task, pooled), marks)
    again = Marks()
    changed = Task(task.videos, task.labels, task.size, task.crop, task.length, 2, task.batch, 1)
    _run(job(catalog, "file:///none", changed, pooled), again, until="first batch")  # and no further
    return {"marks": marks.reached, "changed": again.reached, "bytes": {}, "clips": len(task.videos)}


def _run(spec: JobSpec, marks: Marks, until: str | None = None) -> None:
    with tempfile.TemporaryDirectory(prefix="essp-benchmark-") as folder:
        spec = spec.model_copy(update={"output": f"file://{folder}/run"})
        with Embedded(spec, Settings(), EmbeddedOptions(fresh=True, alone=True)) as running:
            while not running.ended(_LOOK_S) and until not in marks.reached:
                _mark(running.status(), marks)
            status = running.status()
            _mark(status, marks)
        if until is None and status.state is not JobState.COMPLETED:
            raise RuntimeError(f"the job {status.state}: {status.reason}")


def _mark(status: JobStatus, marks: Marks) -> None:
    """What all trainers have reached."""
    for phase in status.phases:
        if phase.purpose == "train":
            if phase.epoch == 0 and phase.done and min(phase.done.values()) > 0:
                marks.set("first batch")
            if phase.finished:
                marks.set(f"epoch {phase.epoch + 1}")


def planned(catalog: Path, quick: bool, pooled: bool) -> dict[str, Any]:
    """What `essp plan --against extract` says of the same."""
    view, task = _trained(catalog, quick)
    spec = job(catalog, "file:///none", task, pooled).model_copy(update={"epochs": 200})
    seconds = 5.0 if quick else _SECONDS
    costs = measure(spec, Settings(), seconds)
    found = sample(spec, view.rows, seconds)
    present = DataSet.of(view.rows)
    spec = spec.model_copy(update={"epochs": task.epochs})
    return comparison(spec, costs, found, present, present, Machines(24.0, 16))


def _steps(options: Options) -> Steps:
    for data in SETS if options.videos is not None else ("made",):
        catalog = catalog_of(data, options)
        for number in range(options.rounds):
            scratch = options.work / "scratch"
            yield f"{data}.extract.{number}", partial(apart, extracted, catalog, options.quick, scratch)
            yield f"{data}.essp.{number}", partial(apart, streamed, catalog, options.quick, False)
            yield f"{data}.pooled.{number}", partial(apart, streamed, catalog, options.quick, True)
        for way in ("essp", "pooled"):
            yield f"{data}.plan.{way}", partial(apart, planned, catalog, options.quick, way == "pooled")


def _rounds(values: Values, data: str, way: str) -> list[Mapping[str, Any]]:
    return [values[key] for key in values if key.startswith(f"{data}.{way}.")]


def _reached(rounds: list[Mapping[str, Any]], mark: str, unit: str, marks: str = "marks") -> str:
    found = [one[marks][mark][unit] for one in rounds if mark in one[marks]]
    return spread(found, "{:.1f}") if found else ""


def _last(rounds: list[Mapping[str, Any]]) -> str:
    marks: Mapping[str, Any] = rounds[0]["marks"]
    return max((mark for mark in marks if mark.startswith("epoch")), key=lambda name: int(name.split()[1]))


def _table(values: Values) -> str:
    tables = []
    for data, title in SETS.items():
        ways = {way: rounds for way in WAYS if (rounds := _rounds(values, data, way))}
        if "extract" not in ways:
            continue
        first = ways["extract"][0]
        intro = f"**{title[0].upper()}{title[1:]}**: {first['clips']} training videos, "
        intro += (
            f"{60 * first['hours']:.1f} minutes, {size(first['bytes']['videos'])}; epochs of {first['clips']} clips."
        )
        rows = []
        for unit, name in (("wall_s", "seconds"), ("cpu_s", "CPU seconds")):
            for mark in ("first batch", "epoch 1", _last(ways["extract"])):
                reached = f"the end of {mark}" if "epoch" in mark else "the first trained batch"
                rows.append([f"{name} to {reached}"])
                rows[-1] += [_reached(rounds, mark, unit) for rounds in ways.values()]
            rows.append([f"{name} to the first trained batch after the stride of the flow has changed"])
            rows[-1] += [_reached(rounds, "first batch", unit, "changed") for rounds in ways.values()]
        kept = first["bytes"]
        disk = f"frames {size(kept['frames'])}, flow {size(kept['flow'])}: {first['files']:,} files, "
        disk += f"{(kept['frames'] + kept['flow']) / kept['videos']:.1f} x the videos"
        rows.append(["on disk", disk, *("0" for _ in list(ways)[1:])])
        rows.append(["extraction pays from epoch", "", *(_pays(ways, way) for way in list(ways)[1:])])
        tables.append(f"{intro}\n\n{markdown(['', *(WAYS[way] for way in ways)], rows)}")
        if check := _check(values, data, ways):
            tables.append(check)
    return "\n\n".join(tables)


def _an_epoch(rounds: list[Mapping[str, Any]], unit: str = "cpu_s") -> float:
    """The least cost of an epoch. Decoders run ahead by some epochs, so what was used by the end of the first one
    includes work for later ones: everything since the first batch is divided by the number of epochs instead."""
    last = _last(rounds)
    used: list[float] = [one["marks"][last][unit] - one["marks"]["first batch"][unit] for one in rounds]
    return min(used) / int(last.split()[1])


def _pays(ways: Mapping[str, list[Mapping[str, Any]]], way: str) -> str:
    """The number of epochs from which extraction costs less processor time; both begin with an epoch."""
    before = min(one["marks"]["extracted"]["cpu_s"] for one in ways["extract"])
    saved = _an_epoch(ways[way]) - _an_epoch(ways["extract"])
    return f"{before / saved:.0f}" if saved > 0 else "never"


def _check(values: Values, data: str, ways: Mapping[str, list[Mapping[str, Any]]]) -> str:
    """What `essp plan --against extract` says beside what was measured."""
    if f"{data}.plan.essp" not in values:
        return ""
    said, first = values[f"{data}.plan.essp"]["extract"], ways["extract"][0]
    rows = [[f"bytes of {kind}", size(said["bytes"][kind]), size(first["bytes"][kind])] for kind in ("frames", "flow")]
    cost = [one["marks"]["extracted"]["cpu_s"] for one in ways["extract"]]
    rows.append(["CPU seconds of the extraction", f"{3600 * said['core_hours']:.1f}", spread(cost, "{:.1f}")])
    for way in ("essp", "pooled"):
        plan = values.get(f"{data}.plan.{way}")
        if plan is not None and way in ways:
            pays = plan["pays_after_epochs"]
            rows.append([f"pays from epoch, {WAYS[way]}", "never" if pays is None else str(pays), _pays(ways, way)])
    return markdown(["`essp plan --against extract`", "says", "measured"], rows)


def _draw(values: Values) -> Figure | None:
    """Processor time over epochs."""
    shown = [data for data in SETS if _rounds(values, data, "extract")]
    if not shown:
        return None
    figure = Figure(figsize=(4.2 * len(shown), 3.2), layout="constrained")
    for place, data in enumerate(shown, 1):
        axes = figure.add_subplot(1, len(shown), place)
        axes.set_title(SETS[data])
        axes.set_xlabel("epochs")
        axes.set_ylabel("CPU seconds, all together")
        for way, name in WAYS.items():
            if rounds := _rounds(values, data, way):
                marks = rounds[0]["marks"]
                epochs = [int(mark.split()[1]) for mark in marks if mark.startswith("epoch")]
                used = [marks[f"epoch {epoch}"]["cpu_s"] for epoch in epochs]
                begin = marks.get("extracted", {"cpu_s": 0.0})["cpu_s"]
                axes.plot([0, *epochs], [begin, *used], marker=".", label=name)
        axes.set_ylim(bottom=0)
        axes.legend()
    return figure


PART = Part("extract_first", "processor time over epochs, extracting first and streaming", _steps, _table, _draw,
            uses=("rounds", "videos"))  # fmt: skip
