"""Shows a command's progress through many videos: a bar on a terminal, an occasional line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from essp.catalog.progress import Progress, Tell
from essp.cli.console import say
from essp_common.quantities import duration, size

LONGEST_S = 100_000.0
"""The largest processor time for one file that an option accepts; timers refuse numbers that are much larger."""
_LINE_EVERY_S = 5.0


@contextmanager
def reading_progress(console: Console, doing: str) -> Iterator[Tell]:
    """A callback that shows progress. `doing`: the activity, as in `reading videos`."""
    if not console.is_terminal:
        yield _line_printer(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("listing the source", total=None, note="")

        def tell(now: Progress) -> None:
            bar.update(task, description=doing, total=now.files_total, completed=now.files_done, note=_note(now))

        yield tell


def _line_printer(console: Console) -> Tell:
    due = time.monotonic() + _LINE_EVERY_S

    def tell(now: Progress) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _LINE_EVERY_S
            say(f"read {now.files_done} of {now.files_total} files, {_note(now)}", console)

    return tell


def _note(now: Progress) -> str:
    parts = [f"{size(now.bytes_done)} of {size(now.bytes_total)}", f"{now.rate:.1f} files/s"]
    if now.eta_s is not None:
        parts.append(f"{duration(now.eta_s)} left")
    if now.problems:
        parts.append(f"{now.problems} unusable")
    return ", ".join(parts)
