"""The capacity of each part, server and link of a setup, and the sentence that names the bottleneck."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from essp.capacity.measuring import ENOUGH_CLIPS, Costs
from essp.capacity.setups import Pool, Setup
from essp.capacity.simulation import Outcome
from essp_common import topics
from essp_common.job.spec import JobSpec
from essp_common.quantities import counted

FED = 0.95
"""Share of the requested rate that counts as reached."""


@dataclass(frozen=True, slots=True)
class Servers:
    """What is known about the servers between the pools, in bytes per second; 0: unknown."""

    redis: float = 1e9
    """Bytes that one Redis server receives and sends, together."""
    redis_servers: int = 0
    """0: the number that is needed."""
    network: float = 0.0
    """Capacity of the link of one Redis server, in one direction."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A component with a limited capacity."""

    name: str
    clips_per_s: float
    remedy: str


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a clip moves on its way."""

    read: float
    """Read from the object store, compressed."""
    written: float
    """Written to the cache."""
    taken: float
    """Read from the cache, by all consumers."""


def traffic_of(spec: JobSpec, costs: Costs) -> Traffic:
    """A clip is written once, and read by the extractor of each stream and by each trainer that uses its frames."""
    readers = Counter({"clip": sum(stream.feature != "rgb" for stream in spec.streams.values())})
    for trainer in spec.trainers.values():
        readers["clip" if spec.streams[trainer.stream].feature == "rgb" else trainer.stream] += 1
    taken = sum(count * costs.bytes.get(part, 0.0) for part, count in readers.items())
    return Traffic(costs.read_bytes, sum(costs.bytes.values()), taken)


def limits_of(setup: Setup, traffic: Traffic, servers: Servers) -> list[Limit]:
    """All limits, lowest first."""
    found = [Limit(pool.name, pool.most, _remedy(pool, setup)) for pool in setup.pools]
    if setup.cores:
        seconds = sum(pool.seconds for pool in setup.pools) + sum(c.seconds for c in setup.consumers)
        found.append(Limit("cores", setup.cores / seconds, "more cores, or decoders and extractors elsewhere"))
        found += [Limit(f"trainer.{c.name}", 1 / c.seconds, "a GPU, or a smaller model") for c in setup.consumers]
    elif servers.redis_servers:
        moved = (traffic.written + traffic.taken) / servers.redis_servers
        found.append(Limit("redis", servers.redis / moved, "another Redis server (cluster), or smaller clips"))
        if servers.network:
            out = max(traffic.written, traffic.taken) / servers.redis_servers
            found.append(Limit("network", servers.network / out, "a faster link, or another Redis server"))
    return sorted(found, key=lambda limit: limit.clips_per_s)


def redis_servers(traffic: Traffic, rate: float, servers: Servers) -> int:
    """Number of Redis servers that this rate of clips requires."""
    moved = (traffic.written + traffic.taken) * rate / servers.redis
    sent = max(traffic.written, traffic.taken) * rate / servers.network if servers.network else 0.0
    return max(1, -int(-max(moved, sent) // 1))


def verdict(setup: Setup, outcome: Outcome, limits: list[Limit], rate: float = 0.0) -> str:
    """The bottleneck and the next one. `rate`: the requested rate; 0: the highest possible."""
    first, second = limits[:2]
    if rate and outcome.clips_per_s < FED * rate < first.clips_per_s:
        held = counted(setup.credits, "clip")
        return f"limits.budget: it holds {held}; next: {first.name}, at {_rate(first.clips_per_s)}"
    after = f"next: {second.name}, at {_rate(second.clips_per_s)}"
    return f"{first.name}, at {_rate(first.clips_per_s)} ({first.remedy}); {after}"


def between(limits: list[Limit], costs: Costs) -> tuple[float, float]:
    """The lowest and highest rate of a setup, in clips per second, if `costs` are uncertain.

    The costs of the master, and of parts that finished their clips at once, are mostly the costs of the job itself,
    which hardly grow with the number of clips.
    """
    doubtful = {"master", "cores", *costs.rough}
    sure = [limit.clips_per_s for limit in limits if limit.name not in doubtful]
    return limits[0].clips_per_s, max(limits[0].clips_per_s, min(sure, default=limits[-1].clips_per_s))


def not_known(limits: list[Limit], costs: Costs, seconds: float) -> str:
    """The sentence to print if too little was measured to name a bottleneck, with advice. `seconds`: duration of the
    measurement."""
    low, high = between(limits, costs)
    found = f"not known, as only {counted(costs.clips, 'clip')} came through: between {_rate(low)} and {_rate(high)}"
    if costs.ended:
        return f"{found}. The job was over; give it more epochs, or a larger sampling.clips_per_epoch"
    return f"{found}. Measure longer, with --seconds {math.ceil(1.2 * seconds * ENOUGH_CLIPS / costs.clips / 10) * 10}"


def pods_of(pool: Pool, partitions: int = topics.DATA_PARTITIONS) -> tuple[int, int]:
    """The number of pods of a pool, and of workers in each. There are no more pods than partitions."""
    each = -(-pool.workers // partitions)
    return -(-pool.workers // each), each


def _remedy(pool: Pool, setup: Setup) -> str:
    if pool.name == "master":
        return "fewer, longer clips: a job has one master"
    if pool.name.startswith("feed."):
        return "more ranks, or more threads that fetch (ESSP_FETCHES)"
    return "more cores" if setup.cores else "more of them"


def _rate(clips_per_s: float) -> str:
    return f"{clips_per_s:,.0f} clips/s" if clips_per_s >= 100 else f"{clips_per_s:.1f} clips/s"
