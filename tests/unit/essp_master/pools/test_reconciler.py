"""Pools are kept: by the autoscaler, by hand, and by registrations."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from essp_common.errors import ConfigError, EsspError, NotFound, PermanentError, Unavailable
from essp_common.runtime.conditions import Condition
from essp_common.runtime.troubles import Kind
from essp_engine.registrations import ExtractorRow, TrainerRow
from essp_master.lifecycle.defects import Defects
from essp_master.pools.port import CannotNow, PoolSize
from essp_master.pools.reconciler import Reconciler
from essp_master.pools.rules import PoolRule
from essp_master.pools.trainer_ranks import TrainerRanks
from essp_master.pools.worker_registry import WorkerRegistry
from essp_master.status.pool_demand import PoolDemand
from tests.harness.fleet import Clock
from tests.harness.statuses import WHEN
from tests.harness.waiting import until
from tests.unit.essp_master.pools.reconciler_bench import DEPTH, IMAGE, ReconcilerBench, Recorded, job, training


def test_a_pool_whose_trainers_wait_grows_and_says_why() -> None:
    bench = ReconcilerBench(decoder=1)
    bench.pass_time(120, decoded_per_s=5.0, wait=0.5)
    assert bench.driver.replicas["decoder"] >= 3
    assert "trainers wait 50 %" in bench.reconciler.events()[-1].message
    assert bench.driver.said == [(event.pool, event.message) for event in bench.reconciler.events()]
    (view,) = bench.reconciler.pools()
    assert (view.name, view.saturation) == ("decoder", "bottleneck")


def test_a_pool_keeps_the_bounds_it_was_made_with_until_people_say_others() -> None:
    bench = ReconcilerBench(decoder=1)
    bench.driver.bounds = (1, 2)
    bench.pass_time(120, decoded_per_s=5.0, wait=0.5)
    assert bench.driver.replicas["decoder"] == 2
    assert bench.reconciler.pools()[0].rule == PoolRule(min=1, max=2)
    bench.reconciler.set("decoder", PoolRule(max=8), "ann")
    bench.pass_time(120, decoded_per_s=5.0, wait=0.5)
    assert bench.driver.replicas["decoder"] > 2


@pytest.mark.parametrize(("cores", "lanes", "most"), [(2, 2, 1), (2, 1, 2), (8, 2, 4), (2, 16, 1)])
def test_workers_that_share_cores_are_no_more_than_keep_these_busy(cores: int, lanes: int, most: int) -> None:
    bench = ReconcilerBench(decoder=1)
    bench.driver.cores, bench.lanes = cores, lanes
    bench.pass_time(600, decoded_per_s=0.5, wait=0.9)
    assert bench.driver.replicas["decoder"] == most
    (pool,) = bench.reconciler.pools()
    assert f"the {cores} cores of this machine busy" in pool.reason
    assert "maximum" not in pool.reason, f"that is {pool.rule.max}"


def test_a_pool_that_people_have_made_larger_than_its_machine_stays_so() -> None:
    bench = ReconcilerBench(decoder=3)
    bench.driver.cores = bench.lanes = 2
    bench.pass_time(300, decoded_per_s=0.5, wait=0.9)
    assert bench.driver.replicas["decoder"] == 3


@pytest.mark.parametrize(("kind", "subject"), [(Kind.UNASSIGNED, "decoder"), (Kind.BUS_STALLED, "master")])
def test_a_pool_whose_workers_cannot_work_does_not_grow(kind: Kind, subject: str) -> None:
    bench = ReconcilerBench(decoder=1)
    bench.conditions = [Condition(kind=kind, subject=subject, words="no answer", since=WHEN)]
    bench.pass_time(300, decoded_per_s=5.0, wait=0.9)
    assert bench.driver.replicas["decoder"] == 1
    assert "no answer" in bench.reconciler.pools()[0].reason
    bench.conditions = [Condition(kind=kind, subject="extractor.flow", words="no answer", since=WHEN)]
    bench.conditions *= kind is Kind.UNASSIGNED
    bench.pass_time(120, decoded_per_s=5.0, wait=0.9)
    assert bench.driver.replicas["decoder"] > 1


def test_a_master_that_reads_nothing_changes_no_size_by_what_it_knew() -> None:
    """Whether the broker is silent is a condition only later."""
    bench = ReconcilerBench(decoder=1)
    bench.worker_registry.read(bench.clock())
    bench.pass_time(300, decoded_per_s=5.0, wait=0.9)
    assert bench.driver.replicas == {"decoder": 1}
    assert "no reports were read for" in bench.reconciler.pools()[0].reason


def test_sizes_are_seen_without_waiting_for_the_platform() -> None:
    """By who reads metrics; what the platform did not tell is not made up."""
    bench = ReconcilerBench(decoder=2)
    driver, reconciler = bench.driver, bench.reconciler
    assert reconciler.last_seen() == ()
    reconciler._try(reconciler.step)
    (pool,) = reconciler.last_seen()
    assert (pool.name, pool.replicas, pool.wanted) == ("decoder", 2, 2)

    def away() -> Mapping[str, PoolSize]:
        raise Unavailable("the platform does not answer")

    driver.sizes = away  # type: ignore[method-assign]
    assert list(reconciler.last_seen()) == [pool]
    reconciler._try(reconciler.step)
    assert reconciler.last_seen() == ()


def test_an_answer_of_the_platform_that_nobody_expects_ends_no_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a page of a proxy where a list of pods should be."""
    bench, defects = ReconcilerBench(decoder=2), Defects(Clock())
    reconciler = Reconciler(bench.driver, bench.worker_registry, list, attempt=defects.attempt)
    monkeypatch.setattr(bench.driver, "repair", lambda: "<html>".items)  # type: ignore[attr-defined]
    monkeypatch.setattr(reconciler, "_is_woken", lambda until_s: reconciler.drain())
    reconciler.run()
    assert "pools: AttributeError" in str(defects.troubles())
    assert reconciler.last_seen() == ()


