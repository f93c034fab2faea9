"""What the `essp bench` commands share: arguments, the storages that they read, progress, and output of results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from essp.bench.accesses import Accesses, NotedStore
from essp.bench.results import Results
from essp.bench.sources import Damaged, Source
from essp.bench.storages import Storage, storages
from essp.bench.trace import Trace
from essp.bench.trace_files import check_path, traced, write_trace
from essp.cli.console import open_console, say
from essp.cli.interrupt import interruptible
from essp.folders import written
from essp_common.errors import ConfigError, EsspError
from essp_common.objects.throttled import Throttle, parse_throttle
from essp_common.quantities import counted, duration, percent
from essp_common.runtime.process import EXIT_INTERRUPTED
from essp_common.wiring import Stores

_LINE_EVERY_S = 5.0
_MOST_LINES = 5
_MOST = 4096
T = TypeVar("T")
WriteFile = Callable[[], None]
"""Writes a file. Raises `ConfigError` if that fails."""

SourceOption = Annotated[
    str, typer.Option(help="Images (folder or .csv with a column path), a catalog (.parquet), or records.")
]
ThreadsOption = Annotated[
    str, typer.Option(help="Numbers of threads that read and decode, as in 1,2,4,8; each is measured.")
]
BatchOption = Annotated[int, typer.Option(help="Samples in a batch.", min=1)]
BatchesOption = Annotated[
    int | None,
    typer.Option(help="Number of batches in a run (default: one epoch, at most 256).", min=1, show_default=False),
]
StoreOption = Annotated[
    list[str] | None,
    typer.Option(help="Copy the source into this folder (a path or URI) first, read it there; may be repeated."),
]
ThrottleOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Make the store as slow as 133MB/s,8ms[,parallel=2], or as hdd, ssd, optane, lustre, network; repeatable."
    ),
]
RunsOption = Annotated[
    int, typer.Option(help="Number of runs of each configuration; if there are several, the first is dropped.", min=1)
]
ColdOption = Annotated[bool, typer.Option("--cold", help="Evict the files from the page cache before each run.")]
SideOption = Annotated[int, typer.Option("--size", help="Scale images and frames to a square of this side.", min=1)]
FramesOption = Annotated[int, typer.Option(help="Number of frames in a clip.", min=1)]
StrideOption = Annotated[int, typer.Option(help="Distance between the frames of a clip; 1: consecutive frames.", min=1)]
SeedOption = Annotated[int, typer.Option(help="Seed of the order of samples and of the first frames of clips.", min=0)]
TraceOption = Annotated[
    Path | None, typer.Option(help="Write the activity of disks, cores and stores to this CSV file, once a second.")
]
TraceEveryOption = Annotated[float, typer.Option(help="Seconds between two lines of --trace.", min=0.01, max=3600)]


def _plot_path(path: Path | None) -> Path | None:
    """Check the path before anything is measured. Raises `ConfigError`."""
    if path is not None:
        check_path(path, "--plot", ".png")
    return path


PlotOption = Annotated[Path | None, typer.Option(help="Draw the figures into this PNG file.", callback=_plot_path)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be measured.")]


def numbers(text: str, option: str, least: int = 0) -> tuple[int, ...]:
    """Parse `1,2,4` into distinct numbers. Raises `ConfigError`, which names the option."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and least <= int(part) <= _MOST for part in parts):
        raise ConfigError(
            f"must be whole numbers from {least} to {_MOST}, as in {option} 1,2,4; got {text!r}",
            field=option,
            code="type",
        )
    return tuple(dict.fromkeys(map(int, parts)))


def words(text: str, option: str, known: Sequence[T]) -> tuple[T, ...]:
    """Parse `read,full` into distinct known words. Raises `ConfigError`, which names the option."""
    by_text = {str(word): word for word in known}
    parts = [part.strip() for part in text.split(",")]
    if unknown := [part for part in parts if part not in by_text]:
        raise ConfigError(f"there is no {unknown[0]!r}; choose from {', '.join(by_text)}", field=option, code="unknown")
    return tuple(by_text[part] for part in dict.fromkeys(parts))


