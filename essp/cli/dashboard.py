"""What the terminal shows of a running job and of a finished one: pure functions from `JobStatus` to renderables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from essp.uris import shown
from essp_common.job.changes import Place, value_text
from essp_common.job.status import (
    ChangeStatus,
    FailureStatus,
    JobState,
    JobStatus,
    PoolStatus,
    TrainerStatus,
    phase_title,
)
from essp_common.job.usage import ProcessUsage, Usage
from essp_common.quantities import counted, percent, size

_STATE_STYLE = {
    JobState.PENDING: "yellow",
    JobState.QUEUED: "yellow",
    JobState.RUNNING: "cyan",
    JobState.PAUSED: "yellow",
    JobState.COMPLETED: "green",
    JobState.FAILED: "red",
    JobState.STOPPED: "yellow",
}
_BAR_WIDTH = 28
_CHANGES = 2
"""How many of the newest changes are shown."""
_STARVED = 0.2
"""A trainer that waits for data for more than this share of its time is drawn as starved."""
_PREDICTED = {"video": "VIDEO", "record": "IMAGE"}
_SHORT = {"validation": "val.", "test": "test"}
_FIGURES = (("top1", "top-1"), ("top5", "top-5"), ("mAP", "mAP"))


def dashboard(status: JobStatus, expand: bool = True, usage: Usage | None = None) -> RenderableType:
    """The live view: progress, workers, what they use, and results. Fits 80 columns and 24 lines.

    `expand`: fill the width of the console; otherwise use only the width needed.
    """
    parts: list[RenderableType] = [_gauges(status)]
    if status.pools:
        parts += ["", _pools(status.pools)]
    if status.trainers:
        parts += ["", _trainers(status.trainers)]
        parts += [
            Text(f"{t.name} waits for {t.waits_for}: it is as far ahead as limits.lead allows", "dim")
            for t in status.trainers
            if t.waits_for
        ]
        parts += [Text(f"{t.name} {t.fit.words}", "dim") for t in status.trainers if t.fit]
        parts += [Text(f"{t.name} {t.stopped.words}", "dim") for t in status.trainers if t.stopped]
    parts += [Text(_change(change), "dim") for change in status.changes[-_CHANGES:]]
    if usage is not None and not status.state.ended and (used := _used(usage.processes)):
        parts += ["", Text(f"used: {used}", "dim")]
    if status.bottleneck:
        parts += ["", Text(status.bottleneck.words, "bold")]
    if status.failures:
        parts += ["", _failures(status.failures)]
    if status.queue:
        parts += ["", Text(f"number {status.queue.position} in the queue: {status.queue.reason}", "yellow")]
    elif status.reason:
        parts += ["", Text(status.reason, _STATE_STYLE[status.state])]
    if status.result is not None:
        parts += ["", *_outcome(status)]
    title = Text.assemble((status.name, "bold"), " ", (str(status.state), _STATE_STYLE[status.state]))
    pace = f"elapsed {duration(status.elapsed_s)}"
    if status.state == JobState.RUNNING:
        pace += f" · {status.progress.clips_per_s:.1f} clips/s"
    return Panel(
        Group(*parts),
        title=title,
        title_align="left",
        subtitle=pace,
        subtitle_align="right",
        border_style="dim",
        expand=expand,
    )


def _used(processes: Iterable[ProcessUsage]) -> str:
    """Cores, memory and GPUs of all workers, in words; empty if no worker has reported them yet."""
    known = [process for process in processes if process.cpu_cores is not None]
    if not known:
        return ""
    cores = sum(process.cpu_cores or 0.0 for process in known)
    words = [f"{cores:.1f} cores", f"{size(sum(process.memory_bytes for process in known))} of memory"]
    gpus = list({gpu.id: gpu for process in known for gpu in process.gpus}.values())
    if gpus:
        words.append(counted(len(gpus), "GPU"))
        busy = [gpu.busy for gpu in gpus if gpu.busy is not None]
        held = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
        watts = [gpu.watts for gpu in gpus if gpu.watts is not None]
        if busy:
            words[-1] += f" {percent(sum(busy) / len(busy), 0)} busy"
        words += [f"{size(sum(held))} on it" if len(gpus) == 1 else f"{size(sum(held))} on them"] if held else []
        words += [f"{sum(watts):.0f} W"] if watts else []
    return " · ".join(words)


def _change(change: ChangeStatus) -> str:
    fields = ", ".join(f"{field}={value_text(value)}" for field, value in change.fields.items())
    places = [f"{trainer} from {Place(place.epoch, place.clip)} on" for trainer, place in change.places.items()]
    return "; ".join([f"change {change.number}: {fields}", *places])


def results(status: JobStatus, reported: bool = False) -> RenderableType:
    """The results: metrics of each stream and of their fusion, where they are stored, and failures. `reported`: the
    report is made without being asked for."""
    parts = _outcome(status, reported)
    parts += [Text(f"{t.name} {t.stopped.words}") for t in status.trainers if t.stopped]
    if status.failures:
        parts.append(_failures(status.failures))
    if status.counts.skipped:
        left_out = counted(status.counts.skipped, "clip")
        was = "was" if status.counts.skipped == 1 else "were"
        parts.append(Text(f"{left_out} {was} left out: no other video was available", "yellow"))
    if status.reason:
        parts.append(Text(f"{status.state}: {status.reason}", _STATE_STYLE[status.state]))
    return Group(*parts)


def _outcome(status: JobStatus, reported: bool = False) -> list[RenderableType]:
    """The metrics of a completed job, and where they are stored."""
    parts: list[RenderableType] = []
    if status.result is None:
        return parts
    if any(name.startswith(("validation.", "test.")) for name in status.result.metrics):
        parts.append(_figures(status))
        parts += [Text(line, "yellow") for line in _worse(status, status.result.metrics)]
    model = shown(status.output)
    if status.kind == "train":
        parts.append(Text.assemble(("model   ", "dim"), f"{model}/model"))
        classify = f"essp predict {_PREDICTED[status.unit]} --model {model}"
        if find_spec("torch") is None:  # as in the image for commands
            classify = f"a job with predictor: {{model: {model}/model}} classifies new videos"
        parts.append(Text.assemble(("next    ", "dim"), classify))
        if not reported:
            parts.append(Text.assemble(("report  ", "dim"), f"essp report {model}"))
    else:
        parts.append(Text.assemble(("result  ", "dim"), status.result.uri))
    return parts


def duration(seconds: float) -> str:
    """`1:02:03`, `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _gauges(status: JobStatus) -> RenderableType:
    """One bar with its figures per line; on a narrow terminal, the bars shrink first."""
    grid = Table.grid(Column(max_width=_BAR_WIDTH), Column(no_wrap=True, overflow="ellipsis"), padding=(0, 2))
    progress, cache, credits = status.progress, status.cache, status.credits
    share = progress.done / progress.total if progress.total else 0.0
    clips = f"{progress.done:,} of {progress.total:,} clips" if progress.total else "no clips yet"
    facts = [percent(share), clips]
    if progress.eta_s is not None:
        facts.append(f"{duration(progress.eta_s)} to go")
    grid.add_row(_bar(progress.done, progress.total), Text(" · ".join(facts)))
    if progress.current < len(status.phases):
        now = status.phases[progress.current]
        done = min(now.done.values(), default=0)
        place = f"{phase_title(now.purpose, now.epoch)} ({progress.current + 1} of {len(status.phases)})"
        grid.add_row(_bar(done, now.clips), Text(f"{place} · {done:,} of {now.clips:,} clips"))
    if cache is not None:
        text = f"frame cache {size(cache.used_bytes)} of {size(cache.limit_bytes)}"
        full = f" · {cache.full_count} times full" if cache.full_count else ""
        grid.add_row(_bar(cache.used_bytes, cache.limit_bytes, "magenta"), Text(f"{text} · {cache.keys} keys{full}"))
    waiting = " · waits for trainers" if credits.waiting and status.trainers else ""
    text = f"on the way {size(credits.outstanding_bytes)} of {size(credits.budget_bytes)}{waiting}"
    grid.add_row(_bar(credits.outstanding_bytes, credits.budget_bytes, "magenta"), Text(text))
    return grid


def _bar(done: int, total: int, style: str = "bar.complete") -> ProgressBar:
    finished = "bar.finished" if style == "bar.complete" else style
    return ProgressBar(total=max(total, 1), completed=done, complete_style=style, finished_style=finished)


def _pools(pools: Iterable[PoolStatus]) -> Table:
    table = _table("pool", "workers", "clips", "clips/s", "ms/clip", "busy", "queue")
    for pool in pools:
        per_clip = "–" if pool.seconds_per_clip is None else f"{1000 * pool.seconds_per_clip:.1f}"
        table.add_row(
            Text(pool.name),
            str(pool.workers),
            f"{pool.done:,}",
            f"{pool.clips_per_s:.1f}",
            per_clip,
            f"{pool.clips_per_s * (pool.seconds_per_clip or 0.0):.1f}",
            str(pool.queue),
        )
    return table


def _trainers(trainers: Iterable[TrainerStatus]) -> Table:
    table = _table("trainer", "at", "clips", "clips/s", "loss", "top-1", "data wait", "queue", "best val.")
    for trainer in trainers:
        wait = trainer.data_wait_ratio
        table.add_row(
            Text(trainer.label),
            _place(trainer),
            f"{trainer.clips_done:,}",
            _number(trainer.clips_per_s, 1),
            _number(trainer.loss, 3),
            percent(trainer.top1),
            Text(percent(wait), "yellow" if wait is not None and wait > _STARVED else ""),
            "–" if trainer.queue is None else str(trainer.queue),
            percent(_best_validation(trainer)),
        )
    return table


def _place(trainer: TrainerStatus) -> str:
    """`val. 3`: short, because the table must fit into 80 columns."""
    if trainer.final:
        return "done"
    if trainer.purpose is None:  # it has not reported since the job was started
        return "starts"
    return f"{_SHORT.get(trainer.purpose, trainer.purpose)} {trainer.epoch + 1}"


def _best_validation(trainer: TrainerStatus) -> float | None:
    """The best top-1 by video of the validation passes so far."""
    found = [r.metrics.get("video_top1", r.metrics.get("top1")) for r in trainer.reports if r.purpose == "validation"]
    return max((value for value in found if value is not None), default=None)


def _failures(failures: Iterable[FailureStatus]) -> Table:
    table = Table("failed at", "why", Column("clips", justify="right"), "for example", box=None, padding=(0, 2, 0, 0))
    for failure in failures:
        example = failure.examples[0] if failure.examples else None
        text = "" if example is None else f"{example.video}: {example.reason}"
        table.add_row(failure.stage, failure.kind, str(failure.count), Text(text, overflow="ellipsis", no_wrap=True))
    table.columns[0].style = "yellow"
    return table


def _figures(status: JobStatus) -> Table:
    metrics = {} if status.result is None else status.result.metrics
    splits = [split for split in ("validation", "test") if f"{split}.fused.top1" in metrics]
    shown = [
        (figure, label) for figure, label in _FIGURES if any(f"{split}.fused.{figure}" in metrics for split in splits)
    ]
    table = _table(
        f"by {status.unit}", "weight", *(f"{_SHORT[split]}\n{label}" for split in splits for _, label in shown)
    )
    labels = {trainer.name: trainer.label for trainer in status.trainers}
    for name in [*labels, "fused"]:
        weight = metrics.get(f"weight.{name}")
        cells = [percent(metrics.get(f"{split}.{name}.{figure}")) for split in splits for figure, _ in shown]
        style = "bold" if name == "fused" else ""
        table.add_row(Text(labels.get(name, name)), "" if weight is None else f"{weight:.3f}", *cells, style=style)
    return table


def _worse(status: JobStatus, metrics: Mapping[str, float]) -> Iterator[str]:
    """A line if the fused model is worse than one of its members, on the last split that was measured."""
    split = next(split for split in ("test", "validation") if any(name.startswith(f"{split}.") for name in metrics))
    figure, label = next(((f, label) for f, label in _FIGURES if f"{split}.fused.{f}" in metrics), ("", ""))
    alone = {trainer.name: metrics.get(f"{split}.{trainer.name}.{figure}", 0.0) for trainer in status.trainers}
    best = max(alone, key=lambda name: alone[name], default=None)
    if best is not None and figure and alone[best] > metrics[f"{split}.fused.{figure}"]:
        yield (
            f"{best} alone has a better {label} than the fused model ({split}); the fusion is chosen by the log loss "
            "of validation videos, and the report shows how sure that choice is"
        )


def _table(first: str, *others: str) -> Table:
    columns = [Column(name, justify="right") for name in others]
    return Table(Column(first), *columns, box=None, padding=(0, 2, 0, 0), header_style="dim")


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
