"""Describes in words how a job ran. Everything comes from its history, so the result is the same at any time.

A job that was interrupted and resumed has several runs. Running a completed job again adds a run in which nothing is
done. All runs count.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from essp.account import Account, Run
from essp_common.failures import kind_word, stage_word
from essp_common.job.changes import Place, in_words
from essp_common.pb.v1.messages_pb2 import Change, FailureKind, Stage
from essp_common.quantities import duration

_EXAMPLES = 3
TIME = "time"
"""The label of the note with the duration."""


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run of the job."""

    began: datetime
    seconds: float
    decoded: int
    """Number of clips."""
    report: str = ""
    """Path of the report written after it, relative to the newest report; empty if there is none."""


def past_runs(account: Account) -> list[PastRun]:
    """All runs of the job, oldest first."""
    return [
        PastRun(
            datetime.fromtimestamp(run.began_ms / 1000, UTC),
            (run.last_ms - run.began_ms) / 1000,
            run.counts["decoded"],
        )
        for run in account.runs
    ]


def notes(account: Account) -> dict[str, str]:
    """Notes by label; empty for a job without history."""
    runs = account.runs
    if not runs:
        return {}
    counts: Counter[str] = sum((run.counts for run in runs), Counter())
    seconds = sum(run.last_ms - run.began_ms for run in runs) / 1000
    found = {
        "began": in_utc(past_runs(account)[0].began),
        TIME: duration(seconds) + (f" in {len(runs)} runs" if len(runs) > 1 else ""),
        "clips decoded": f"{counts['decoded']:,}",
        "features extracted": f"{counts['extracted']:,}",
        "intermediate files": "none: clips and features lived in the frame cache",
    }
    if counts["skipped"]:
        found["clips left out"] = f"{counts['skipped']:,} (nothing could replace them)"
    if again := sum(map(_issued_again, runs)):
        found["clips made again"] = f"{again:,} ({counts['lost']:,} because their bytes were lost)"
    return (
        found
        | {f"change {number}": _words(change) for number, change in sorted(account.changes.items())}
        | (_failures(runs))
    )


def in_utc(moment: datetime) -> str:
    """A time as reports show it, independent of the reader's time zone."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _words(change: Change) -> str:
    """The change to the running job, and the position from which each trainer was trained with it."""
    where = [f"{trainer} from {Place.of(place)} on" for trainer, place in sorted(change.places.items())]
    return "; ".join([in_words(change), *where])


def _issued_again(run: Run) -> int:
    return run.counts["issued"] - sum(int(np.count_nonzero(marks)) for marks in run.issued)


def _failures(runs: list[Run]) -> dict[str, str]:
    videos: dict[tuple[Stage, FailureKind], list[str]] = {}
    for run in runs:
        for kind, failed in run.failures.items():
            videos.setdefault(kind, []).extend(failed)
    return {
        f"failed in the {stage_word(stage)}: {kind_word(kind)}": (
            f"{len(failed)}, for example {', '.join(list(dict.fromkeys(failed))[:_EXAMPLES])}"
        )
        for (stage, kind), failed in sorted(videos.items())
    }