def throttles(texts: Sequence[str] | None) -> list[tuple[str, Throttle]]:
    """Distinct throttles, each as written and as parsed. Raises `ConfigError`."""
    return [(text, parse_throttle(text)) for text in dict.fromkeys(texts or ())]


class Clock:
    """Estimates the remaining time of a benchmark. Each kind of step is assumed to take as long as it did last time."""

    def __init__(self, kinds: int, rounds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._took_s: list[float | None] = [None] * kinds
        self._rounds = rounds
        self._clock = clock
        self._begun_s = clock()
        self._at = (0, 0)

    def begin(self, turn: int, kind: int) -> None:
        """Note that a step begins and that the previous one has ended."""
        now_s = self._clock()
        if (turn, kind) != self._at:
            self._took_s[self._at[1]] = now_s - self._begun_s
        self._at, self._begun_s = (turn, kind), now_s

    def done(self, turn: int, kind: int, part: float = 0.0) -> float:
        """The fraction of all steps that is done: the steps before this one plus `part` of this one."""
        kinds = len(self._took_s)
        return (turn * kinds + kind + part) / (self._rounds * kinds)

    def left_s(self) -> float | None:
        """Seconds to the end; None if no step has been timed yet."""
        known = [took_s for took_s in self._took_s if took_s is not None]
        if not known:
            return None
        turn, at = self._at
        expected = [sum(known) / len(known) if took_s is None else took_s for took_s in self._took_s]
        present_s = max(0.0, expected[at] - (self._clock() - self._begun_s))
        return present_s + sum(expected[at + 1 :]) + (self._rounds - turn - 1) * sum(expected)


Show = Callable[[str, float, "float | None"], None]
"""Shows the current activity, the fraction done, and the seconds left."""


@contextmanager
def shown_progress(console: Console) -> Iterator[Show]:
    """A progress bar on a terminal; elsewhere, a line every few seconds."""
    if not console.is_terminal:
        yield _line_printer(console)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[left]}"))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("beginning", total=1.0, left="")

        def show(what: str, done: float, left_s: float | None) -> None:
            bar.update(task, description=what, completed=done, left=_left(left_s))

        yield show


def _copying(show: Show, interrupted: Event) -> Callable[[int, int], None]:
    """Shows how many objects have been copied. Raises `KeyboardInterrupt` once the user has interrupted."""

    def copied(done: int, total: int) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        show(f"copying {done} of {counted(total, 'object')}", 0.0, None)

    return copied


def _line_printer(console: Console) -> Show:
    due_s = time.monotonic() + _LINE_EVERY_S

    def show(what: str, done: float, left_s: float | None) -> None:
        nonlocal due_s
        if time.monotonic() >= due_s:
            due_s = time.monotonic() + _LINE_EVERY_S
            parts = [what, percent(done, 0), _left(left_s)]
            console.print(", ".join(filter(None, parts)), soft_wrap=True, highlight=False)

    return show


def _left(left_s: float | None) -> str:
    return "" if left_s is None else f"{duration(left_s)} left"


def give_plan(name: str, source: Source, configurations: int, runs: int) -> None:
    """Print to stdout what would be measured, as JSON."""
    plan = {
        "source": name,
        "recognised": source.recognised,
        "samples": len(source),
        "unit": source.unit,
        "configurations": configurations,
        "runs": runs,
    }
    typer.echo(json.dumps(plan, indent=2))


def failure_of(measure: Callable[[], None]) -> EsspError | None:
    """Measure, and return the error that ended it early, if any, so that earlier measurements are not lost."""
    try:
        measure()
    except EsspError as error:
        return error
    return None


