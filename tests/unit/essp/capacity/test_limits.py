"""What a plan says of a setup whose costs are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from essp.capacity.limits import Servers, pods_of
from essp.capacity.measuring import Costs
from essp.capacity.plot import drawn
from essp.capacity.report import Plan, Wanted, plan
from essp.capacity.setups import Pool
from essp_common.errors import EsspError
from essp_common.job.spec import JobSpec

MILLISECONDS = {
    "master": 0.05,
    "decoder": 20.0,
    "extractor.flow": 50.0,
    "feed.a": 0.5,
    "trainer.a": 2.0,
    "feed.b": 1.0,
    "trainer.b": 4.0,
}
COSTS = Costs(
    {part: ms / 1000 for part, ms in MILLISECONDS.items()},
    {"clip": 1e6, "flow": 5e5},
    1e5,
    400,
    20.0,
    epoch_clips=10_000,
)


def job(budget: str = "2GB") -> JobSpec:
    """A trainer on frames and one on flow."""
    document: dict[str, Any] = {
        "name": "planned",
        "output": "file:///none",
        "data": {"catalog": "file:///none.parquet"},
        "clip": {"frames": 11},
        "streams": {"rgb": {}, "flow": {"feature": "flow", "params": {"length": 10}}},
        "trainers": {
            "a": {"stream": "rgb", "batch_size": 16, "augment": {"crop": 112}},
            "b": {"stream": "flow", "batch_size": 16, "augment": {"crop": 112}},
        },
        "limits": {"budget": budget},
    }
    return JobSpec.model_validate(document)


def planned(**wanted: Any) -> Plan:
    return plan(job(wanted.pop("budget", "2GB")), COSTS, Wanted(**wanted))


def test_pools_for_a_rate_are_large_enough() -> None:
    found = planned(rate=880.0, gpus=8, core_price=0.1, gpu_price=2.0)
    workers = {pool["name"]: pool["workers"] for pool in found.facts["pools"]}
    assert workers == {"master": 1, "decoder": 21, "extractor.flow": 52, "feed.a": 1, "feed.b": 2}
    assert found.facts["simulated_clips_per_s"] == pytest.approx(880, rel=0.03)
    # written once each; read by the extractor and trainer a (the clip), and by trainer b (the flow)
    assert found.facts["traffic"] == {
        "store_read": 88_000_000,
        "cache_written": 1_320_000_000,
        "cache_read": 2_200_000_000,
    }
    assert found.facts["redis_servers"] == 4
    assert found.facts["hour"] == {"cores": 77, "gpus": 8, "price": 23.7}
    assert found.facts["bottleneck"].startswith("redis, at 1,000 clips/s (another Redis")
    assert drawn(found.limits, found.outcome, 880.0).startswith(b"\x89PNG")


def test_a_budget_that_is_too_small_is_named() -> None:
    found = planned(rate=880.0, budget="96MB")
    assert found.facts["bottleneck"].startswith("limits.budget: it holds 64 clips; next: redis, at 1,000")
    assert found.facts["budget"]["enough"] > 96e6


def test_a_job_has_one_master_however_many_clips_are_asked_for() -> None:
    slow = replace(COSTS, seconds=COSTS.seconds | {"master": 0.005})
    found = plan(job(), slow, Wanted(rate=400.0))
    workers = {pool["name"]: pool["workers"] for pool in found.facts["pools"]}
    assert workers["master"] == 1
    assert found.facts["bottleneck"].startswith("master, at 200 clips/s (fewer, longer clips")


def test_a_pool_makes_all_streams_of_its_feature() -> None:
    spec = job()
    twice = spec.model_copy(update={"streams": {**spec.streams, "more": spec.streams["flow"]}})
    pools = plan(twice, COSTS, Wanted(rate=88.0)).facts["pools"]
    assert {pool["name"]: pool["workers"] for pool in pools}["extractor.flow"] == 11


def test_servers_and_links_are_limits_too() -> None:
    servers = Servers(redis=4e9, redis_servers=1, network=1e9)
    limits = {limit.name: limit.clips_per_s for limit in planned(rate=880.0, servers=servers).limits}
    assert limits["redis"] == pytest.approx(4e9 / 4e6)
    assert limits["network"] == pytest.approx(1e9 / 2.5e6)


def test_on_one_machine_the_cores_bind() -> None:
    found = planned(cores=2)
    assert found.facts["bottleneck"].startswith("cores, at 25.8 clips/s")
    assert found.facts["simulated_clips_per_s"] == pytest.approx(25.8, rel=0.05)
    assert found.facts["epoch"]["seconds"] == pytest.approx(10_000 / 25.8, rel=0.05)


def test_pods_are_no_more_than_partitions() -> None:
    assert pods_of(Pool("decoder", 0.01, 64, None)) == (64, 1)
    assert pods_of(Pool("decoder", 0.01, 200, None)) == (50, 4)
    for partitions in (1, 256):  # ESSP_PARTITIONS
        pools = planned(rate=2000.0, partitions=partitions).facts["pools"]
        assert all(pool["pods"] == min(pool["workers"], partitions) for pool in pools)
    assert any(pool["workers"] > 64 for pool in pools), "more than fit by default"


@pytest.mark.parametrize(("ended", "remedy"), [(False, "--seconds"), (True, "more epochs")])
def test_a_part_that_was_not_measured_is_named(ended: bool, remedy: str) -> None:
    """More time helps only where the job is not over."""
    costs = Costs({"master": 0.1}, {"clip": 1.0}, 1.0, 1, 1.0, ended)
    with pytest.raises(EsspError, match=f"nothing was measured of decoder; .*{remedy}"):
        plan(job(), costs, Wanted())


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [({"clips": 8}, "--seconds"), ({"clips": 8, "ended": True}, "epochs"), ({"rough": frozenset({"master"})}, "")],
    ids=["few clips", "a job that was over", "a master that was through at once"],
)
def test_no_bottleneck_is_named_where_too_little_was_measured(changes: dict[str, Any], remedy: str) -> None:
    """What the job costs is then divided by few clips, most of it with the master."""
    few: Costs = replace(COSTS, seconds=COSTS.seconds | {"master": 0.044}, **changes)
    found = plan(job(), few, Wanted(rate=880.0))
    assert found.facts["bottleneck"].startswith("not known")
    assert remedy in found.facts["bottleneck"]
    low, high = found.facts["between"]
    assert low == pytest.approx(1 / 0.044, rel=0.01)
    assert high > 880, "all but the master carry the rate"
    assert plan(job(), COSTS, Wanted(rate=880.0)).facts["between"] is None
