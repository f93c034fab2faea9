"""What each part, server and link of a setup can carry, and the sentence that says which is the bottleneck."""

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
"""Share of the rate asked for that counts as reached."""


@dataclass(frozen=True, slots=True)
class Servers:
    """What is known of the servers between the pools, in bytes a second; 0: nothing."""

    redis: float = 1e9
    """That one Redis server takes and gives, together."""
    redis_servers: int = 0
    """0: as many as are needed."""
    network: float = 0.0
    """Of the link of one Redis server, in one direction."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that carries so much and no more."""

    name: str
    clips_per_s: float
    remedy: str


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of a clip on its way."""

    read: float
    """From the object store, compressed."""
    written: float
    """Into the cache."""
    taken: float
    """Out of the cache, by all who want it."""


def traffic_of(spec: JobSpec, costs: Costs) -> Traffic:
    """A clip is written once, and read by the extractor of each stream and by each trainer of its frames."""
    readers = Counter({"clip": sum(stream.feature != "rgb" for stream in spec.streams.values())})
    for trainer in spec.trainers.values():
        readers["clip" if spec.streams[trainer.stream].feature == "rgb" else trainer.stream] += 1
    taken = sum(count * costs.bytes.get(part, 0.0) for part, count in readers.items())
    return Traffic(costs.read_bytes, sum(costs.bytes.values()), taken)


def limits_of(setup: Setup, traffic: Traffic, servers: Servers) -> list[Limit]:
    """All of them, the least first."""
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
    """How many Redis servers carry so many clips a second."""
    moved = (traffic.written + traffic.taken) * rate / servers.redis
    sent = max(traffic.written, traffic.taken) * rate / servers.network if servers.network else 0.0
    return max(1, -int(-max(moved, sent) // 1))


def verdict(setup: Setup, outcome: Outcome, limits: list[Limit], rate: float = 0.0) -> str:
    """The first bottleneck and the next one. `rate`: what was asked for; 0: as much as there is."""
    first, second = limits[:2]
    if rate and outcome.clips_per_s < FED * rate < first.clips_per_s:
        held = counted(setup.credits, "clip")
        return f"limits.budget: it holds {held}; next: {first.name}, at {_rate(first.clips_per_s)}"
    after = f"next: {second.name}, at {_rate(second.clips_per_s)}"
    return f"{first.name}, at {_rate(first.clips_per_s)} ({first.remedy}); {after}"


def between(limits: list[Limit], costs: Costs) -> tuple[float, float]:
    """Clips a second that a setup gives at least and at most, where `costs` are not known: those of the master, and of
    parts that were through with their clips at once, are mostly what the job itself costs, and hardly grow with the
    number of clips."""
    doubtful = {"master", "cores", *costs.rough}
    sure = [limit.clips_per_s for limit in limits if limit.name not in doubtful]
    return limits[0].clips_per_s, max(limits[0].clips_per_s, min(sure, default=limits[-1].clips_per_s))


def not_known(limits: list[Limit], costs: Costs, seconds: float) -> str:
    """The sentence where too little was measured to name a bottleneck, and what to do. `seconds`: how long it was
    measured."""
    low, high = between(limits, costs)
    found = f"not known, as only {counted(costs.clips, 'clip')} came through: between {_rate(low)} and {_rate(high)}"
    if costs.ended:
        return f"{found}. The job was over; give it more epochs, or a larger sampling.clips_per_epoch"
    return f"{found}. Measure longer, with --seconds {math.ceil(1.2 * seconds * ENOUGH_CLIPS / costs.clips / 10) * 10}"


def pods_of(pool: Pool) -> tuple[int, int]:
    """How many pods of a pool, and how many workers in each: no more pods than partitions have work."""
    each = -(-pool.workers // topics.DATA_PARTITIONS)
    return -(-pool.workers // each), each


def _remedy(pool: Pool, setup: Setup) -> str:
    if pool.name == "master":
        return "fewer, longer clips: a job has one master"
    if pool.name.startswith("feed."):
        return "more ranks, or more threads that fetch (ESSP_FETCHES)"
    return "more cores" if setup.cores else "more of them"


def _rate(clips_per_s: float) -> str:
    return f"{clips_per_s:,.0f} clips/s" if clips_per_s >= 100 else f"{clips_per_s:.1f} clips/s"
