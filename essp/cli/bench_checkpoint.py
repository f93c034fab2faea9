"""`essp bench checkpoint`: how much training time checkpoints cost, for several ways to save them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from essp.bench.accesses import Accesses, NotedStore
from essp.bench.checkpoint import CheckpointBenchmark, CheckpointOptions, Trainee, random_files
from essp.bench.checkpoint_plot import picture
from essp.bench.learner import IMAGES, Pretended
from essp.bench.pipeline import Batch
from essp.bench.saving import KEPT, MODES, room_for
from essp.bench.trace_files import check_trace, traced
from essp.cli.bench_app import DEVICES, step_seconds
from essp.cli.bench_options import (
    Clock,
    JsonOption,
    PlotOption,
    TraceEveryOption,
    TraceOption,
    conclude,
    failure_of,
    files_of,
    shown_progress,
    words,
)
from essp.cli.console import open_console
from essp.cli.interrupt import interruptible
from essp.cli.sizes import bytes_between
from essp.folders import folder_for, store_for
from essp.uris import as_uri, shown
from essp_common.errors import ConfigError, StorageFull
from essp_common.objects.port import ObjectStore
from essp_common.objects.throttled import Device, ThrottledStore, parse_throttle
from essp_common.quantities import counted, size
from essp_common.runtime.config import Settings
from essp_common.runtime.temporary import TemporaryFolder
from essp_common.wiring import Stores, open_store

_BYTES = 1024, 64 * 2**30
"""The least and the most of a size."""
_CLASSES, _SIDE = 102, 224
"""The classes of Caltech-101, and the input side of AlexNet."""


def main(
    store: Annotated[
        str | None, typer.Option(help="Where checkpoints go: a folder (path or URI); default: a temporary one.")
    ] = None,
    throttle: Annotated[
        str | None, typer.Option(help="Make the store as slow as 133MB/s,8ms, or as hdd, ssd, optane, lustre, network.")
    ] = None,
    size_text: Annotated[
        str | None,
        typer.Option("--size", help="Size of a checkpoint, as in 600MB (about AlexNet with Adam); default: 64MiB."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Number of training steps in a run.", min=1)] = 100,
    every: Annotated[int, typer.Option(help="Steps from one checkpoint to the next.", min=1)] = 20,
    step_time: Annotated[
        str | None, typer.Option(help="Duration of a step on a simulated accelerator; default: 50ms.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="alexnet: train it for real, on random images, and save its real state, 690 MB.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Images in a batch for --model.", min=1)] = 16,
    device: Annotated[str, typer.Option(help="Where to train --model: cpu, cuda, or auto.")] = "auto",
    modes: Annotated[
        str,
        typer.Option(help="Ways to save: none, raw (a bound), direct, background (as a trainer of ESSP does), burst."),
    ] = ",".join(MODES),
    buffer: Annotated[
        Path | None, typer.Option(help="A fast folder for the burst buffer; default: a temporary one.")
    ] = None,
    buffer_size: Annotated[
        str | None, typer.Option(help="Size of the burst buffer, as in 2GiB; default: three checkpoints.")
    ] = None,
    runs: Annotated[
        int, typer.Option(help="Number of runs of each way; if there are several, the first is dropped.", min=1)
    ] = 3,
    trace: TraceOption = None,
    trace_every: TraceEveryOption = 1.0,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how much longer training takes when it saves checkpoints to a store.

    raw: training waits for the store, which gets the bytes alone: a bound. direct: the same for a whole checkpoint,
    which is read back. background: training waits for a copy in memory. burst: training waits for a
    fast folder, from which a thread copies to the store. Everything written is removed afterwards. Ctrl-C prints what
    has been measured so far.
    """
    chosen = words(modes, "--modes", MODES)
    if every > steps and chosen != ("none",):
        raise ConfigError(
            f"{every}: there are only {counted(steps, 'step')}, so nothing would be saved",
            field="--every",
            code="range",
        )
    slowed = parse_throttle(throttle) if throttle else None
    asked_room = bytes_between(buffer_size, "--buffer-size", *_BYTES) if buffer_size else None
    if trace is not None:
        check_trace(trace, plot)
    trainee, checkpoint_bytes = _trainee(size_text, step_time, model, batch, device)
    room = asked_room or room_for(checkpoint_bytes)
    options = CheckpointOptions(chosen, steps, every, runs, room)
    console = open_console(stderr=True)
    with ExitStack() as stack:
        slow, where = stack.enter_context(_slow(store))
        if slowed is not None:
            slow, where = ThrottledStore(slow, Device(slowed)), f"{where} at {throttle}"
        fast_folder = stack.enter_context(_folder(buffer))
        accesses = Accesses() if trace is not None else None
        if accesses is not None:
            slow = NotedStore(slow, accesses)
        interrupted = stack.enter_context(interruptible("stopping; what was measured so far follows"))
        console.print(
            f"checkpoints of {size(checkpoint_bytes)} to {where}, {trainee.name}; {counted(len(chosen), 'way')} x "
            f"{counted(runs, 'run')} of {counted(steps, 'step')}",
            highlight=False,
            soft_wrap=True,
        )
        show = stack.enter_context(shown_progress(console))
        watched = [str(fast_folder), *([store] if store and "://" not in store else [])]
        traces = stack.enter_context(traced(trace, trace_every, watched, accesses))
        mark = (lambda what: None) if traces is None else traces.mark
        facts = {"store": where, "buffer": str(fast_folder) if buffer else "a temporary folder", "buffer_bytes": room}
        benchmark = CheckpointBenchmark(slow, fast_folder, trainee, options, facts, mark)
        clock = Clock(len(chosen), runs)

        def tell(run: int, number: int, made: int) -> None:
            if not made:
                clock.begin(run, number)
            done = clock.done(run, number, made / steps)
            show(f"run {run + 1} of {runs}: {chosen[number]}, step {made} of {steps}", done, clock.left_s())

        def measure() -> None:
            try:
                benchmark.run(interrupted.is_set, tell)
            except StorageFull as error:
                needed = size((KEPT + 1) * checkpoint_bytes)
                raise StorageFull(
                    f"{error}; there are up to {needed} of checkpoints at a time: a smaller --size, or another --store "
                    "or --buffer, has room"
                ) from error

        failure = failure_of(measure)
    results = benchmark.results()
    conclude(results, as_json, files_of(results, plot, lambda: picture(results), trace, traces, accesses), failure)


