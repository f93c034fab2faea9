"""What a list of jobs shows of the figures of one: its result so far in a single figure, and the course of its loss.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from essp_common.job.status import HeadlineStatus, PhaseReport, TrainerStatus

POINTS = 32
"""Largest number of points of the course."""


def headline(trainers: Sequence[TrainerStatus], result: Mapping[str, float]) -> HeadlineStatus | None:
    """Return the figure of the fused model on the test split, or on validation; before there is one, the best figure of
    the trainers' last validations, by video where they have one. None if there is neither."""
    for split in ("test", "validation"):
        judged = "top1" if f"{split}.fused.mean_class" in result else "mAP"
        for figure in (judged, "top1"):
            if (value := result.get(f"{split}.fused.{figure}")) is not None:
                return HeadlineStatus(figure=figure, of="fused", split=split, value=value)
    last = {t.name: r.metrics for t in trainers for r in t.reports if r.purpose == "validation"}
    found = [_of_validation(name, metrics) for name, metrics in last.items()]
    return max((each for each in found if each is not None), key=lambda each: each.value, default=None)


def _of_validation(trainer: str, metrics: Mapping[str, float]) -> HeadlineStatus | None:
    judged = "mAP" if "mAP" in metrics and "mean_class" not in metrics else "top1"
    for figure in (f"video_{judged}", judged):
        if figure in metrics:
            return HeadlineStatus(figure=judged, of=trainer, split="validation", value=metrics[figure])
    return None


def losses(reports: Iterable[PhaseReport], curve: Sequence[float]) -> tuple[float, ...]:
    """Return the training loss of a trainer over time: within its epochs if that is known, else by epoch."""
    by_epoch = [r.metrics["loss"] for r in reports if r.purpose == "train" and "loss" in r.metrics]
    return thinned(curve if len(curve) >= len(by_epoch) else by_epoch)


def thinned(values: Sequence[float]) -> tuple[float, ...]:
    """Return at most `POINTS` of these values, evenly spaced, with the first and the last."""
    if len(values) <= POINTS:
        return tuple(values)
    return tuple(values[round(k * (len(values) - 1) / (POINTS - 1))] for k in range(POINTS))
