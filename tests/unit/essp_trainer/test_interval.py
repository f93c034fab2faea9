"""Checkpoints within an epoch are as far apart as their measured cost demands."""

from __future__ import annotations

import pytest

from essp_trainer.checkpoints.interval import LEAST_S, Interval


class Loop:
    """A training loop by a fake clock: saves when it is due; steps are slower while a save is under way. It waits for a
    save with nothing to pack."""

    def __init__(self, share: float, copy_s: float, pack_s: float, slower: float = 1.0) -> None:
        self.now_s, self.saves, self._ends_s = 0.0, 0, 0.0
        self._copy_s, self._pack_s, self._slower = copy_s, pack_s, slower
        self.interval = Interval(share, lambda: self.now_s)

    def step(self, step_s: float = 1.0) -> None:
        if self._ends_s and self.now_s >= self._ends_s:
            self.interval.ended()
            self._ends_s = 0.0
        if self.interval.due:
            self.saves += 1
            self.interval.began()
            self.now_s += self._copy_s
            self._ends_s = self.now_s + self._pack_s if self._pack_s else 0.0
            if not self._ends_s:
                self.interval.ended()
        self.now_s += step_s * (self._slower if self._ends_s else 1.0)
        self.interval.step()


@pytest.mark.parametrize(
    ("copy_s", "pack_s", "slower"),
    [(2.0, 0.5, 1.0), (0.0, 20.0, 1.5), (1.0, 10.0, 1.2), (3.0, 0.0, 1.0)],
    ids=["the copy stops training", "packing slows steps down", "both", "training waits for the whole save"],
)
def test_checkpoints_cost_the_given_share(copy_s: float, pack_s: float, slower: float) -> None:
    loop, steps = Loop(0.02, copy_s, pack_s, slower), 6000
    for _ in range(steps):
        loop.step()
    overhead = loop.now_s / steps - 1
    assert 0.01 < overhead <= 0.025  # also with the first save, after a minute


def test_cheap_checkpoints_are_a_minute_apart() -> None:
    loop = Loop(0.02, 0.01, 5.0)
    for _ in range(1000):
        loop.step()
    assert loop.saves == pytest.approx(1000 / LEAST_S, abs=2)


def test_a_save_that_lasts_longer_than_its_interval_is_not_waited_for() -> None:
    loop = Loop(1.0, 0.01, 200.0)
    for _ in range(1000):
        loop.step()
    assert 3 <= loop.saves <= 5


def test_evaluations_and_pauses_are_not_training() -> None:
    loop = Loop(0.02, 1.0, 10.0)
    while not loop.saves:
        loop.step()
    for _ in range(10):
        loop.interval.leave_out()
        loop.now_s += 1000.0
        loop.step()
    for _ in range(5):
        loop.step()
    assert loop.interval.seconds == pytest.approx(1.0 / 0.02, abs=15)


def test_slow_steps_without_a_save_make_no_save_look_expensive() -> None:
    """Decoding limits the training from some point on; steps with and without a save become slower alike."""
    loop = Loop(0.02, 0.5, 10.0)
    for _ in range(300):
        loop.step()
    for _ in range(600):
        loop.step(2.0)
    assert loop.interval.seconds == LEAST_S
