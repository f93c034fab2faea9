"""GPUs by improvement of the loss against fair shares, simulated: how soon trainers are nearly as good as they get.

Trainers arrive one after the other on a cluster of eight GPUs; each follows a loss curve `floor + fall / (1 + k)^p`
with noise, k its epochs. Every period the rule deals the GPUs out; a training whose share changes loses the time of a
checkpoint and a restart. What counts is how long after its arrival each training has made 90 % of its fall.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.figures import Figure, Scale
from essp_master.pools.gpus import TrainerForecast, allocate

GPUS = 8
_PERIOD_S = 300
_MOVE_S = 45
_SPEEDUP = 0.9
_NEARLY = 0.9
_END_S = 48 * 3600


def fair_shares(trainers: Sequence[TrainerForecast], gpus: int) -> dict[str, int]:
    """The same for every training, as far as that goes: the rule that allocation by improvement is compared with."""
    share, rest = divmod(gpus, len(trainers)) if trainers else (0, 0)
    return {t.name: min(t.max, share + (n < rest)) for n, t in enumerate(trainers)}


Rule = Callable[[Sequence[TrainerForecast], int, Mapping[str, int]], Mapping[str, int]]
RULES: dict[str, Rule] = {
    "by_improvement": lambda trainers, gpus, present: allocate(trainers, gpus, present, _PERIOD_S),
    "fair": lambda trainers, gpus, present: fair_shares(trainers, gpus),
}


@dataclass
class Run:
    """One simulated training."""

    name: str
    arrival_s: int
    epochs_per_s: float
    power: float
    floor: float
    total_epochs: int
    noise: random.Random
    epochs: float = 0.0
    losses: list[float] = field(default_factory=list)
    nearly_s: int | None = None

    def loss(self, epochs: float) -> float:
        """Its loss after `epochs`."""
        loss: float = self.floor + 2.0 / (1 + epochs) ** self.power
        return loss

    def advance(self, seconds: float, gpus: int, now_s: int) -> None:
        """Train on for so long."""
        speed = self.epochs_per_s * gpus**_SPEEDUP
        self.epochs = min(self.total_epochs, self.epochs + seconds * speed)
        while len(self.losses) <= int(self.epochs):
            exact = self.loss(len(self.losses))
            self.losses.append(exact * (1 + self.noise.gauss(0, 0.005)))
        end = self.loss(self.total_epochs)
        if self.nearly_s is None and 2.0 + self.floor - self.loss(self.epochs) >= _NEARLY * (2.0 + self.floor - end):
            self.nearly_s = now_s - self.arrival_s

    @property
    def finished(self) -> bool:
        """All its epochs are done."""
        return self.epochs >= self.total_epochs

    def seen(self) -> TrainerForecast:
        """As the rule sees it."""
        return TrainerForecast(name=self.name, losses=self.losses, epochs_per_s=self.epochs_per_s, max=GPUS)


def runs(seed: int, count: int = 10) -> list[Run]:
    """Trainers that arrive about every forty minutes."""
    chance = random.Random(seed)
    arrival = 0.0
    found = []
    for number in range(count):
        found.append(
            Run(
                name=f"training-{number}",
                arrival_s=int(arrival),
                epochs_per_s=1 / chance.uniform(300, 900),
                power=chance.uniform(0.6, 1.6),
                floor=chance.uniform(0.2, 1.0),
                total_epochs=chance.choice((30, 60, 90)),
                noise=random.Random(seed * 1000 + number),
            )
        )
        arrival += chance.expovariate(1 / 2400)
    return found


def simulate(rule: Rule, seed: int) -> float:
    """Mean seconds from a training's arrival to 90 % of its fall."""
    trainers = runs(seed)
    shares: dict[str, int] = {}
    for now_s in range(0, _END_S, _PERIOD_S):
        active = [run for run in trainers if run.arrival_s <= now_s and not run.finished]
        if not active and all(run.finished for run in trainers):
            break
        present = {run.name: shares.get(run.name, 0) for run in active}
        shares = dict(rule([run.seen() for run in active], GPUS, present))
        for run in active:
            moved = shares[run.name] != present[run.name]
            run.advance(_PERIOD_S - _MOVE_S * moved, shares[run.name], now_s + _PERIOD_S)
    return sum(run.nearly_s if run.nearly_s is not None else _END_S for run in trainers) / len(trainers)


def gpu_allocation(scale: Scale) -> Iterator[Figure]:
    """Time to 90 % of the fall, fair shares over ours, over several seeds."""
    ratios = sorted(simulate(RULES["fair"], seed) / simulate(RULES["by_improvement"], seed) for seed in range(20))
    yield Figure(
        "gpu_allocation",
        ratios[len(ratios) // 2],
        "time to 90 %: fair / by improvement",
        low=ratios[0],
        high=ratios[-1],
    )