def test_a_recommendation_that_is_not_followed_is_given_once() -> None:
    bench = ReconcilerBench(decoder=1)
    bench.driver.scale = lambda *_: None  # type: ignore[method-assign]
    bench.pass_time(300, decoded_per_s=5.0, wait=0.5)
    messages = [event.message.partition(":")[0] for event in bench.reconciler.events()]
    assert messages
    assert len(messages) == len(set(messages))


def test_a_pool_of_fixed_size_is_left_alone() -> None:
    bench = ReconcilerBench(decoder=1)
    bench.reconciler.set("decoder", PoolRule(replicas=2), "ann")
    bench.pass_time(60, decoded_per_s=5.0, wait=0.5)
    assert bench.driver.told == [("scale", "decoder", 2)]
    assert "ann set it to" in bench.reconciler.events()[0].message


def test_drift_is_repaired_as_soon_as_the_driver_sees_it() -> None:
    bench = ReconcilerBench(decoder=2)
    bench.reconciler.set("decoder", PoolRule(replicas=2), "ann")
    thread = threading.Thread(target=bench.reconciler.run)
    thread.start()
    try:
        until(lambda: hasattr(bench.driver, "changed"))
        bench.driver.replicas["decoder"] = 9
        bench.driver.changed()
        until(lambda: ("scale", "decoder", 2) in bench.driver.told)
        assert "9 -> 2" in bench.reconciler.events()[-1].message
    finally:
        bench.reconciler.drain()
        thread.join()
    assert bench.driver.told[-1] == ("close",)


class Restless(Recorded):
    """A driver that has something new to tell each time it is looked at."""

    def repair(self) -> list[str]:
        self.changed()
        return []


def test_a_reconciler_that_is_woken_all_the_time_still_decides() -> None:
    asked: list[int] = []

    def jobs() -> list[PoolDemand]:
        asked.append(1)
        return []

    reconciler = Reconciler(Restless({"decoder": 1}), WorkerRegistry(), jobs, period_s=0.01)
    thread = threading.Thread(target=reconciler.run)
    thread.start()
    try:
        until(lambda: len(asked) > 2)
    finally:
        reconciler.drain()
        thread.join()