def conclude(results: Results, as_json: bool, files: Sequence[WriteFile], failure: EsspError | None) -> None:
    """Print the results to stdout, then write each file even if another one fails.

    `failure`: the error that ended the measurement early. Raises that error, else the error of the first file that
    could not be written, else `typer.Exit` if the measurement was interrupted.
    """
    if results.rows:
        _print(results, as_json)
    failures = [error for error in (failure, *map(failure_of, files)) if error is not None]
    errors = open_console(stderr=True)
    for error in failures[1:]:
        say(f"essp: {error}", errors)
    if failures:
        raise failures[0]
    if not results.rows:
        errors.print("interrupted before anything was measured")
        raise typer.Exit(EXIT_INTERRUPTED)
    if results.partial:
        say("interrupted: these figures are of fewer runs than were asked for", errors)
        raise typer.Exit(EXIT_INTERRUPTED)


def files_of(
    results: Results,
    plot: Path | None,
    draw: Callable[[], bytes],
    trace: Path | None,
    traces: Trace | None,
    accesses: Accesses | None,
) -> list[WriteFile]:
    """Writers for the requested files. Without results there is nothing to plot."""
    files: list[WriteFile] = []
    if plot is not None and results.rows:
        files.append(lambda: _draw(plot, draw))
    if trace is not None and traces is not None:
        files.append(lambda: write_trace(traces, accesses, trace))
    return files


def _draw(plot: Path, draw: Callable[[], bytes]) -> None:
    with written(plot):
        plot.write_bytes(draw())


def _print(results: Results, as_json: bool) -> None:
    """Print the table and its conclusions, or JSON."""
    if as_json:
        typer.echo(results.json())
    else:
        console = open_console()
        console.print(results.table())
        for sentence in results.sentences:
            say(sentence, console)


def tell_left_out(console: Console, damaged: Mapping[str, Damaged], resident: int) -> None:
    """Name the first samples that were left out, and the number of files `--cold` could not evict."""
    lines = [f"left out {one.name}: {one.why}" for one in damaged.values()]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"... {len(damaged)} in all"]
    if resident:
        lines.append(f"{counted(resident, 'file')} stayed in memory although --cold gives up all pages (tmpfs?)")
    for line in lines:
        say(line, console)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a benchmark reads its samples, and what it tells the user meanwhile."""

    places: Sequence[Storage]
    interrupted: Event
    """Set once the user has pressed Ctrl-C."""
    show: Show
    trace: Trace | None
    """The activity meanwhile, for `files_of`; None: it is not traced."""
    accesses: Accesses | None
    """Those of a trace."""


@contextmanager
def opened_bench(
    source: Source,
    stores: Stores,
    uris: Sequence[str],
    throttles: Sequence[tuple[str, Throttle]],
    console: Console,
    trace: Path | None,
    trace_every_s: float,
) -> Iterator[Bench]:
    """The source in each of these stores, at each of these throttles (see `storages`). `trace`: the file of `--trace`.

    Only the main thread may enter it. Raises what the stores raise, and `KeyboardInterrupt` if the user interrupts
    while objects are copied.
    """
    accesses = None if trace is None else Accesses()
    with (
        interruptible("stopping; what was measured so far follows") as interrupted,
        shown_progress(console) as show,
        storages(source, stores, uris, throttles, _copying(show, interrupted)) as places,
        traced(trace, trace_every_s, _folders(places), accesses) as traces,
    ):
        watched = places if accesses is None else [_noted(place, accesses) for place in places]
        yield Bench(watched, interrupted, show, traces, accesses)


def _folders(places: Sequence[Storage]) -> list[str]:
    """The folders whose disks a trace watches."""
    return sorted({str(Path(path).parent) for place in places for path in place.files})


def _noted(place: Storage, accesses: Accesses) -> Storage:
    """The storage with every access recorded."""
    return replace(place, source=place.source.through(lambda store: NotedStore(store, accesses)))
