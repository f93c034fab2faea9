"""What the terminal shows of a job that runs, and of one that ended: pure functions from `JobStatus` to renderables."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from services.master.status import FailureStatus, JobState, JobStatus, PassStatus, PoolStatus, TrainerStatus

_STATE_STYLE = {
    JobState.PENDING: "yellow",
    JobState.RUNNING: "cyan",
    JobState.PAUSED: "yellow",
    JobState.COMPLETED: "green",
    JobState.FAILED: "red",
    JobState.STOPPED: "yellow",
}
_BAR_WIDTH = 28
_STARVED = 0.2
"""A trainer that waits for more of its time than this is drawn as starved."""
_SHORT = {"validation": "val.", "test": "test"}
_FIGURES = (("top1", "top-1"), ("top5", "top-5"), ("mAP", "mAP"))


def dashboard(status: JobStatus) -> RenderableType:
    """The live view: how far the job is, who does what, and what comes out."""
    parts: list[RenderableType] = [_headline(status), _gauges(status)]
    if status.pools:
        parts += ["", _pools(status.pools)]
    if status.trainers:
        parts += ["", _trainers(status.trainers)]
    if status.failures:
        parts += ["", _failures(status.failures)]
    title = f"[bold]{escape(status.name)}[/] [{_STATE_STYLE[status.state]}]{status.state}[/]"
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim")


def results(status: JobStatus) -> RenderableType:
    """What came of it: figures of each stream and of their fusion, where they lie, what could not be used."""
    parts: list[RenderableType] = []
    if status.result is not None:
        if any(name.startswith(("validation.", "test.")) for name in status.result.metrics):
            parts.append(_figures(status))
        parts.append(Text.assemble(("model   ", "dim"), status.result.uri))
    if status.failures:
        parts.append(_failures(status.failures))
    if status.counts.skipped:
        parts.append(Text(f"{status.counts.skipped} clips were left out: nothing could take their place", "yellow"))
    if status.reason:
        parts.append(Text(f"{status.state}: {status.reason}", _STATE_STYLE[status.state]))
    return Group(*parts)


def pass_title(passed: PassStatus) -> str:
    """`train, epoch 3`, counted from one; passes that happen once have no number."""
    return (
        f"{passed.purpose}, epoch {passed.epoch + 1}" if passed.purpose in ("train", "validation") else passed.purpose
    )


def duration(seconds: float) -> str:
    """`1:02:03`, `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def size(count: int) -> str:
    """Bytes in the largest binary unit that leaves a number of at least one."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if value >= 100 or units[0] == "B" else f"{value:.1f} {units[0]}"


def percent(share: float | None) -> str:
    """0.123 as `12.3 %`; a dash for what is not known."""
    return "–" if share is None else f"{100 * share:.1f} %"


def _headline(status: JobStatus) -> RenderableType:
    progress = status.progress
    line = Table.grid(Column(width=_BAR_WIDTH), Column(), padding=(0, 2))
    bar = ProgressBar(total=max(progress.total, 1), completed=progress.done, width=_BAR_WIDTH)
    share = progress.done / progress.total if progress.total else 0.0
    facts = [percent(share), f"{progress.done:,} of {progress.total:,} clips", f"{progress.clips_per_s:.1f} clips/s"]
    facts.append(f"{duration(status.elapsed_s)} gone")
    if progress.eta_s is not None:
        facts.append(f"about {duration(progress.eta_s)} to go")
    line.add_row(bar, Text(" · ".join(facts)))
    if progress.current < len(status.passes):
        now = status.passes[progress.current]
        done = min(now.done.values(), default=0)
        text = (
            f"{pass_title(now)} · pass {progress.current + 1} of {len(status.passes)} · {done:,} of {now.clips:,} clips"
        )
        line.add_row(ProgressBar(total=max(now.clips, 1), completed=done, width=_BAR_WIDTH), Text(text))
    return line


def _gauges(status: JobStatus) -> RenderableType:
    line = Table.grid(Column(width=_BAR_WIDTH), Column(), padding=(0, 2))
    cache, credits = status.cache, status.credits
    if cache is not None:
        full = f" · {cache.full_count} times full" if cache.full_count else ""
        text = f"frame cache: {size(cache.used_bytes)} of {size(cache.limit_bytes)} in {cache.keys} keys{full}"
        line.add_row(_fill(cache.used_bytes, cache.limit_bytes), Text(text))
    waiting = " · waiting for consumers" if credits.waiting else ""
    text = (
        f"on the way: {credits.outstanding_clips} clips, "
        f"{size(credits.outstanding_bytes)} of {size(credits.budget_bytes)}{waiting}"
    )
    line.add_row(_fill(credits.outstanding_bytes, credits.budget_bytes), Text(text))
    return line


def _fill(used: int, limit: int) -> ProgressBar:
    style = "magenta"
    return ProgressBar(
        total=max(limit, 1), completed=used, width=_BAR_WIDTH, complete_style=style, finished_style=style
    )


def _pools(pools: Iterable[PoolStatus]) -> Table:
    table = _table("pool", "workers", "clips", "clips/s", "ms/clip", "busy", "queue")
    for pool in pools:
        per_clip = "–" if pool.seconds_per_clip is None else f"{1000 * pool.seconds_per_clip:.1f}"
        table.add_row(
            escape(pool.name),
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
            escape(trainer.name),
            _place(trainer),
            f"{trainer.clips_done:,}",
            _number(trainer.clips_per_s, 1),
            _number(trainer.loss, 3),
            percent(trainer.top1),
            f"[yellow]{percent(wait)}[/]" if wait is not None and wait > _STARVED else percent(wait),
            "–" if trainer.queue is None else str(trainer.queue),
            percent(_best_validation(trainer)),
        )
    return table


def _place(trainer: TrainerStatus) -> str:
    """`val. 3`: short, as the table has to fit into 80 columns."""
    if trainer.final:
        return "done"
    purpose = trainer.purpose or "waiting"
    return f"{_SHORT.get(purpose, purpose)} {trainer.epoch + 1}"


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
    table = _table("by video", "weight", *(f"{_SHORT[split]}\n{label}" for split in splits for _, label in _FIGURES))
    for name in [*(trainer.name for trainer in status.trainers), "fused"]:
        weight = metrics.get(f"weight.{name}")
        cells = [percent(metrics.get(f"{split}.{name}.{figure}")) for split in splits for figure, _ in _FIGURES]
        style = "bold" if name == "fused" else ""
        table.add_row(escape(name), "" if weight is None else f"{weight:.3f}", *cells, style=style)
    return table


def _table(first: str, *others: str) -> Table:
    columns = [Column(name, justify="right") for name in others]
    return Table(Column(first), *columns, box=None, padding=(0, 2, 0, 0), header_style="dim")


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
