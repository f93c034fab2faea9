"""`essp bench app`: how long training waits for its data, and how busy its accelerator is."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from essp.bench.app import AppBenchmark, AppOptions
from essp.bench.learner import Learner, Pretended, model_for
from essp.bench.plot import bars
from essp.bench.sources import Shape, Source, open_source
from essp.bench.trace_files import check_trace
from essp.cli.bench_options import (
    BatchesOption,
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
from essp_common.errors import ConfigError
from essp_common.quantities import counted, parse_seconds
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores

DEVICES = ("auto", "cpu", "cuda")
_LONGEST_STEP_S = 600.0
StepTimeOption = Annotated[
    str | None,
    typer.Option(
        help="Simulate an accelerator that takes this long for a batch, as in 50ms, instead of training a model."
    ),
]


def main(
    source: SourceOption,
    threads: ThreadsOption = "1,4",
    prefetch: Annotated[str, typer.Option(help="Numbers of batches to prepare ahead, as in 0,1,4.")] = "0,1",
    step_time: StepTimeOption = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, or auto.")] = "auto",
    batch: Annotated[str, typer.Option(help="Samples in a batch; several sizes, as in 32,64, are compared.")] = "64",
    batches: BatchesOption = None,
    store: StoreOption = None,
    throttle: ThrottleOption = None,
    runs: RunsOption = 3,
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
    """Train on SOURCE, and measure how long training waits for data.

    Images and records train AlexNet, clips train a small network, both with Adam. --step-time simulates an accelerator
    instead, which needs no GPU and no core. AU is the accelerator utilisation as MLPerf Storage defines it; 90 % or
    more passes. Damaged samples are left out and counted. Ctrl-C prints what has been measured so far.
    """
    options = AppOptions(
        threads=tuple(sorted(numbers(threads, "--threads", 1))),
        prefetch=numbers(prefetch, "--prefetch"),
        batch=numbers(batch, "--batch", 1),
        batches=batches,
        runs=runs,
        cold=cold,
        seed=seed,
    )
    (where,) = words(device, "--device", DEVICES)[:1]
    step_s = None if step_time is None else step_seconds(step_time)
    if trace is not None:
        check_trace(trace, plot)
    slowed = throttles(throttle)
    stores = Stores(Settings().stores)
    console = open_console(stderr=True)
    found = open_source(as_uri(source), stores, Shape(side, frames, stride))
    learner = _training(found, side, where, seed) if step_s is None else Pretended(step_s)
    uris = [as_uri(one) for one in dict.fromkeys(store or ())]
    ways = len(options.threads) * len(options.batch) * len(options.prefetch)
    configurations = max(1, len(uris)) * max(1, len(slowed)) * ways
    _tell_plan(console, source, found, learner, options, configurations)
    if dry_run:
        if as_json:
            give_plan(source, found, configurations, runs)
        return
    with opened_bench(found, stores, uris, slowed, console, trace, trace_every) as bench:
        facts = {"source": source, "samples": len(found), "unit": found.unit}
        benchmark = AppBenchmark(bench.places, options, learner, facts)
        clock = Clock(len(benchmark.configurations), options.runs)

        def tell(run: int, number: int, made: int) -> None:
            labels = benchmark.configurations[number].labels
            if not made:
                clock.begin(run, number)
                if bench.trace is not None:
                    bench.trace.mark(f"{labels['store']} p{labels['prefetch']} t{labels['threads']}")
            what = (
                f"run {run + 1} of {options.runs}: {labels['store']}, batch {labels['batch']}, prefetch "
                f"{labels['prefetch']}, {labels['threads']} threads"
            )
            bench.show(what, clock.done(run, number), clock.left_s())

        failure = failure_of(lambda: benchmark.run(bench.interrupted.is_set, tell))
    tell_left_out(console, benchmark.damaged, benchmark.resident)
    results = benchmark.results()
    # With several sizes of batches, runs differ in samples, so seconds do not compare them.
    value, groups = ("samples_per_s", "batch") if len(options.batch) > 1 else ("seconds", "threads")
    draw = partial(bars, results, value, groups, "store")
    conclude(results, as_json, files_of(results, plot, draw, trace, bench.trace, bench.accesses), failure)


def _training(source: Source, side: int, device: str, seed: int) -> Learner:
    from essp.bench.training import Training  # loads torch, which the simulated accelerator does not need

    return Training(model_for(source.unit), source.classes, side, device, seed)


def step_seconds(text: str) -> float:
    """Parse the duration of a step, in seconds. Raises `ConfigError`."""
    try:
        found = parse_seconds(text)
    except ValueError as error:
        raise ConfigError(str(error), field="--step-time", code="type") from error
    if not 0 < found <= _LONGEST_STEP_S:
        raise ConfigError(
            f"{text}: a step takes more than nothing, and {_LONGEST_STEP_S:g}s at most",
            field="--step-time",
            code="range",
        )
    return found


def _tell_plan(console: Console, name: str, source: Source, learner: Learner, options: AppOptions, rows: int) -> None:
    console.print(
        f"{name}: {source.recognised}; {counted(len(source), source.unit)}; {learner.name}\n"
        f"{counted(rows, 'configuration')} x {counted(options.runs, 'run')}",
        highlight=False,
        soft_wrap=True,
    )
    if not options.cold:
        console.print("files on this machine stay in its page cache from the first run on; --cold evicts them")
