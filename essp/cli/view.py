"""Shows the progress of a job: live on a terminal, as plain lines in a log, or as JSON lines for programs.

    with open_view(json_lines=False) as view:
        for status in ...:
            view.show(status)
        view.result(status)

The live view and the plain lines go to stderr, results and JSON to stdout. Without a terminal that can redraw, the view
is plain: it prints a line for each result of a phase and each problem, and otherwise one every `PLAIN_INTERVAL_S`.
`NO_COLOR` switches colours off.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from essp.cli.console import open_console
from essp.cli.dashboard import dashboard, duration, results
from essp_common.job.status import JobEvent, JobState, JobStatus, PhaseReport, phase_title
from essp_common.job.usage import Usage
from essp_common.quantities import percent

PLAIN_INTERVAL_S = 10.0
JSON_INTERVAL_S = 1.0
_FRAMES_PER_S = 4

_PRINTED = ("failure", "warning", "condition")
"""Kinds of events that get a line of their own."""


class View(AbstractContextManager["View"], Protocol):
    """Shows a running job and its result."""

    def show(self, status: JobStatus, events: Iterable[JobEvent] = (), usage: Usage | None = None) -> None:
        """Show the present status. `events`: the events since the last call. `usage`: what the workers use."""

    def result(self, status: JobStatus) -> None:
        """Show the result of a job that has ended."""


def open_view(json_lines: bool = False, out: Console | None = None, err: Console | None = None) -> View:
    """The view that suits the output."""
    out = out or open_console()
    err = err or open_console(stderr=True)
    if json_lines:
        return JsonView(lambda line: print(line, file=out.file, flush=True))
    if err.is_terminal and not err.is_dumb_terminal:
        return LiveView(out, err)
    return PlainView(out, err)


class LiveView:
    """Redraws the dashboard in place."""

    def __init__(self, out: Console, err: Console) -> None:
        self._out = out
        starting = Text("starting ...", "dim")  # loading torch takes seconds
        self._live = Live(starting, console=err, refresh_per_second=_FRAMES_PER_S, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, status: JobStatus, events: Iterable[JobEvent] = (), usage: Usage | None = None) -> None:
        for event in events:
            if event.kind in _PRINTED:
                self._live.console.print(event.message, style="yellow", markup=False, highlight=False)
        self._live.update(dashboard(status, usage=usage))

    def result(self, status: JobStatus) -> None:
        self._live.stop()
        self._out.print(results(status, reported=True))


class PlainView:
    """One line at a time, for logs."""

    def __init__(self, out: Console, err: Console) -> None:
        self._out = out
        self._err = err
        self._next_s = 0.0
        self._state: JobState | None = None
        self._reports: dict[str, int] | None = None
        """Trainer -> number of its reports printed so far. None before the first status."""
        self._stopped: set[str] = set()
        """Trainers whose early stop has been printed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does nothing: the view holds no resources."""

    def show(self, status: JobStatus, events: Iterable[JobEvent] = (), usage: Usage | None = None) -> None:
        if self._reports is None:
            self._reports = {trainer.name: len(trainer.reports) for trainer in status.trainers}
            for trainer in status.trainers:
                if trainer.reports:
                    last = trainer.reports[-1]
                    self._line(status, f"{trainer.name}: resumes after {phase_title(last.purpose, last.epoch)}")
        for trainer in status.trainers:
            for report in trainer.reports[self._reports.get(trainer.name, 0) :]:
                self._line(status, f"{trainer.name}: {_report(report, status.unit)}")
            self._reports[trainer.name] = len(trainer.reports)
            if trainer.stopped and trainer.name not in self._stopped:
                self._stopped.add(trainer.name)
                self._line(status, f"{trainer.name}: {trainer.stopped.words}")
        for event in events:
            if event.kind in _PRINTED:
                self._line(status, event.message)
        if status.state != self._state or status.elapsed_s >= self._next_s:
            self._state = status.state
            self._next_s = status.elapsed_s + PLAIN_INTERVAL_S
            self._line(status, _progress(status))

    def result(self, status: JobStatus) -> None:
        self.show(status)
        self._out.print(results(status, reported=True))

    def _line(self, status: JobStatus, text: str) -> None:
        self._err.print(f"{duration(status.elapsed_s):>8} {text}", markup=False, highlight=False, soft_wrap=True)


class JsonView:
    """One JSON object per line: `{"event": ...}`, `{"status": ...}` about every second, `{"result": ...}` at the
    end."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._next_s = 0.0
        self._state: JobState | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does nothing: the view holds no resources."""

    def show(self, status: JobStatus, events: Iterable[JobEvent] = (), usage: Usage | None = None) -> None:
        for event in events:
            self._write(json.dumps({"event": event.model_dump(mode="json")}))
        if status.state != self._state or status.elapsed_s >= self._next_s:
            self._state = status.state
            self._next_s = status.elapsed_s + JSON_INTERVAL_S
            self._write(json.dumps({"status": status.model_dump(mode="json")}))

    def result(self, status: JobStatus) -> None:
        self._write(json.dumps({"result": status.model_dump(mode="json")}))


def _progress(status: JobStatus) -> str:
    progress = status.progress
    share = progress.done / progress.total if progress.total else 0.0
    parts = [f"{status.state} {percent(share)}"]
    if status.state == JobState.RUNNING and progress.current < len(status.phases):
        now = status.phases[progress.current]
        parts.append(phase_title(now.purpose, now.epoch))
        parts.append(f"{progress.clips_per_s:.1f} clips/s")
    if progress.eta_s is not None:
        parts.append(f"about {duration(progress.eta_s)} to go")
    for trainer in status.trainers:
        if trainer.loss is not None and trainer.clips_done and not trainer.final:
            wait = percent(trainer.data_wait_ratio)
            parts.append(f"{trainer.name} loss {trainer.loss:.3f} top-1 {percent(trainer.top1)} data wait {wait}")
    parts += [f"{trainer.name} {trainer.fit.words}" for trainer in status.trainers if trainer.fit]
    if failed := sum(failure.count for failure in status.failures):
        parts.append(f"{failed} failed")
    if status.reason and not status.state.ended:  # the result of an ended job contains the reason
        parts.append(status.reason)
    return ", ".join(parts)


def _report(report: PhaseReport, unit: str) -> str:
    title = phase_title(report.purpose, report.epoch)
    figures = report.metrics
    shown = [f"loss {figures['loss']:.3f}"] if "loss" in figures else []
    labels = {"top1": "top-1", "video_top1": f"by {unit}", "data_wait_ratio": "data wait"}
    shown += [f"{label} {percent(figures[key])}" for key, label in labels.items() if key in figures]
    return f"{title}: {', '.join(shown)}"
