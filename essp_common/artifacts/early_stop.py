"""Early stopping: whether a trainer has trained its last epoch although the job has more (Prechelt, "Early stopping -
but when?", 1998).

A pure function of its validation metrics. So the result is the same for a trainer that ends an epoch, for one that was
killed and resumes, for every rank, and for the master that starts the job again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from essp_common.artifacts.manifest import PhaseRecord
from essp_common.job.trainer_spec import Choice, TrainerSpec


class EarlyStop(NamedTuple):
    """The epoch after which a trainer stops, and why."""

    epoch: int
    """The last epoch that it trains, counted from 0."""
    best: int
    """The best epoch, whose weights are the final ones."""

    @property
    def words(self) -> str:
        """One sentence for users, who count from 1."""
        last = "epoch" if self.epoch - self.best == 1 else f"{self.epoch - self.best} epochs"
        was = "was" if self.epoch - self.best == 1 else "were"
        return (
            f"stopped early, after epoch {self.epoch + 1}: its last {last} {was} no better than epoch {self.best + 1}"
        )


def is_better(metrics: Mapping[str, float], best: Mapping[str, float] | None, choose: Choice = "top1") -> bool:
    """Whether a validation is better than the best one before it, according to `trainers.NAME.choose`; in a tie, the
    earlier one stays the best."""
    if best is None or choose == "last":
        return True
    if choose == "loss":
        return metrics["video_loss"] < best["video_loss"]
    figure = f"video_{choose}"
    return (metrics[figure], -metrics["video_loss"]) > (best[figure], -best["video_loss"])


def early_stop(history: Iterable[PhaseRecord], trainer: TrainerSpec, epochs: int) -> EarlyStop | None:
    """The early stop of a training with this history, if its last `stop.patience` epochs were not better than the best
    one before them and more of the job's `epochs` would follow. None: it continues; with a patience of 0, to the last
    epoch."""
    patience = trainer.stop.patience
    if not patience:
        return None
    best = last = None
    for record in history:
        if record.purpose == "validation":
            last = record
            if best is None or is_better(record.metrics, best.metrics, trainer.choose):
                best = record
    if best is None or last is None or last.epoch + 1 >= epochs:
        return None
    return EarlyStop(last.epoch, best.epoch) if last.epoch - best.epoch >= patience else None