def test_a_size_that_is_refused_does_not_stop_the_others() -> None:
    """As a policy of the cluster may: for one pool or for trainings, again and again."""

    class Refusing(Recorded):
        def scale(self, pool: str, replicas: int, spare: Sequence[str]) -> None:
            if pool == "decoder":
                raise PermanentError("403 denied by a policy")
            super().scale(pool, replicas, spare)

        def train(self, job: str, trainer: str, ranks: int, row: TrainerRow | None) -> None:
            raise ConfigError("there is no template")

    bench = ReconcilerBench(decoder=1, **{"extractor.depth": 1})
    driver = Refusing(bench.driver.replicas)
    bench.reconciler._driver = driver
    bench.reconciler._trainer_ranks = TrainerRanks(driver, 2)
    bench.jobs = [job()]
    driver.bounds = (2, 4)
    for _ in range(2):
        bench.reconciler.step()
        driver.bounds = (3, 4)
    assert driver.replicas == {"decoder": 1, "extractor.depth": 3}
    said = [event.message for event in bench.reconciler.events() if event.pool == "decoder"]
    assert said == [f"1 -> {wanted} was refused: 403 denied by a policy" for wanted in (2, 3)]


@pytest.mark.parametrize("error", [PermanentError("403 denied by a policy"), CannotNow("500 a webhook failed")])
def test_bounds_that_people_set_are_kept_where_the_size_is_refused(error: EsspError) -> None:
    class Refusing(Recorded):
        def scale(self, pool: str, replicas: int, spare: Sequence[str]) -> None:
            raise error

    bench = ReconcilerBench(decoder=1)
    bench.reconciler._driver = Refusing(bench.driver.replicas)
    bench.reconciler.set("decoder", PoolRule(min=2), "somebody")
    assert bench.reconciler.rule("decoder").min == 2
    assert [event.message for event in bench.reconciler.events()][-1] == f"1 -> 2 was refused: {error}"


def test_a_registration_that_is_refused_does_not_stop_the_others() -> None:
    bench = ReconcilerBench(decoder=1)
    bench.rows = {"depth": DEPTH, "hands": DEPTH.model_copy(update={"name": "hands"})}
    add = bench.driver.add_extractor

    def refuse(row: ExtractorRow) -> None:
        if row.name == "depth":
            raise PermanentError("422 Invalid")
        add(row)

    bench.driver.add_extractor = refuse  # type: ignore[method-assign]
    bench.reconciler.step()
    bench.reconciler.step()
    assert bench.driver.told == [("add", "hands")]
    told = [event.message for event in bench.reconciler.events() if event.pool == "extractor.depth"]
    assert told == [f"{IMAGE} cannot be run: 422 Invalid"]
    bench.driver.add_extractor = add  # type: ignore[method-assign]
    bench.reconciler.step()
    assert bench.driver.told[-1] == ("add", "depth")


def test_bounds_are_kept_at_once() -> None:
    bench = ReconcilerBench(decoder=5)
    bench.beat("busy", 1.0)
    bench.beat("idle", 0.0)
    bench.reconciler.set("decoder", PoolRule(max=4), "ann")
    assert bench.driver.told == [("scale", "decoder", 4, "idle", "busy")]
    with pytest.raises(NotFound, match="decoder"):
        bench.reconciler.set("encoder", PoolRule(), "ann")
    bench.driver.replicas["trainer.demo.rgb"] = 2
    with pytest.raises(ConfigError, match="ESSP_RANKS"):
        bench.reconciler.set("trainer.demo.rgb", PoolRule(replicas=9), "ann")


def test_what_is_registered_gets_a_pool_and_loses_it() -> None:
    bench = ReconcilerBench(decoder=1)
    bench.rows = {"depth": DEPTH}
    bench.reconciler.step()
    bench.reconciler.step()
    assert bench.driver.told == [("add", "depth")]
    assert bench.reconciler.rule("extractor.depth") == PoolRule(min=2, max=3)
    bench.rows = {"depth": DEPTH.model_copy(update={"max": 5})}
    bench.reconciler.step()
    assert bench.reconciler.rule("extractor.depth").max == 5
    bench.rows = {}
    bench.reconciler.step()
    assert bench.driver.told[-1] == ("remove", "extractor.depth")


