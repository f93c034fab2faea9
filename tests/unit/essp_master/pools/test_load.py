"""What pools are asked for and do, from the demands of all jobs."""

from __future__ import annotations

import pytest

from essp_master.pools.load import PoolRates, loads
from essp_master.pools.port import PoolSize
from tests.unit.essp_master.pools.reconciler_bench import job


def test_demand_and_queue_are_those_of_the_jobs_that_need_the_pool() -> None:
    sizes = {
        name: PoolSize(1, 1) for name in ("decoder", "extractor.flow", "extractor", "extractor.hog", "trainer.j.t")
    }
    demand = job(0.5, backlog={"decoder": 7, "flow": 3})
    found = {load.name: load for load in loads([demand], sizes, {}, {"decoder": 4.0, "extractor.flow": 2.0})}
    assert set(found) == set(sizes) - {"trainer.j.t"}
    wants = [(found[name].demand_per_s, found[name].queue) for name in list(sizes)[:4]]
    assert wants == [(20.0, 7), (20.0, 3), (20.0, 3), (0.0, 0)]
    assert [found[n].done_per_s for n in ("decoder", "extractor", "extractor.hog")] == [4.0, 2.0, 0.0]


def test_a_paused_job_wants_nothing() -> None:
    (load,) = loads([job(0.5, running=False)], {"decoder": PoolSize(1, 1)}, {}, {})
    assert (load.demand_per_s, load.queue, load.wait) == (0.0, 0, 0.0)


def test_rates_count_what_a_job_does_that_was_started_again() -> None:
    rates = PoolRates()
    rates.note([job(decoded=1000)], 0.0)
    rates.note([], 5.0)
    rates.note([job(decoded=40)], 20.0)
    assert rates.per_s(20.0)["decoder"] == pytest.approx(4)


def test_rates_are_of_what_was_added_since() -> None:
    rates = PoolRates()
    rates.note([job(decoded=1000)], 0.0)
    for second in range(1, 31):
        rates.note([job(decoded=1000 + 20 * second)], float(second))
    assert rates.per_s(30.0)["decoder"] == pytest.approx(20, rel=0.2)
