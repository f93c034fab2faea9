"""When the next checkpoint is due, so that checkpoints take a given share of the training time in the long run.

As in CheckFreq (Mohan and others, FAST 2021), the cost of a checkpoint is measured while training runs: how much longer
the steps take from the beginning of a save until it is durable than the same number of other steps. So it contains the
copy, the wait for an earlier save, and what training loses to the process that packs.

    interval = cost of a checkpoint / share, but at least the duration of a save, and at least a minute

Only time in which the model trains counts: evaluations and pauses are left out. Before the first cost is known, the
interval is a minute. Rank 0 decides for all ranks.
"""

from __future__ import annotations

import logging
from collections import deque
from statistics import fmean

from essp_trainer.model.meter import Clock

log = logging.getLogger(__name__)

LEAST_S = 60.0
"""Closer saves wear out disks for little gain."""
_COSTS = 3
"""Saves whose mean cost counts, since the times of steps vary."""
_STEPS = 8
"""Steps between two saves that are enough to measure a step without a save."""


class Interval:
    """Decides when a checkpoint is due."""

    def __init__(self, share: float, clock: Clock) -> None:
        """`share`: the share of the training time that checkpoints may take, above 0."""
        self._share = share
        self._clock = clock
        self._last_s: float | None = None
        """When the last step ended; None if the time since then was not training."""
        self._since_s = 0.0
        """Training time since the last save began."""
        self._saving: _Steps | None = None
        """Steps since the save that is under way, or not measured yet, began."""
        self._over = False
        """Whether that save is over."""
        self._free, self._free_before = _Steps(), _Steps()
        """Steps since the last save was durable, and those before it."""
        self._costs_s: deque[float] = deque(maxlen=_COSTS)
        self._lasted_s = 0.0

    def step(self) -> None:
        """A training step has ended."""
        now_s = self._clock()
        if self._last_s is not None:
            took_s = now_s - self._last_s
            self._since_s += took_s
            (self._free if self._saving is None else self._saving).add(took_s)
        self._last_s = now_s
        if self._over:
            self._measure()

    def leave_out(self) -> None:
        """The time from the last step to the next one is not training."""
        self._last_s = None

    def began(self) -> None:
        """A save begins."""
        self._since_s = 0.0
        self._over = False
        if self._saving is None:
            self._saving = _Steps()

    def ended(self) -> None:
        """No save is under way any more."""
        if self._saving is None:
            return
        self._over = True
        # If training has waited for the whole save (`parallel: off`), the next step shows how long.
        if self._saving.count or self._last_s is None:
            self._measure()

    def _measure(self) -> None:
        """Compute the cost of the save from the steps since it began."""
        saving, self._saving, self._over = self._saving or _Steps(), None, False
        if self._free.count >= _STEPS or not self._free_before.count:
            self._free_before = self._free
        self._free = _Steps()
        self._lasted_s = saving.seconds
        if saving.count and self._free_before.count:
            self._costs_s.append(saving.seconds - saving.count * self._free_before.each_s)
        log.info("the next checkpoint is due after %.0f s of training", self.seconds)

    @property
    def seconds(self) -> float:
        """Training time between the beginnings of two saves."""
        cost_s = fmean(self._costs_s) if self._costs_s else 0.0
        return max(LEAST_S, self._lasted_s, cost_s / self._share)

    @property
    def due(self) -> bool:
        """Whether the next checkpoint is due."""
        return self._saving is None and self._since_s >= self.seconds


class _Steps:
    """Some steps, and how long they took together."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def add(self, took_s: float) -> None:
        self.count += 1
        self.seconds += took_s

    @property
    def each_s(self) -> float:
        return self.seconds / self.count
