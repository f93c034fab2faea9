"""A job begins when each pool that its clips flow through has a worker; until then people see who is missing."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common import topics
from essp_common.errors import PermanentError
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.pb.v1.messages_pb2 import Heartbeat, Progress
from essp_common.runtime.troubles import Kind
from essp_common.wiring import Adapters
from essp_engine.worker.heartbeat import INTERVAL_S
from essp_master.config import MasterSettings
from essp_master.job.handshake import Handshake, workers_of
from essp_master.ledger.ledger import Ledger
from essp_master.pools.autoscaler import Autoscaler, Limits
from essp_master.pools.load import loads
from essp_master.pools.pool_watch import GONE_AFTER_S
from essp_master.pools.port import PoolSize
from essp_master.service import Master
from tests.harness.fleet import EVERYTHING, SIZES, Clock, Fleet, FleetOf, run_to_rest

ALL = ("decoder", "extractor.frame_diff", "trainer.small.rgb", "trainer.small.diff")
"""The pools of the job of `make_job`."""


class Bench:
    """Masters one after another over one job, whose workers are up when the test says so."""

    def __init__(self, adapters: Adapters, fleet: Fleet) -> None:
        self.adapters, self.fleet, self.clock = adapters, fleet, Clock()
        self.pools: set[str] = set()
        self.master: Master

    def master_begins(self, name: str = "m1", /, **settings: Any) -> Master:
        """A master that several share, as `essp master` starts it."""
        chosen = MasterSettings.model_validate({"history_s": 0.0, **settings})
        self.master = Master(self.adapters, chosen, name, recovers=True, clock=self.clock)
        self.master.recover()
        return self.master

    def up(self, *pools: str) -> None:
        """Have a worker in each of these pools, too."""
        self.pools |= set(pools)
        self.pass_time(0.0)

    def pass_time(self, seconds: float) -> None:
        """Let heartbeats come, and the master step and look."""
        until_s = self.clock.now_s + seconds
        while True:
            for pool in self.pools:
                beat = Progress(worker=f"{pool}-1", heartbeat=Heartbeat(pool=pool, gauges={"partitions": 64}))
                self.adapters.bus.publish(topics.PROGRESS, b"", beat.SerializeToString())
            self.master.step(0)
            self.master.step(0)
            self.master.look()
            if self.clock.now_s >= until_s:
                return
            self.clock.now_s = min(until_s, self.clock.now_s + INTERVAL_S)

    @property
    def issued(self) -> int:
        return self.master.status("small").counts.issued

    def said(self) -> list[str]:
        return [event.message for event in self.master.events("small") if "awaits" in event.data]


@pytest.fixture
def bench(adapters: Adapters, fleet_of: FleetOf) -> Bench:
    return Bench(adapters, fleet_of())


def test_seeds_go_out_when_each_pool_has_a_worker_and_not_before(bench: Bench) -> None:
    master = bench.master_begins()
    master.start(bench.fleet.job)
    for count in range(len(ALL)):
        bench.up(*ALL[:count])
        assert (bench.issued, bench.fleet.decode()) == (0, 0)
        assert master.status("small").awaits == ALL[count:]
        assert master.jobs()[0].why == f"it waits for a worker of {', '.join(ALL[count:])}"
    bench.up(*ALL)
    assert bench.issued > 0
    assert master.status("small").awaits == ()
    assert master.jobs()[0].why == ""
    run_to_rest(master, bench.fleet)
    assert bench.fleet.trained == {"trainer.rgb": EVERYTHING, "trainer.diff": EVERYTHING}
    assert bench.issued == sum(SIZES)


def test_the_rate_of_a_job_counts_from_its_first_seeds(bench: Bench) -> None:
    """Neither the wait for workers nor a pause is a part of it."""
    master = bench.master_begins()
    master.start(bench.fleet.job)
    bench.pass_time(600.0)
    bench.up(*ALL)
    run_to_rest(master, bench.fleet)
    bench.clock.now_s += 20.0
    done = master.status("small").progress.done
    assert master.status("small").progress.clips_per_s == done / 20.0
    master.pause("small")
    bench.clock.now_s += 20.0
    assert master.status("small").progress.clips_per_s == 0
    master.resume("small")
    bench.clock.now_s += 10.0
    assert master.status("small").progress.clips_per_s == 0


def test_a_job_whose_workers_are_up_begins_at_once_and_nothing_is_said(bench: Bench) -> None:
    bench.master_begins()
    bench.up(*ALL)
    bench.master.start(bench.fleet.job)
    assert bench.issued > 0
    assert bench.said() == []


def test_people_see_who_is_missing_and_when_it_is_over(bench: Bench) -> None:
    master = bench.master_begins()
    master.start(bench.fleet.job)
    bench.up("decoder", "trainer.small.rgb")
    limit = master.status("small").bottleneck
    assert limit is not None
    assert limit.part == "extractor.frame_diff"
    words = "The job begins when its workers are up; it waits for an extractor of frame_diff and trainer diff."
    assert limit.words == words
    bench.up(*ALL)
    everybody = "a decoder, an extractor of frame_diff, trainer rgb and trainer diff"
    first, second, last = bench.said()
    assert first == f"job small: waits for {everybody}; it begins when each is up"
    assert second == "job small: waits for an extractor of frame_diff and trainer diff; it begins when each is up"
    assert last == "job small: begins, as workers of all pools are up"


def test_a_pool_that_nobody_starts_is_a_condition_and_holds_the_job_no_longer_than_set(bench: Bench) -> None:
    master = bench.master_begins(ready_s=120.0)
    master.start(bench.fleet.job)
    bench.up("decoder", "extractor.frame_diff", "trainer.small.rgb")
    bench.pass_time(GONE_AFTER_S + INTERVAL_S)
    [found] = master.conditions.present
    assert (found.kind, found.subject) == (Kind.NO_WORKERS, "trainer.small.diff")
    remedy = "start one (essp trainer --job=small --trainer=diff), or see in the logs"
    assert found.words.startswith(f"a job waits to begin, and no worker of the pool is up; {remedy}")
    assert bench.issued == 0
    bench.pass_time(120.0)
    assert bench.issued > 0
    assert bench.said()[-1] == "job small: begins without trainer diff: none came in time"
    assert not master.conditions.present


def test_where_the_platform_starts_workers_nobody_is_told_to_start_one(bench: Bench) -> None:
    master = bench.master_begins(ready_s=120.0, pools="kubernetes")
    master.start(bench.fleet.job)
    bench.up("decoder", "extractor.frame_diff", "trainer.small.rgb")
    bench.pass_time(GONE_AFTER_S + INTERVAL_S)
    [found] = master.conditions.present
    assert "start one" not in found.words
    assert "`essp pool ls`" in found.words


def test_a_job_need_not_wait(bench: Bench) -> None:
    bench.master_begins(ready_s=0.0).start(bench.fleet.job)
    assert bench.issued > 0


def test_trainers_that_get_their_turn_later_are_not_waited_for(bench: Bench) -> None:
    bench.master_begins(ranks=1).start(bench.fleet.job)
    bench.up("decoder", "extractor.frame_diff")
    assert bench.issued == 0
    bench.up("trainer.small.diff")
    assert bench.issued > 0


def test_extractors_of_several_features_count_for_each(bench: Bench) -> None:
    bench.master_begins().start(bench.fleet.job)
    bench.up("decoder", "trainer.small.rgb", "trainer.small.diff", "extractor.flow")
    assert bench.master.status("small").awaits == ("extractor.frame_diff",)
    bench.up("extractor.flow+frame_diff")
    assert bench.issued > 0


def test_a_job_that_has_nothing_left_to_decode_waits_for_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "closed", property(lambda _: sum(SIZES)))
    bench.master_begins().start(bench.fleet.job)
    bench.pass_time(1.0)
    assert bench.master.status("small").awaits == ()


def test_a_worker_that_has_gone_again_does_not_count(bench: Bench) -> None:
    bench.master_begins().start(bench.fleet.job)
    bench.up(*ALL[1:])
    bench.pools.discard("trainer.small.rgb")
    bench.pass_time(6 * INTERVAL_S)
    bench.up("decoder")
    assert bench.master.status("small").awaits == ("trainer.small.rgb",)
    assert bench.issued == 0


def test_a_pool_that_loses_its_workers_later_stops_nothing(bench: Bench) -> None:
    master = bench.master_begins()
    bench.up(*ALL)
    master.start(bench.fleet.job)
    bench.pools.clear()
    bench.pass_time(6 * INTERVAL_S)
    assert master.status("small").awaits == ()
    run_to_rest(master, bench.fleet)
    assert bench.fleet.trained == {"trainer.rgb": EVERYTHING, "trainer.diff": EVERYTHING}


@pytest.mark.parametrize("queues", [False, True], ids=["without a queue", "with a queue"])
def test_a_job_that_is_paused_while_it_waits_begins_only_when_it_is_resumed(bench: Bench, queues: bool) -> None:
    master = bench.master_begins(queue_budget=2**30 if queues else None)
    master.start(bench.fleet.job)
    master.pause("small")
    assert master.status("small").awaits == ()
    bench.up(*ALL)
    assert bench.issued == 0
    master.resume("small")
    bench.pass_time(1.0)
    assert master.status("small").state is JobState.RUNNING
    assert bench.issued > 0


def test_a_pause_takes_nothing_from_the_patience(bench: Bench) -> None:
    master = bench.master_begins(ready_s=120.0)
    master.start(bench.fleet.job)
    bench.pass_time(60.0)
    master.pause("small")
    bench.pass_time(600.0)
    master.resume("small")
    bench.pass_time(100.0)
    assert (bench.issued, master.status("small").awaits) == (0, ALL)
    bench.pass_time(40.0)
    assert bench.issued > 0


def test_a_job_that_waits_can_be_stopped(bench: Bench) -> None:
    master = bench.master_begins()
    master.start(bench.fleet.job)
    bench.pass_time(1.0)
    assert master.stop("small").state is JobState.STOPPED
    bench.up(*ALL)
    assert bench.issued == 0
    assert master.status("small").awaits == ()


def test_the_next_master_waits_as_well_but_holds_up_no_job_that_has_begun(bench: Bench) -> None:
    first = bench.master_begins()
    first.start(bench.fleet.job)
    bench.up("decoder")
    first._subscription.close()  # it is killed
    bench.pools.clear()
    second = bench.master_begins("m2")
    bench.pass_time(1.0)
    assert second.status("small").awaits == ALL
    bench.up(*ALL)
    assert bench.issued > 0
    bench.fleet.work()
    bench.pass_time(1.0)
    second._subscription.close()
    bench.pools.clear()
    third = bench.master_begins("m3")
    run_to_rest(third, bench.fleet)
    assert third.status("small").awaits == ()
    assert bench.fleet.trained == {"trainer.rgb": EVERYTHING, "trainer.diff": EVERYTHING}


def test_a_job_that_runs_in_one_process_with_its_workers_does_not_wait(bench: Bench) -> None:
    master = Master(bench.adapters, MasterSettings(), "m")
    master.start(bench.fleet.job)
    assert master.status("small").counts.issued > 0


def test_a_plan_of_which_no_seed_can_be_made_refuses_the_start_of_a_job_whose_workers_are_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise LookupError("no such video")

    bench.master_begins()
    bench.up(*ALL)
    monkeypatch.setattr("essp_master.effects.dispatch.Dispatch.prepared", broken)
    with pytest.raises(PermanentError, match="cannot begin: LookupError: no such video"):
        bench.master.start(bench.fleet.job)


def test_pools_without_workers_get_one_for_a_job_that_waits_and_keep_it(bench: Bench) -> None:
    bench.master_begins().start(bench.fleet.job)
    scaler, sizes = Autoscaler(), {"decoder": PoolSize(0, 0, min=0), "extractor.frame_diff": PoolSize(0, 0, min=0)}
    bench.pass_time(1.0)

    def decided(now_s: float) -> dict[str, int]:
        measured = loads(bench.master.pool_demands(), sizes, {}, {})
        return {it.pool: it.wanted for it in scaler.decide([(load, Limits(min=0)) for load in measured], now_s)}

    assert decided(0.0) == {"decoder": 1, "extractor.frame_diff": 1}
    sizes = {name: PoolSize(1, 0, min=0) for name in sizes}  # asked for, and its node takes minutes
    assert [decided(float(now_s)) for now_s in (200, 400, 600)] == 3 * [{"decoder": 1, "extractor.frame_diff": 1}]


def test_trainers_that_are_done_are_not_waited_for() -> None:
    handshake = Handshake(_JOB, 0, patience_s=60.0)
    assert handshake.look(ALL[:2], {"rgb", "diff"}, 0.0)
    assert not handshake.look(ALL[:2], {"diff"}, 0.0)
    assert handshake.lacking == ("trainer.small.rgb",)


@given(st.sets(st.sampled_from([*ALL, "extractor", "extractor.frame_diff+flow", "trainer.other.rgb", "predictor"])))
def test_it_may_begin_if_and_only_if_nothing_is_lacking(up: set[str]) -> None:
    features = {"extractor", "extractor.frame_diff", "extractor.frame_diff+flow"}
    complete = {"decoder", "trainer.small.rgb", "trainer.small.diff"} <= up and bool(features & up)
    handshake = Handshake(_JOB, 0, patience_s=60.0)
    assert handshake.look(up, set(), 0.0) is complete
    assert (handshake.lacking == ()) is complete
    assert not set(handshake.lacking) & up


_JOB = JobSpec.model_validate(
    {
        "name": "small",
        "output": "file:///out",
        "data": {"catalog": "file:///catalog.parquet"},
        "streams": {"rgb": {}, "diff": {"feature": "frame_diff", "params": {"length": 2}}},
        "trainers": {name: {"stream": name} for name in ("rgb", "diff")},
    }
)


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        (["decoder"], "a decoder"),
        (["decoder", "predictor"], "a decoder and a predictor"),
        (["decoder", "extractor.flow", "trainer.a.b.c"], "a decoder, an extractor of flow and trainer b.c"),
    ],
)
def test_what_is_waited_for_is_said_in_words(pools: list[str], words: str) -> None:
    assert workers_of(pools) == words


def test_workers_are_counted_once_however_many_jobs_wait_for_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, job = bench.master_begins(), bench.fleet.job
    for number in range(3):
        master.start(
            JobSpec.model_validate(job.model_dump() | {"name": f"j{number}", "output": f"{job.output}{number}"})
        )
    count = Mock(wraps=master.worker_registry.pools)
    monkeypatch.setattr(master.worker_registry, "pools", count)
    master._runner.issue()
    count.assert_called_once()