def _trainee(
    size_text: str | None, step_time: str | None, model: str | None, batch: int, device: str
) -> tuple[Trainee, int]:
    """The trainee, and the size of its checkpoints in bytes. Raises `ConfigError`."""
    if model is None:
        pretended, nothing = Pretended(step_seconds(step_time or "50ms")), Batch(1)
        size_bytes = bytes_between(size_text or "64MiB", "--size", *_BYTES)
        return Trainee(pretended.name, lambda: pretended.step(nothing), random_files(size_bytes)), size_bytes
    words(model, "--model", (IMAGES,))
    if size_text is not None or step_time is not None:
        given = "--size" if size_text is not None else "--step-time"
        raise ConfigError(
            f"{given}: --model {model} has its own size and time; leave one of them out",
            field="--model",
            code="conflict",
        )
    from essp.bench.training import Training  # loads torch, which the simulated accelerator does not need

    classes = [str(number) for number in range(_CLASSES)]
    training = Training(IMAGES, classes, _SIDE, words(device, "--device", DEVICES)[0])
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (batch, _SIDE, _SIDE, 3), np.uint8)
    learned = Batch(batch, frames, rng.integers(0, _CLASSES, batch))
    training.step(learned)  # Adam has no state before its first step.
    return Trainee(training.name, lambda: training.step(learned), training.checkpoint), sum(
        map(len, training.checkpoint().values())
    )


@contextmanager
def _slow(uri: str | None) -> Iterator[tuple[ObjectStore, str]]:
    """The store of the checkpoints, and its display name."""
    if uri is None:
        with TemporaryFolder("bench") as folder:
            yield open_store(f"file://{folder}"), "a temporary folder"
        return
    yield store_for("--store", as_uri(uri), Stores(Settings().stores)), shown(as_uri(uri))


@contextmanager
def _folder(chosen: Path | None) -> Iterator[Path]:
    """A fast folder. Raises `ConfigError` if it is not writable."""
    if chosen is None:
        with TemporaryFolder("bench") as folder:
            yield Path(folder)
        return
    yield folder_for("--buffer", chosen)
