"""Where a job runs: how many workers each part has, what they share, and how fast trainers can be.

On one machine all parts share the cores. In a cluster each worker has its own core, and trainers compute on GPUs at a
given rate.
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
"""Planned utilisation of workers. The rest absorbs bursts."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers that perform the same task for each clip. Each processes one clip at a time."""

    name: str
    seconds: float
    """Processor time per clip."""
    workers: int
    source: str | None
    """The pool whose clips it takes; None: it takes the master's seeds."""

    @property
    def most(self) -> float:
        """Clips per second if each worker has a core."""
        return self.workers / self.seconds


@dataclass(frozen=True, slots=True)
class Consumer:
    """A trainer, which takes clips in index order."""

    name: str
    source: str
    """The pool that provides its clips."""
    batch: int
    seconds: float
    """Time per clip, on a core or on its GPUs."""


@dataclass(frozen=True, slots=True)
class Setup:
    """All the components that clips pass through."""

    pools: tuple[Pool, ...]
    """In the order in which clips pass through them. The thread that feeds a trainer is a pool, too."""
    consumers: tuple[Consumer, ...]
    credits: int
    """Maximum number of outstanding clips, which are issued and not yet freed by all consumers."""
    cores: int = 0
    """Cores that all pools and consumers share; 0: each worker has its own, and consumers have GPUs."""

    def pool(self, name: str) -> Pool:
        """The pool with this name."""
        return next(pool for pool in self.pools if pool.name == name)


def on_machine(spec: JobSpec, costs: Costs, cores: int) -> Setup:
    """The setup of `essp run`: a decoder and a lane of each extractor per core, and a thread feeding each trainer."""
    pools = _pools(spec, costs, lambda name, _: 1 if name == ids.MASTER or name.startswith("feed.") else cores)
    consumers = tuple(
        Consumer(name, f"feed.{name}", trainer.batch_size, costs.seconds[f"trainer.{name}"])
        for name, trainer in spec.trainers.items()
    )
    return Setup(pools, consumers, _credits(spec, costs), cores)


def in_cluster(spec: JobSpec, costs: Costs, rate: float) -> Setup:
    """Pools that give each trainer `rate` clips per second, the rate of its GPUs. A job has one master."""
    pools = _pools(
        spec, costs, lambda name, seconds: 1 if name == ids.MASTER else max(1, math.ceil(rate * seconds / BUSY))
    )
    consumers = tuple(
        Consumer(name, f"feed.{name}", spec.trainers[name].batch_size, 1 / rate) for name in spec.trainers
    )
    return Setup(pools, consumers, _credits(spec, costs))


def _pools(spec: JobSpec, costs: Costs, workers: Callable[[str, float], int]) -> tuple[Pool, ...]:
    """`workers`: returns the number of workers for a pool with this name and these seconds per clip."""

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
    """Number of clips that fit into the budget; at least two batches, because otherwise nothing would progress."""
    held = int(spec.limits.budget / max(1.0, sum(costs.bytes.values())))
    return max(held, *(2 * trainer.batch_size for trainer in spec.trainers.values()))
