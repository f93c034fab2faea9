"""Divides GPUs among trainers: those whose validation loss still falls get more. Pure.

After each epoch, the next improvement of a trainer is predicted from its last ones. The improvement is the fall of the
loss in one epoch, as a share of its whole fall so far. It is assumed to keep shrinking by the same factor as recently.

GPUs are then assigned one by one, each to the trainer whose predicted improvement it raises most. Every trainer keeps
its minimum. A trainer with little history counts as improving fast, so that new trainers get GPUs. A trainer that waits
for data gets no more GPUs, because it could not use them. GPUs that raise no predicted improvement are assigned as
well: a trainer then finishes its epochs sooner.

A change costs a checkpoint and a restart, so the present shares stay unless others are clearly better.

Source: Zhang et al., "SLAQ: Quality-Driven Scheduling for Distributed Machine Learning", ACM SoCC 2017. The prediction
here is geometric, instead of SLAQ's fitted curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_NEW = 3
"""Number of losses required for a prediction."""
_SLOWEST_DECAY = 0.95
SCALING = 0.9
"""n GPUs are faster than one by the factor n to this power."""
_BETTER = 1.1
"""Shares change only if the predicted improvement exceeds that with the present shares by this factor."""


@dataclass(frozen=True, kw_only=True)
class TrainerForecast:
    """One trainer's input to the allocation."""

    name: str
    losses: Sequence[float]
    """Validation loss after each epoch."""
    epochs_per_s: float
    """Speed on one GPU."""
    min: int = 1
    max: int = 8
    starved: bool = False
    """Whether it waits for data."""

    def improvement(self, gpus: int, period_s: float) -> float:
        """Return the predicted fall of the loss within `period_s`, as a share of its fall so far."""
        epochs = self.epochs_per_s * period_s * gpus**SCALING
        fall, decay = self._course()
        left: float = decay**epochs
        return fall * (1 - left) / (1 - decay)

    def _course(self) -> tuple[float, float]:
        """Return the predicted fall in the next epoch, and the factor by which it shrinks with each epoch."""
        best = _running_best(self.losses)
        if len(best) < _NEW or best[0] <= best[-1]:
            return (1.0, 0.5) if len(best) < _NEW else (0.0, 0.5)
        falls = [before - after for before, after in pairwise(best)]
        recent = falls[-4:]
        half = len(recent) // 2
        early, late = sum(recent[:half]) / half, sum(recent[half:]) / (len(recent) - half)
        decay = min(_SLOWEST_DECAY, (late / early) ** (1 / half)) if early > 0 else _SLOWEST_DECAY
        return late / (best[0] - best[-1]), decay


def allocate(
    trainers: Sequence[TrainerForecast], gpus: int, present: Mapping[str, int], period_s: float = 300.0
) -> dict[str, int]:
    """Return the GPUs of each trainer. If there are too few, the first trainers get their `min`, and the others get
    none. `present`: the present shares. `period_s`: how long the shares will be in effect.
    """
    shares: dict[str, int] = {}
    left = gpus
    for trainer in trainers:
        shares[trainer.name] = trainer.min if trainer.min <= left else 0
        left -= shares[trainer.name]
    able = [trainer for trainer in trainers if shares[trainer.name]]
    while left:
        gains = {t.name: _gain(t, shares[t.name], present.get(t.name, 0), period_s) for t in able}
        usable = [t.name for t in able if _can_use_more(t, shares[t.name], present.get(t.name, 0))]
        if not usable:
            break
        # of those that improve no more, the one with the fewest: what would be idle ends its epochs sooner
        best = max(usable, key=lambda name: (gains[name], -shares[name]))
        shares[best] += 1
        left -= 1
    return shares if _is_worth_it(trainers, shares, present, gpus, period_s) else dict(present)


def _can_use_more(trainer: TrainerForecast, share: int, present: int) -> bool:
    return share < trainer.max and not (trainer.starved and share >= present)


def _gain(trainer: TrainerForecast, share: int, present: int, period_s: float) -> float:
    if not _can_use_more(trainer, share, present):
        return 0.0
    return trainer.improvement(share + 1, period_s) - trainer.improvement(share, period_s)


def _is_worth_it(
    trainers: Sequence[TrainerForecast],
    shares: Mapping[str, int],
    present: Mapping[str, int],
    gpus: int,
    period_s: float,
) -> bool:
    names = {trainer.name for trainer in trainers}
    if names != set(present) or sum(present.values()) > gpus:
        return True
    if any(present[t.name] < t.min for t in trainers) or sum(present.values()) < sum(shares.values()):
        return True

    def total(of: Mapping[str, int]) -> float:
        return sum(t.improvement(of[t.name], period_s) for t in trainers)

    return total(shares) > _BETTER * total(present)


def _running_best(losses: Sequence[float]) -> list[float]:
    best: list[float] = []
    for loss in losses:
        best.append(min(loss, best[-1]) if best else loss)
    return best
