"""`essp bench io`: how fast samples are read and decoded, compared with raw reads, and the limiting factor."""

from __future__ import annotations

from functools import partial
from typing import Annotated, get_args

import typer
from rich.console import Console

from essp.bench.io import IoBenchmark, IoOptions, batches_of
from essp.bench.pipeline import Kind
from essp.bench.plot import bars
from essp.bench.sources import Shape, Source, open_source
from essp.bench.trace_files import check_trace
from essp.cli.bench_options import (
    BatchesOption,
    BatchOption,
    Clock,
    ColdOption,
    DryRunOption,
    FramesOption,
    JsonOption,
    PlotOption,
    RunsOption,
    SeedOption,
    SideOption,
    SourceOption,
    StoreOption,
    StrideOption,
    ThreadsOption,
    ThrottleOption,
    TraceEveryOption,
    TraceOption,
    conclude,
    failure_of,
    files_of,
    give_plan,
    numbers,
    opened_bench,
    tell_left_out,
    throttles,
    words,
)
from essp.cli.console import open_console
from essp.uris import as_uri
from essp_common.quantities import counted
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores


def main(
    source: SourceOption,
    threads: ThreadsOption = "1,2,4,8",
    pipeline: Annotated[
        str, typer.Option(help="What to measure. full: read, decode and scale; read: only read the bytes; or both.")
    ] = "full",
    prefetch: Annotated[str, typer.Option(help="Numbers of batches to prepare ahead, as in 0,1,4.")] = "0",
    batch: BatchOption = 64,
    batches: BatchesOption = None,
    store: StoreOption = None,
    throttle: ThrottleOption = None,
    runs: RunsOption = 6,
    cold: ColdOption = False,
    side: SideOption = 224,
    frames: FramesOption = 16,
    stride: StrideOption = 1,
    seed: SeedOption = 0,
    trace: TraceOption = None,
    trace_every: TraceEveryOption = 1.0,
    plot: PlotOption = None,
    as_json: JsonOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Measure how fast samples of SOURCE are shuffled, read, decoded, scaled and batched.

    Every number of threads is measured with every pipeline, prefetch, store and throttle, next to raw reads of the same
    bytes. A sentence names the limiting factor. Damaged samples are left out and counted. Ctrl-C prints what has been
    measured so far.
    """
    options = IoOptions(
        kinds=words(pipeline, "--pipeline", get_args(Kind)),
        threads=tuple(sorted(numbers(threads, "--threads", 1))),
        prefetch=numbers(prefetch, "--prefetch"),
        batch=batch,
        batches=batches,
        runs=runs,
        cold=cold,
        seed=seed,
    )
    if trace is not None:
        check_trace(trace, plot)
    slowed = throttles(throttle)
    stores = Stores(Settings().stores)
    console = open_console(stderr=True)
    found = open_source(as_uri(source), stores, Shape(side, frames, stride))
    uris = [as_uri(one) for one in dict.fromkeys(store or ())]
    ways = len(options.threads) * (1 + len(options.kinds) * len(options.prefetch))
    configurations = max(1, len(uris)) * max(1, len(slowed)) * ways
    _tell_plan(console, source, found, options, configurations)
    if dry_run:
        if as_json:
            give_plan(source, found, configurations, runs)
        return
    with opened_bench(found, stores, uris, slowed, console, trace, trace_every) as bench:
        benchmark = IoBenchmark(bench.places, options, {"source": source, "samples": len(found), "unit": found.unit})
        clock = Clock(len(benchmark.configurations), options.runs)

        def tell(run: int, number: int, made: int) -> None:
            if not made:
                clock.begin(run, number)
            labels = benchmark.configurations[number].labels
            what = (
                f"run {run + 1} of {options.runs}: {labels['store']}, {labels['pipeline']}, {labels['threads']} threads"
            )
            bench.show(what, clock.done(run, number), clock.left_s())

        failure = failure_of(lambda: benchmark.run(bench.interrupted.is_set, tell))
    tell_left_out(console, benchmark.damaged, benchmark.resident)
    results = benchmark.results()
    draw = partial(bars, results, "samples_per_s", "threads", "pipeline")
    conclude(results, as_json, files_of(results, plot, draw, trace, bench.trace, bench.accesses), failure)


def _tell_plan(console: Console, name: str, source: Source, options: IoOptions, rows: int) -> None:
    size = batches_of(options, len(source), source.unit)
    epochs = size * options.batch / len(source)
    again = f", so each is read {epochs:.1f} times a run" if epochs > 1 else ""
    console.print(
        f"{name}: {source.recognised}; {counted(len(source), source.unit)}{again}\n"
        f"{counted(rows, 'configuration')} x {counted(options.runs, 'run')} of {size} batches of {options.batch}",
        highlight=False,
        soft_wrap=True,
    )
    if not options.cold:
        console.print("files on this machine stay in its page cache from the first run on; --cold evicts them")
