"""Where a job runs: how many workers each part has, what they share, and how fast trainers can be.

On one machine all parts share the cores. In a cluster each worker has a core of its own, and trainers compute on GPUs,
at a rate that is given.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from essp.capacity.measuring import Costs
from essp_common.errors import EsspError
from essp_common.job.spec import JobSpec
from essp_common.runtime import ids

BUSY = 0.85
"""Share of the time that workers are planned to work: what is left takes up what comes in bursts."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers that do the same for each clip, one clip at a time each."""

    name: str
    seconds: float
    """Processor time for a clip."""
    workers: int
    source: str | None
    """The pool whose clips it takes; None: the master's seeds."""

    @property
    def most(self) -> float:
        """Clips a second, if each worker has a core."""
        return self.workers / self.seconds


@dataclass(frozen=True, slots=True)
class Consumer:
    """A trainer, which takes clips in the order of their indices."""

    name: str
    source: str
    """The pool that makes its clips."""
    batch: int
    seconds: float
    """For a clip: of a core, or of its GPUs."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that clips pass."""

    pools: tuple[Pool, ...]
    """In the order that clips pass them; what feeds a trainer is a pool, too."""
    consumers: tuple[Consumer, ...]
    credits: int
    """Clips that may be outstanding: issued, and not yet freed by all consumers."""
    cores: int = 0
    """That all pools and consumers share; 0: each worker has its own, and consumers have GPUs."""

    def pool(self, name: str) -> Pool:
        """The pool of this name."""
        return next(pool for pool in self.pools if pool.name == name)


def on_machine(spec: JobSpec, costs: Costs, cores: int) -> Setup:
    """As `essp run` has it: as many decoders and lanes of extractors as cores, and one thread that feeds a trainer."""
    pools = _pools(spec, costs, lambda name, _: 1 if name == ids.MASTER or name.startswith("feed.") else cores)
    consumers = tuple(
        Consumer(name, f"feed.{name}", trainer.batch_size, costs.seconds[f"trainer.{name}"])
        for name, trainer in spec.trainers.items()
    )
    return Setup(pools, consumers, _credits(spec, costs), cores)


def in_cluster(spec: JobSpec, costs: Costs, rate: float) -> Setup:
    """Pools that give each trainer `rate` clips a second, which is what its GPUs take; a job has one master."""
    pools = _pools(
        spec, costs, lambda name, seconds: 1 if name == ids.MASTER else max(1, math.ceil(rate * seconds / BUSY))
    )
    consumers = tuple(
        Consumer(name, f"feed.{name}", spec.trainers[name].batch_size, 1 / rate) for name in spec.trainers
    )
    return Setup(pools, consumers, _credits(spec, costs))


def _pools(spec: JobSpec, costs: Costs, workers: Callable[[str, float], int]) -> tuple[Pool, ...]:
    """`workers`: of a pool of this name that takes so many seconds for a clip."""

    def pool(name: str, source: str | None, times: int = 1) -> Pool:
        if name not in costs.seconds:
            more = "give the job more epochs: it was over too soon" if costs.ended else "measure longer, with --seconds"
            raise EsspError(f"nothing was measured of {name}; {more}")
        seconds = times * costs.seconds[name]
        return Pool(name, seconds, workers(name, seconds), source)

    streams = Counter(stream.feature for stream in spec.streams.values() if stream.feature != "rgb")
    extractors = {feature: ids.extractor_pool([feature]) for feature in streams} | {"rgb": ids.DECODER}
    return (
        pool(ids.MASTER, None),
        pool(ids.DECODER, ids.MASTER),
        *(pool(extractors[feature], ids.DECODER, times) for feature, times in streams.items()),
        *(
            pool(f"feed.{name}", extractors[spec.streams[trainer.stream].feature])
            for name, trainer in spec.trainers.items()
        ),
    )


def _credits(spec: JobSpec, costs: Costs) -> int:
    """Clips that the budget holds; at least two batches, or nothing would move."""
    held = int(spec.limits.budget / max(1.0, sum(costs.bytes.values())))
    return max(held, *(2 * trainer.batch_size for trainer in spec.trainers.values()))
