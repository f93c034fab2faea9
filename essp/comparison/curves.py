"""The curves of training jobs as a table: one row for each phase of each trainer, for spreadsheets and notebooks."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from essp_common.artifacts.manifest import PhaseRecord

COLUMNS = ("job", "trainer", "phase", "epoch")
_FIRST = ("clips", "loss", "top1", "top5", "mAP")
"""Metrics that come first, if there are any; the others follow by name."""

Histories = Mapping[str, Mapping[str, Sequence[PhaseRecord]]]
"""Job -> trainer -> its phases, in order."""


def rows_of(histories: Histories) -> list[dict[str, Any]]:
    """One row for each phase: `job`, `trainer`, `phase` (train, validation or test), `epoch` (from 1), and its
    metrics."""
    return [
        {"job": job, "trainer": trainer, "phase": record.purpose, "epoch": record.epoch + 1, **record.metrics}
        for job, trainers in histories.items()
        for trainer, history in trainers.items()
        for record in history
    ]


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as CSV (RFC 4180), with a heading. A metric that a phase does not have is empty."""
    names = {name for row in rows for name in row if name not in COLUMNS}
    metrics = [name for name in _FIRST if name in names]
    columns = [*COLUMNS, *metrics, *sorted(names - set(metrics))]
    sink = io.StringIO()
    writer = csv.DictWriter(sink, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue()