def test_a_pool_that_an_earlier_master_made_of_a_registration_goes_with_it() -> None:
    bench = ReconcilerBench(decoder=1, **{"extractor.gone": 2, "extractor.depth": 2})
    bench.driver.registered = {"extractor.gone", "extractor.depth"}
    bench.rows = {"depth": DEPTH}
    bench.reconciler.step()
    assert bench.driver.told == [("add", "depth"), ("remove", "extractor.gone")]
    bench.driver.replicas["extractor.gone"] = 2  # the watch is late
    bench.reconciler.step()
    told = [event.message for event in bench.reconciler.events() if event.pool == "extractor.gone"]
    assert told == ["is no longer registered; its workers leave"]


def test_no_ranks_are_divided_before_the_jobs_are_known() -> None:
    driver = Recorded({})
    driver.present = {("demo", "rgb"): 2}
    known: list[bool] = []
    reconciler = Reconciler(
        driver, WorkerRegistry(), list, trainer_ranks=TrainerRanks(driver, 2), jobs_known=lambda: bool(known)
    )
    reconciler.step()
    assert driver.told == [], "its job may be one that this master has not read yet"
    known.append(True)
    driver.ended = {("demo", "rgb")}
    for _ in range(2):
        reconciler.step()
    assert driver.told == [("train", "demo", "rgb", 0)]


def test_predictors_grow_while_clips_wait_for_busy_ones_and_go_when_no_job_predicts() -> None:
    bench = ReconcilerBench(predictor=1)

    def pass_time(seconds: int, busy: float, *jobs: PoolDemand) -> int:
        for _ in range(0, seconds, 10):
            bench.clock.now_s += 10
            for number in range(bench.driver.replicas["predictor"]):
                bench.beat(f"p{number}", busy, "predictor")
            done = {"predictor": 20 * round(bench.clock.now_s)}
            bench.jobs = [replace(one, done=done) for one in jobs]
            bench.reconciler.step()
        return bench.driver.replicas["predictor"]

    predicts = job(trainers=(), predicts=True, waiting=40)
    assert pass_time(120, 0.2, predicts) == 1, "they wait for clips"
    assert pass_time(120, 1.0, replace(predicts, out_of_credit=False)) == 1, "they keep up"
    assert pass_time(120, 1.0, predicts) >= 3
    assert pass_time(600, 0.0) == 1


def test_aggregators_grow_while_more_waits_than_they_can_do_at_once_and_go_when_all_is_fused() -> None:
    bench = ReconcilerBench(aggregator=0)
    bench.driver.bounds, bench.lanes = (0, 4), 2
    trained = job(trainers=(replace(training("rgb", 0.0), final=True),))

    def pass_time(seconds: int, busy: float, jobs: int, candidates: int = 0) -> int:
        bench.jobs = [replace(trained, job=f"job{number}") for number in range(jobs)]
        for _ in range(0, seconds, 10):
            bench.clock.now_s += 10
            for number in range(bench.driver.replicas["aggregator"]):
                bench.beat(f"a{number}", busy, "aggregator", queue=0 if number else candidates)
            bench.reconciler.step()
        return bench.driver.replicas["aggregator"]

    bench.jobs = [job()]
    bench.reconciler.step()
    assert bench.driver.replicas["aggregator"] == 0, "its trainers are not done"
    assert pass_time(60, 1.0, jobs=1) == 1, "there is nothing for a second one"
    assert pass_time(60, 1.0, jobs=1, candidates=2) == 1, "it tries both at once"
    assert pass_time(60, 0.1, jobs=1, candidates=50) == 1, "it waits for the store"
    assert pass_time(60, 1.0, jobs=1, candidates=3) == 2
    assert pass_time(300, 1.0, jobs=3) == 3, "each fuses one of them"
    assert pass_time(300, 1.0, jobs=3, candidates=50) == 4
    assert "the maximum is 4" in bench.reconciler.pools()[0].reason
    assert pass_time(900, 0.0, jobs=0) == 0
