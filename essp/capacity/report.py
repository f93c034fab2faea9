"""A plan in figures: the measurements, the required workers, their expected performance, the bottleneck and the
costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from essp.capacity.limits import (
    FED,
    Limit,
    Servers,
    between,
    limits_of,
    not_known,
    pods_of,
    redis_servers,
    traffic_of,
    verdict,
)
from essp.capacity.measuring import Costs
from essp.capacity.setups import Setup, in_cluster, on_machine
from essp.capacity.simulation import Outcome, enough_credits, simulate
from essp_common import topics
from essp_common.job.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to plan for."""

    rate: float = 0.0
    """Clips per second for each trainer, in a cluster; 0: the highest rate of one machine."""
    cores: int = 1
    """Cores of the machine."""
    gpus: int = 0
    servers: Servers = field(default_factory=Servers)
    core_price: float = 0.0
    """Price of one core per hour."""
    gpu_price: float = 0.0
    partitions: int = topics.DATA_PARTITIONS
    """Of each data topic, so the most pods of a pool."""


@dataclass(frozen=True)
class Plan:
    """The resulting plan."""

    facts: dict[str, Any]
    """The figures for `--json` and the tables."""
    limits: list[Limit]
    outcome: Outcome


def plan(spec: JobSpec, costs: Costs, wanted: Wanted) -> Plan:
    """Plan a job from the measured cost of its clips."""
    traffic, servers = traffic_of(spec, costs), wanted.servers
    if wanted.rate:
        setup = in_cluster(spec, costs, wanted.rate)
        if not servers.redis_servers:
            servers = replace(servers, redis_servers=redis_servers(traffic, wanted.rate, servers))
    else:
        setup = on_machine(spec, costs, wanted.cores)
    outcome = simulate(setup)
    limits = limits_of(setup, traffic, servers)
    rate = wanted.rate or outcome.clips_per_s
    facts: dict[str, Any] = {
        "job": spec.name,
        "measured": {
            "clips": costs.clips,
            "clips_per_s": round(costs.clips_per_s, 2),
            "enough": costs.known,
            "milliseconds": {part: round(1e3 * seconds, 3) for part, seconds in costs.seconds.items()},
            "bytes": {part: round(count) for part, count in costs.bytes.items()},
            "read_bytes": round(costs.read_bytes),
        },
        "asked": wanted.rate or None,
        "pools": _pools(setup, outcome, wanted.partitions),
        "trainers": {one.name: {"computes": round(min(1.0, outcome.busy[one.name]), 3)} for one in setup.consumers},
        "cores_busy": round(outcome.cores_busy, 3) if setup.cores else None,
        "simulated_clips_per_s": round(outcome.clips_per_s, 2),
        "limits": [{"name": one.name, "clips_per_s": round(one.clips_per_s, 1)} for one in limits],
        "bottleneck": verdict(setup, outcome, limits, wanted.rate)
        if costs.known
        else not_known(limits, costs, costs.clips / costs.clips_per_s),
        "between": None if costs.known else [round(one, 1) for one in between(limits, costs)],
        "traffic": {
            "store_read": round(traffic.read * rate),
            "cache_written": round(traffic.written * rate),
            "cache_read": round(traffic.taken * rate),
        },
        "epoch": {"clips": costs.epoch_clips, "seconds": round(costs.epoch_clips / outcome.clips_per_s, 1)},
        "budget": {"bytes": spec.limits.budget, "clips": setup.credits},
    }
    if wanted.rate:
        facts["budget"]["enough"] = round(enough_credits(setup, FED * wanted.rate) * sum(costs.bytes.values()))
        facts["redis_servers"] = servers.redis_servers
        facts["hour"] = _hour(setup, wanted)
    return Plan(facts, limits, outcome)


def _pools(setup: Setup, outcome: Outcome, partitions: int) -> list[dict[str, Any]]:
    found = []
    for pool in setup.pools:
        pods, each = pods_of(pool, partitions)
        found.append(
            {
                "name": pool.name,
                "workers": pool.workers,
                "pods": pods,
                "workers_a_pod": each,
                "busy": round(min(1.0, outcome.busy[pool.name]), 3),
                "most_clips_per_s": round(pool.most, 1),
            }
        )
    return found


def _hour(setup: Setup, wanted: Wanted) -> dict[str, float]:
    cores = sum(pool.workers for pool in setup.pools)
    price = cores * wanted.core_price + wanted.gpus * wanted.gpu_price
    return {"cores": cores, "gpus": wanted.gpus, "price": round(price, 2)}
