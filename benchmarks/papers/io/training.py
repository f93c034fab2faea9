"""Training that reads images: time with and without prefetch (the paper's Figure 6), over batch sizes (Figure 7), and
bytes read over time (Figure 8).

`prefetch` and `read_over_time`: `essp bench app` with a simulated accelerator, whose step lasts longer than reading a
batch, as in the paper. The files are as many and as large as Caltech 101's; a run takes 48 batches of them, a third of
the paper's 142, since each step is like the one before. `batches`: AlexNet learns for real, with Adam, on this
machine's cores: a larger batch pays for fewer updates.

The first run of each is dropped.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.papers.document import markdown, spread
from benchmarks.papers.io.images import CALTECH, STORES, median_bytes, source_of
from benchmarks.papers.io.reading import runs
from benchmarks.papers.machine import apart
from benchmarks.papers.study import Options, Part, Steps, Values
from essp.bench.accesses import Accesses, NotedStore
from essp.bench.app import AppBenchmark, AppOptions
from essp.bench.learner import IMAGES, Learner, Pretended
from essp.bench.places import once_each
from essp.bench.storages import Storage, storages
from essp.bench.trace import Trace
from essp_common.objects.throttled import PRESETS
from essp_common.quantities import percent, size

THREADS, PREFETCH, BATCH, BATCHES = (1, 2, 4, 8), (0, 1), 64, 48
DEVICES = ("hdd", "ssd", "lustre")
_STEP_S = 0.6
SIZES, _SIZES_IMAGES = (16, 32, 64, 128), 256
_SIZES_DEVICES = ("hdd", "lustre")
_TRACED_STEP_S, _TRACED_BATCHES, _TRACED_S = 0.5, 24, 0.05


def prefetch(folder: Path, device: str, quick: bool) -> dict[str, Any]:
    """One run of all numbers of threads, with and without prefetch: `PREFETCH.THREADS` -> what was measured."""
    options = AppOptions(THREADS, PREFETCH, (BATCH,), batches=2 if quick else BATCHES, runs=1)
    return {"median_bytes": median_bytes(folder)} | _app(folder, device, options, Pretended(_STEP_S), "threads")


def batches(folder: Path, device: str, quick: bool) -> dict[str, Any]:
    """One run of AlexNet with each batch size: `PREFETCH.BATCH` -> what was measured."""
    from essp.bench.training import Training  # loads torch, which the other parts do not need

    found: dict[str, Any] = {}
    for batch in SIZES[:1] if quick else SIZES:
        count = 1 if quick else _SIZES_IMAGES // batch
        options = AppOptions((8,), PREFETCH, (batch,), batches=count, runs=1)
        found |= _app(
            folder, device, options, Training(IMAGES, [str(label) for label in range(4)], 224, "cpu"), "batch"
        )
    return found


def _app(folder: Path, device: str, options: AppOptions, learner: Learner, by: str) -> dict[str, Any]:
    with storages(source_of(folder), STORES, [], [(device, PRESETS[device])]) as places:
        benchmark = AppBenchmark(places, options, learner, {})
        benchmark.run(lambda: False, lambda run, number, made: None)
    return {
        f"{row.labels['prefetch']}.{row.labels[by]}": {
            name: round(row.values[name].median, 4) for name in ("seconds", "data_wait", "step_s", "samples_per_s")
        }
        for row in benchmark.results().rows
    }


def read_over_time(folder: Path, device: str, ahead: int, quick: bool) -> list[list[float]]:
    """Seconds from the beginning and MB/s from the device, of one training."""
    accesses = Accesses()
    options = AppOptions((2,), (ahead,), (BATCH,), batches=2 if quick else _TRACED_BATCHES, runs=1)
    with storages(source_of(folder), STORES, [], [(device, PRESETS[device])]) as (place,):
        noted = once_each(lambda store: NotedStore(store, accesses))
        watched = Storage(place.name, place.source.through(noted), place.files, place.network)
        with Trace(_TRACED_S, (), accesses.totals) as trace:
            AppBenchmark([watched], options, Pretended(_TRACED_STEP_S), {}).run(lambda: False, lambda *made: None)
    return [[round(one.time_s, 3), round(one.store_read_bytes_per_s / 1e6, 3)] for one in trace.samples]


def _prefetch_steps(options: Options) -> Steps:
    folder = CALTECH.make(options.work, options.quick)
    for number in range(options.rounds + 1):
        for device in DEVICES:
            yield f"{device}/{number}", partial(apart, prefetch, folder, device, options.quick)


def _batches_steps(options: Options) -> Steps:
    folder = CALTECH.make(options.work, options.quick)
    for number in range(options.rounds + 1):
        for device in _SIZES_DEVICES:
            yield f"{device}/{number}", partial(apart, batches, folder, device, options.quick)


def _over_time_steps(options: Options) -> Steps:
    folder = CALTECH.make(options.work, options.quick)
    for device in ("hdd", "ssd"):
        for ahead in PREFETCH:
            yield f"{device}.{ahead}", partial(apart, read_over_time, folder, device, ahead, options.quick)


def _seconds(values: Values, device: str, ahead: int, column: int) -> list[float]:
    return [run[f"{ahead}.{column}"]["seconds"] for run in runs(values, device)]


def apart_by(values: Values, ahead: int) -> float:
    """How much longer the longest training is than the shortest, over devices and threads; of medians."""
    times = [
        statistics.median(_seconds(values, device, ahead, threads))
        for device in DEVICES
        if runs(values, device)
        for threads in THREADS
    ]
    return max(times) / min(times) - 1


def _prefetch_table(values: Values) -> str:
    devices = [device for device in DEVICES if runs(values, device)]
    head = [f"{device}, {'prefetch 1' if ahead else 'without'}" for device in devices for ahead in PREFETCH]
    rows = [
        [str(threads)] + [spread(_seconds(values, device, ahead, threads)) for device in devices for ahead in PREFETCH]
        for threads in THREADS
    ]
    median = next(iter(values.values()))["median_bytes"]
    return (
        f"Files of {size(median)} (median), {BATCHES} batches of {BATCH}, {_STEP_S:g} s a step. Seconds of a "
        "training.\n\n"
        + markdown(["threads", *head], rows)
        + f"\n\nWithout prefetch, times differ by up to {percent(apart_by(values, 0))}; with one batch ahead, by up to "
        f"{percent(apart_by(values, 1))}."
    )


def _batches_table(values: Values) -> str:
    devices = [device for device in _SIZES_DEVICES if runs(values, device)]
    head = [f"{device}, {'prefetch 1' if ahead else 'without'}" for device in devices for ahead in PREFETCH]
    rows = [
        [str(batch)] + [spread(_seconds(values, device, ahead, batch)) for device in devices for ahead in PREFETCH]
        for batch in SIZES
    ]
    return f"Seconds for {_SIZES_IMAGES} images, 8 threads.\n\n" + markdown(["batch", *head], rows)


def _draw_bars(values: Values, devices: Sequence[str], columns: Sequence[int], by: str) -> Figure:
    """Seconds of a training by the number of threads or the size of batches, with and without prefetch."""
    devices = [device for device in devices if runs(values, device)]
    figure = Figure(figsize=(7.5, 2.8), layout="constrained")
    panels: Any = figure.subplots(1, len(devices), sharey=True, squeeze=False)
    for axes, device in zip(panels[0], devices, strict=True):
        for ahead, colour in zip(PREFETCH, ("#d9d9d9", "#2a7f62"), strict=True):
            for place, column in enumerate(columns):
                label = ("with prefetch" if ahead else "without") if not place else None
                axes.bar(place, statistics.median(_seconds(values, device, ahead, column)), color=colour, label=label)
        axes.set_xticks(range(len(columns)), [str(column) for column in columns])
        axes.set_title(device)
        axes.set_xlabel(by)
    panels[0][0].set_ylabel("training, s")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return figure


def _over_time_table(values: Values) -> str:
    rows = []
    for name, found in values.items():
        device, _, ahead = name.partition(".")
        rates = [rate for _, rate in found]
        idle = sum(rate == 0 for rate in rates) / len(rates)
        rows.append([device, "1 batch" if ahead == "1" else "none", f"{found[-1][0]:.1f}", percent(idle, 0)])
    return markdown(["device", "prefetch", "training, s", "of the time nothing was read"], rows)


def _draw_over_time(values: Values) -> Figure | None:
    figure = Figure(figsize=(7.5, 5.2), layout="constrained")
    panels: Any = figure.subplots(4, 1, sharex=True)
    shown = [(device, ahead) for device in ("hdd", "ssd") for ahead in PREFETCH]
    for axes, (device, ahead) in zip(panels, shown, strict=True):
        if found := values.get(f"{device}.{ahead}"):
            times = [0.0, *(time_s for time_s, _ in found)]
            axes.stairs([rate for _, rate in found], times, color="#2a7f62", fill=True)
            axes.axvline(times[-1], color="black", linestyle=":")
        axes.set_xlim(left=0)
        axes.set_title(f"{device}, {'one batch ahead' if ahead else 'without prefetch'}", fontsize=9)
        axes.set_ylabel("MB/s")
    panels[-1].set_xlabel("s; dotted: the training ends")
    return figure


PREFETCH_PART = Part("prefetch", "training time over threads, with and without prefetch",
                     _prefetch_steps, _prefetch_table,
                     partial(_draw_bars, devices=DEVICES, columns=THREADS, by="threads"), quiet=True)  # fmt: skip
BATCHES_PART = Part("batches", "training time over batch sizes, with and without prefetch",
                    _batches_steps, _batches_table,
                    partial(_draw_bars, devices=_SIZES_DEVICES, columns=SIZES, by="images in a batch"),
                    quiet=True)  # fmt: skip
READ_PART = Part("read_over_time", "bytes read over time, with and without prefetch",
                 _over_time_steps, _over_time_table, _draw_over_time, quiet=True, uses=())  # fmt: skip
