"""Images per second over threads (the paper's Figures 4 and 5), from an object store, and by several processes.

`reading`: `essp bench io` on 16,384 files of 113 KiB, with simulated devices that have the bandwidths of the paper's
Table I, and from this machine's own disk, whose page cache is emptied of these files before each run. `raw` are plain
reads of the same bytes, in the role of IOR. A run reads `_BATCHES` batches, at random from all files.

`objects`: the same files from an S3 server on this machine, and as records from there with a local disk tier: the first
epoch reads from S3, the second from the disk.

`machines`: several processes at the same time, each with a quarter of the files and its own simulated network link, as
machines of a cluster have. Their images per second are summed.

The first run of each is dropped.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure

import essp
from benchmarks.image_sets import write
from benchmarks.papers.document import markdown, spread
from benchmarks.papers.io.images import IMAGENET, PARTS, STORES, median_bytes, source_of
from benchmarks.papers.machine import apart
from benchmarks.papers.study import FIRST, Options, Part, Steps, Values
from essp.bench.io import BOUND, IoBenchmark, IoOptions
from essp.bench.pipeline import Kind, Plan, measured
from essp.bench.sources import Shape, Source, open_source
from essp.bench.storages import storages
from essp.servers.servers import S3Server
from essp_common.objects.throttled import PRESETS
from essp_common.quantities import size
from essp_common.records.chunk import Encoding, Record
from essp_common.wiring import Stores

THREADS, BATCH = (1, 2, 4, 8), 64
DISK = "this disk, cold"
DEVICES = ("hdd", "ssd", "optane", "lustre", DISK)
KINDS: tuple[Kind, ...] = ("full", "read")
PAPER = {("full", "hdd"): {2: 1.65, 4: 1.95, 8: 2.3}, ("full", "lustre"): {8: 7.8}}
"""Pipeline and device -> threads -> images per second relative to one thread, where the paper says it."""
_BATCHES = 32
"""Of a run: a rate does not need more."""
_OBJECTS, _PROCESSES, _THREADS_EACH = 4096, (1, 2, 4), 8
_COLOURS = ("#2a7f62", "#7fb069", "#e6aa68", "#c8553d")


def reading(folder: Path, device: str, number: int, quick: bool) -> dict[str, Any]:
    """One run of all pipelines and numbers of threads on one device: `PIPELINE.THREADS` -> what was measured."""
    throttles = [(device, PRESETS[device])] if device in PRESETS else []
    options = _options(number, quick, cold=device == DISK)
    return {"median_bytes": median_bytes(folder)} | _measured(source_of(folder), throttles, options)


def _options(number: int, quick: bool, cold: bool = False) -> IoOptions:
    batches = 2 if quick else _BATCHES
    return IoOptions(KINDS, THREADS, batch=BATCH, batches=batches, runs=1, cold=cold, seed=number)


def _measured(source: Source, throttles: Any, options: IoOptions) -> dict[str, Any]:
    with storages(source, STORES, [], throttles) as places:
        benchmark = IoBenchmark(places, options, {})
        benchmark.run(lambda: False, lambda run, number, made: None)
    return {
        f"{row.labels['pipeline']}.{row.labels['threads']}": {
            name: round(row.values[name].median, 2)
            for name in ("samples_per_s", "bytes_per_s", "cpu_cores", "other_cores")
        }
        for row in benchmark.results().rows
    }


@contextmanager
def _served(folder: Path) -> Iterator[S3Server]:
    os.environ |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    with TemporaryDirectory(prefix="essp-s3-") as logs, S3Server(logs, folder=folder) as server:
        yield server


def objects(work: Path, images: Path, number: int, quick: bool) -> dict[str, Any]:
    """One run from S3: files, and two epochs of records with a disk tier."""
    records = work / f"{images.name}-records"
    if not (records / "set" / "versions").exists():
        files = islice(sorted((images / "0").glob("*.jpg")), _OBJECTS)
        write(records / "set", (Record(path.read_bytes(), 0, Encoding.ENCODED) for path in files))
    with _served(work) as server, TemporaryDirectory(dir=work) as tier:
        roots = [server.store(images.name), server.store(records.name)]
        os.environ["ESSP_STORES"] = json.dumps(roots)
        source = open_source(f"s3://{images.name}/0", Stores(roots), Shape(224))
        found = _measured(source, [], _options(number, quick))
        with essp.Records(
            f"s3://{records.name}/set", size=224, batch_size=BATCH, disk="8GiB", disk_folder=tier, rank=0, world_size=1
        ) as loader:
            for name in ("records.first", "records.second"):
                began_s, began_cpu_s, count = time.perf_counter(), time.process_time(), 0
                for batch in loader:
                    count += len(batch.frames)
                seconds = time.perf_counter() - began_s
                found[name] = {
                    "samples_per_s": round(count / seconds, 2),
                    "cpu_cores": round((time.process_time() - began_cpu_s) / seconds, 2),
                }
    return found


def machines(images: Path, kind: Kind, processes: int, quick: bool) -> dict[str, float]:
    """Images per second of so many processes together."""
    context = get_context("spawn")
    start, found = context.Barrier(processes, timeout=300), context.Queue()
    batches = 2 if quick else _OBJECTS // BATCH
    children = [
        context.Process(target=_read_part, args=(images / str(part), kind, batches, start, found))
        for part in range(processes)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    if any(child.exitcode for child in children):
        raise RuntimeError("a process died; its error stands above")
    took = [found.get() for _ in children]
    return {"images_per_s": round(processes * batches * BATCH / max(took), 2), "slowest_s": round(max(took), 2)}


def _read_part(folder: Path, kind: Kind, batches: int, start: Any, found: Any) -> None:
    with storages(source_of(folder), STORES, [], [("network", PRESETS["network"])]) as (place,):
        start.wait()
        took, _ = measured(place.source, Plan(kind, BATCH, batches, _THREADS_EACH), lambda: False, lambda made: None)
    found.put(took.elapsed.seconds)


def _steps(options: Options) -> Steps:
    folder = IMAGENET.make(options.work, options.quick)
    for number in range(options.rounds + 1):
        for device in DEVICES:
            yield f"{device}/{number}", partial(apart, reading, folder, device, number, options.quick)


def _objects_steps(options: Options) -> Steps:
    folder = IMAGENET.make(options.work, options.quick)
    for number in range(options.rounds + 1):
        yield f"s3/{number}", partial(apart, objects, options.work, folder, number, options.quick)


def _machines_steps(options: Options) -> Steps:
    folder = IMAGENET.make(options.work, options.quick)
    for number in range(options.rounds + 1):
        for kind in KINDS:
            for processes in _PROCESSES:
                yield (
                    f"{kind}.{processes}/{number}",
                    partial(machines, folder, kind, processes, options.quick),
                )


def runs(values: Values, name: str) -> list[Any]:
    """What the runs of a step measured, without the first one."""
    found = {key: value for key, value in values.items() if key.rpartition("/")[0] == name}
    return [value for key, value in found.items() if not key.endswith(FIRST)] or list(found.values())


def _rate(values: Values, device: str, pipeline: str, threads: int) -> list[float]:
    return [run[f"{pipeline}.{threads}"]["samples_per_s"] for run in runs(values, device)]


def speedup(values: Values, device: str, pipeline: str, threads: int) -> float:
    """Images per second relative to one thread; of medians."""
    one, more = (statistics.median(_rate(values, device, pipeline, count)) for count in (THREADS[0], threads))
    return more / one


def _devices(values: Values) -> list[str]:
    return [device for device in DEVICES if runs(values, device)]


def _table(values: Values) -> str:
    devices, texts = _devices(values), []
    median = next(iter(values.values()))["median_bytes"]
    texts.append(f"Files of {size(median)} (median). Images per second, and in brackets relative to one thread.")
    rows = []
    for pipeline in (*KINDS, BOUND):
        for threads in THREADS:
            cells = []
            for device in devices:
                rate = statistics.median(_rate(values, device, pipeline, threads))
                said = PAPER.get((pipeline, device), {}).get(threads)
                paper = "" if said is None else f", paper {said:g}"
                cells.append(f"{rate:,.0f} [{speedup(values, device, pipeline, threads):.2f}{paper}]")
            rows.append([pipeline, str(threads), *cells])
    texts.append(markdown(["pipeline", "threads", *devices], rows))
    cores = [
        [
            device,
            *(
                f"{statistics.median([run[f'{pipeline}.8']['cpu_cores'] for run in runs(values, device)]):.2f} + "
                f"{statistics.median([run[f'{pipeline}.8']['other_cores'] for run in runs(values, device)]):.2f}"
                for pipeline in (*KINDS, BOUND)
            ),
        ]
        for device in devices
    ]
    texts.append(markdown(["cores in use with 8 threads: own + of other programs", *KINDS, BOUND], cores))
    return "\n\n".join(texts)


def _draw(values: Values) -> Figure | None:
    devices = _devices(values)
    figure = Figure(figsize=(8.0, 4.6), layout="constrained")
    panels: Any = figure.subplots(len(KINDS), len(devices), sharex=True, squeeze=False)
    for line, pipeline in zip(panels, KINDS, strict=True):
        for axes, device in zip(line, devices, strict=True):
            for place, threads in enumerate(THREADS):
                rates = _rate(values, device, pipeline, threads)
                axes.bar(place, statistics.median(rates), color=_COLOURS[place])
                axes.plot([place] * len(rates), rates, "k.", markersize=3)
            most = axes.get_ylim()[1]
            for place, threads in enumerate(THREADS):
                raw = statistics.median(_rate(values, device, BOUND, threads))
                axes.plot([place - 0.4, place + 0.4], [raw, raw], color="black", linewidth=1)
            axes.set_ylim(0, 1.1 * most)  # raw reads may be far above
            axes.set_xticks(range(len(THREADS)), [str(threads) for threads in THREADS])
            if pipeline == KINDS[0]:
                axes.set_title(device, fontsize=9)
        line[0].set_ylabel(f"{pipeline}, images/s")
    figure.supxlabel("threads; line: raw reads of the same bytes", fontsize=9)
    return figure


def _objects_table(values: Values) -> str:
    found = runs(values, "s3")
    rows = [
        [f"files, {pipeline}", str(threads), spread([run[f"{pipeline}.{threads}"]["samples_per_s"] for run in found])]
        for pipeline in (*KINDS, BOUND)
        for threads in THREADS
    ]
    for name, title in (("records.first", "records, epoch 1, from S3"), ("records.second", "epoch 2, from the disk")):
        rows.append([title, "", spread([run[name]["samples_per_s"] for run in found])])
    return markdown(["from an S3 server on this machine", "threads", "images/s"], rows)


def together(values: Values, kind: str) -> Mapping[int, list[float]]:
    """Processes -> images per second, summed."""
    return {processes: [run["images_per_s"] for run in runs(values, f"{kind}.{processes}")] for processes in _PROCESSES}


def _machines_table(values: Values) -> str:
    rows = []
    for kind in KINDS:
        rates = together(values, kind)
        for processes, found in rates.items():
            if found and rates[1]:
                gain = statistics.median(found) / statistics.median(rates[1])
                rows.append([kind, str(processes), spread(found), f"{gain:.2f}"])
    return markdown(["pipeline", "processes", "images/s together", "of one process"], rows)


def _draw_machines(values: Values) -> Figure | None:
    figure = Figure(figsize=(4.5, 3.0), layout="constrained")
    axes: Any = figure.subplots()
    for kind, colour in zip(KINDS, (_COLOURS[3], _COLOURS[0]), strict=True):
        rates = {processes: found for processes, found in together(values, kind).items() if found}
        axes.plot(list(rates), [statistics.median(found) for found in rates.values()], "o-", color=colour, label=kind)
    axes.set_xlabel("processes, each with its own link")
    axes.set_ylabel("images/s together")
    axes.set_xticks(_PROCESSES[: PARTS - 1])
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


PART = Part("reading", "images per second over threads, on five devices", _steps, _table, _draw, quiet=True)
OBJECTS_PART = Part("objects", "images per second from an object store, and with a disk tier",
                    _objects_steps, _objects_table, quiet=True)  # fmt: skip
MACHINES_PART = Part("machines", "images per second of several processes, each behind its own link",
                     _machines_steps, _machines_table, _draw_machines, quiet=True)  # fmt: skip
