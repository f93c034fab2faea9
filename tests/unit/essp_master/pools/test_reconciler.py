"""Pools are kept: by the autoscaler, by hand, by registrations, and as real processes on one machine."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from essp_common.errors import ConfigError, EsspError, NotFound, PermanentError, Unavailable
from essp_common.features.declared import DeclaredOutput
from essp_common.pb.v1.messages_pb2 import Heartbeat
from essp_common.runtime.conditions import SEEN_S, Condition, Subject
from essp_common.runtime.process import process_name
from essp_common.runtime.troubles import Kind
from essp_master.config import MasterSettings
from essp_master.job.pool_demand import PoolDemand, TrainerDemand
from essp_master.pools.load import PoolRates, loads
from essp_master.pools.port import CannotNow, PoolSize, TrainingKey
from essp_master.pools.processes import ProcessDriver
from essp_master.pools.reconciler import PERIOD_S, Reconciler
from essp_master.pools.rules import PoolRule, PoolRules
from essp_master.pools.trainer_ranks import TrainerRanks
from essp_master.pools.worker_registry import WorkerRegistry
from essp_master.registrations import ExtractorRow, TrainerRow
from tests.harness.fleet import Clock
from tests.harness.statuses import WHEN
from tests.harness.waiting import LONGEST_S, until

IMAGE = "registry.example/depth@sha256:" + "0f" * 32
DEPTH = ExtractorRow(name="depth", image=IMAGE, output=DeclaredOutput(shape=("T",)), min=2, max=3)


class Recorded:
    """A driver that records its calls."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.replicas = sizes
        self.bounds = (1, 64)
        self.cores: int | None = None
        self.told: list[tuple[Any, ...]] = []
        self.registered: set[str] = set()
        self.present: dict[TrainingKey, int] = {}
        self.held_up = ""
        self.failing: set[TrainingKey] = set()
        self.ended: set[TrainingKey] = set()
        self.said: list[tuple[str, str]] = []

    def start(self, changed: Callable[[], None]) -> None:
        self.changed = changed

    def sizes(self) -> Mapping[str, PoolSize]:
        return {
            name: PoolSize(size, size, *self.bounds, self.cores, name in self.registered, self.held_up)
            for name, size in self.replicas.items()
        }

    def scale(self, pool: str, replicas: int, spare: Sequence[str]) -> None:
        self.told.append(("scale", pool, replicas, *spare))
        self.replicas[pool] = replicas

    def repair(self) -> list[str]:
        return []

    def add_extractor(self, row: ExtractorRow) -> None:
        self.told.append(("add", row.name))
        self.replicas[f"extractor.{row.name}"] = row.min
        self.registered.add(f"extractor.{row.name}")

    def remove(self, pool: str) -> None:
        self.told.append(("remove", pool))
        del self.replicas[pool]

    def train(self, job: str, trainer: str, ranks: int, row: TrainerRow | None) -> None:
        self.told.append(("train", job, trainer, ranks))
        self.ended -= set() if ranks else {(job, trainer)}

    def trainings(self) -> Mapping[TrainingKey, int]:
        return self.present

    def failed(self) -> Set[TrainingKey]:
        return self.failing

    def done(self) -> Set[TrainingKey]:
        return self.ended

    def tell(self, pool: str, sentence: str) -> None:
        self.said.append((pool, sentence))

    def troubles(self) -> Mapping[Subject, str]:
        return {}

    def close(self) -> None:
        self.told.append(("close",))


def training(name: str, wait: float, losses: Sequence[float] = ()) -> TrainerDemand:
    """A training on the stream of its name that waits for so much of its time."""
    return TrainerDemand(
        name=name,
        stream=name,
        model="small",
        final=False,
        clips_per_s=10.0,
        data_wait_ratio=wait,
        losses=tuple(losses),
    )


def job(wait: float = 0.5, decoded: int = 0, **changes: Any) -> PoolDemand:
    """A running job of two trainers that wait for so much of their time."""
    plain = PoolDemand(
        job="demo",
        created=WHEN,
        running=True,
        streams={"rgb": "rgb", "flow": "flow"},
        epoch_clips=100,
        backlog={"decoder": 5, "flow": 0},
        done={"decoder": decoded},
        out_of_credit=True,
        trainers=(training("rgb", wait), training("flow", wait)),
    )
    return replace(plain, **changes)


class ReconcilerBench:
    """A reconciler over a recorded driver."""

    def __init__(self, rules: PoolRules | None = None, /, **sizes: int) -> None:
        self.clock = Clock()
        self.driver = Recorded(sizes)
        self.worker_registry = WorkerRegistry()
        self.jobs: list[PoolDemand] = []
        self.rows: dict[str, ExtractorRow] = {}
        self.conditions: list[Condition] = []
        self.lanes = 1
        self.reconciler = Reconciler(
            self.driver,
            self.worker_registry,
            lambda: self.jobs,
            lambda: self.rows,
            clock=self.clock,
            conditions=lambda: self.conditions,
            rules=rules,
        )

    def beat(self, worker: str, busy: float, pool: str = "decoder") -> None:
        gauges = {"busy": busy, "in_hand": 1, "oldest": 0, "lanes": self.lanes}
        self.worker_registry.note(worker, Heartbeat(pool=pool, gauges=gauges), self.clock())

    def pass_time(self, seconds: int, decoded_per_s: float, wait: float) -> None:
        done = 0.0
        for _ in range(0, seconds, 10):
            self.clock.now_s += 10
            done += 10 * decoded_per_s
            for number in range(self.driver.replicas["decoder"]):
                self.beat(f"w{number}", 1.0 if wait else 0.1)
            self.jobs = [job(wait, round(done))]
            self.reconciler.step()


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
    assert f"the {cores} cores of this machine, {lanes} for each worker" in bench.reconciler.pools()[0].reason


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


def test_rates_are_of_what_was_added_since() -> None:
    rates = PoolRates()
    rates.note([job(decoded=1000)], 0.0)
    for second in range(1, 31):
        rates.note([job(decoded=1000 + 20 * second)], float(second))
    assert rates.per_s(30.0)["decoder"] == pytest.approx(20, rel=0.2)


# --- real processes ---

WAITS = (sys.executable, "-c", "import signal, time; signal.signal(15, lambda *_: exit(0)); print(1); time.sleep(600)")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def processes(clock: Clock) -> Iterator[ProcessDriver]:
    driver = ProcessDriver({"decoder": 2}, WAITS, clock)
    yield driver
    driver.close()


def size(driver: ProcessDriver, pool: str = "decoder") -> tuple[int, int]:
    found = driver.sizes()[pool]
    return found.replicas, found.ready


def children(driver: ProcessDriver) -> list[int]:
    return [worker.process.pid for pool in driver._pools.values() for worker in pool.workers]


@pytest.mark.processes
def test_a_worker_that_dies_is_started_again(processes: ProcessDriver, clock: Clock) -> None:
    assert processes.repair() == []
    assert size(processes) == (2, 0), "they have only just been started"
    clock.now_s += 60
    assert size(processes) == (2, 2)
    first, second = children(processes)
    os.kill(first, signal.SIGKILL)
    until(lambda: processes.sizes()["decoder"].ready == 1)
    (sentence,) = processes.repair()
    assert f"-{first} of decoder ended with -9; another is started" in sentence
    assert len(children(processes)) == 2
    assert second in children(processes)
    assert not processes.troubles(), "it had done its work"


@pytest.mark.processes
def test_workers_may_end_as_soon_as_they_are_started_for_days(clock: Clock) -> None:
    driver = ProcessDriver({"decoder": 1}, [sys.executable, "-c", "raise SystemExit(3)"], clock)
    try:
        driver.repair()
        driver._pools["decoder"].early = 5000
        driver._pools["decoder"].workers[0].process.wait()
        assert "another is started in 60 s" in driver.repair()[0]
    finally:
        driver.close()


@pytest.mark.processes
def test_workers_that_end_as_soon_as_they_are_started_are_told_of_and_not_started_all_the_time(clock: Clock) -> None:
    program = [sys.executable, "-c", "raise SystemExit(3)"]
    driver = ProcessDriver({"decoder": 1}, program, clock)
    starts, seen_s = 0, None
    begun_s = clock.now_s
    try:
        for _ in range(30):
            driver.repair()
            if driver._pools["decoder"].workers:
                starts += 1
                driver._pools["decoder"].workers[0].process.wait()
                assert size(driver) == (1, 0), "it is not up"
            clock.now_s += PERIOD_S
            if driver.troubles() and seen_s is None:
                seen_s = clock.now_s - begun_s
        assert seen_s is not None
        assert seen_s <= SEEN_S
        assert starts < 15, "each wait is twice as long"
        words = driver.troubles()[Kind.CRASHING, "decoder"]
        assert "with exit code 3" in words
        driver._program = WAITS
        clock.now_s += 60
        driver.repair()
        assert driver.troubles(), "it has not shown that it stays"
        clock.now_s += 60
        driver.repair()
        assert not driver.troubles()
        assert size(driver) == (1, 1)
    finally:
        driver.close()


@pytest.mark.processes
def test_workers_are_not_named_after_their_master(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESSP_WORKER", "the-master")
    code = "import os, sys; sys.exit(3 if 'ESSP_WORKER' in os.environ else 4)"
    driver = ProcessDriver({"decoder": 1}, [sys.executable, "-c", code], clock)
    try:
        driver.repair()
        driver._pools["decoder"].workers[0].process.wait(LONGEST_S)
        (said,) = driver.repair()
        assert "ended with 4;" in said
    finally:
        driver.close()


@pytest.mark.processes
def test_who_can_be_spared_leaves(processes: ProcessDriver) -> None:
    processes.repair()
    first, second = children(processes)
    processes.scale("decoder", 1, [f"{process_name(second)}.1f09", f"{process_name(first)}.77ab"])
    assert children(processes) == [first]


@pytest.mark.processes
def test_the_next_process_of_a_training_waits_until_the_one_before_has_saved(clock: Clock) -> None:
    saves = "import signal, sys; signal.signal(15, lambda *_: 0); print(1, flush=True)\nwhile True: signal.pause()"
    driver = ProcessDriver({}, [sys.executable, "-c", saves], clock)
    try:
        driver.train("demo", "rgb", 1, None)
        (before,) = children(driver)
        driver.train("demo", "rgb", 2, None)
        driver.repair()
        assert children(driver) == []
        os.kill(before, signal.SIGKILL)
        until(lambda: driver.repair() == [] and len(children(driver)) == 1)
        driver.train("demo", "rgb", 1, None)
        assert children(driver) == []
        clock.now_s += 60  # one that hangs is not waited for without end
        driver.repair()
        assert len(children(driver)) == 1
    finally:
        for worker in [*children(driver), *(worker.pid for _, worker, _ in driver._leaving)]:
            os.kill(worker, signal.SIGKILL)
        driver.close()


def test_a_machine_that_can_start_no_process_is_tried_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    driver = ProcessDriver({"decoder": 1}, WAITS, clock)
    reconciler = Reconciler(driver, WorkerRegistry(), list)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", fails)
        with pytest.raises(Unavailable, match=r"no worker `decoder` can be started: .*temporarily"):
            driver.repair()
        reconciler._try(reconciler.step)
    assert children(driver) == []


@pytest.mark.processes
def test_a_training_moves_to_another_number_of_ranks(processes: ProcessDriver) -> None:
    processes.train("demo", "rgb", 1, None)
    (before,) = set(children(processes)) - set(children(processes)[:2])
    processes.train("demo", "rgb", 1, None)
    assert before in children(processes)
    processes.train("demo", "rgb", 2, None)
    assert before not in children(processes)
    assert processes.sizes()["trainer.demo.rgb"].replicas == 1
    processes.train("demo", "rgb", 0, None)
    assert "trainer.demo.rgb" not in processes.sizes()


@pytest.mark.processes
def test_a_training_of_one_rank_leaves_and_comes_again(processes: ProcessDriver) -> None:
    """As one of several does."""
    processes.repair()
    others = set(children(processes))
    processes.train("demo", "rgb", 1, None)
    (before,) = set(children(processes)) - others
    processes.train("demo", "rgb", 0, None)
    assert "trainer.demo.rgb" not in processes.sizes()
    processes.train("demo", "rgb", 1, None)
    until(lambda: processes.repair() == [] and len(children(processes)) == len(others) + 1)
    (after,) = set(children(processes)) - others
    assert after != before


@pytest.mark.processes
def test_a_process_says_that_it_has_no_image(processes: ProcessDriver, caplog: pytest.LogCaptureFixture) -> None:
    row = TrainerRow(name="own", image=IMAGE, models=("small",))
    for _ in range(2):
        processes.train("demo", "rgb", 1, row)
    processes.train("demo", "flow", 1, None)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("trainer rgb of job demo runs as a process of this machine, with what is installed here")
    assert "registered trainer own" in said


@pytest.mark.processes
def test_every_pool_of_the_default_settings_can_be_started() -> None:
    sizes = MasterSettings().pool_sizes
    assert {"decoder", "extractor", "aggregator"} <= set(sizes)
    driver = ProcessDriver(sizes, WAITS)
    try:
        driver.repair()
        assert {name: found.replicas for name, found in driver.sizes().items()} == sizes
        assert len(children(driver)) == sum(sizes.values())
    finally:
        driver.close()


def has_ended(driver: ProcessDriver, pool: str) -> bool:
    return all(worker.process.poll() is not None for worker in driver._pools[pool].workers)


@pytest.mark.processes
def test_a_training_that_is_done_is_not_started_again_and_one_that_failed_is() -> None:
    for code, replicas in ((0, 0), (1, 1)):
        driver = ProcessDriver({}, (sys.executable, "-c", f"raise SystemExit({code})"))
        try:
            driver.train("demo", "rgb", 1, None)
            until(partial(has_ended, driver, "trainer.demo.rgb"))
            assert bool(driver.repair()) == bool(code)
            assert driver.sizes()["trainer.demo.rgb"].replicas == replicas
            assert driver.done() == (set() if code else {("demo", "rgb")})
            driver.train("demo", "rgb", 0, None)
            driver.train("demo", "rgb", 1, None)
            assert (driver.sizes()["trainer.demo.rgb"].replicas, driver.done()) == (1, set())
        finally:
            driver.close()


@pytest.mark.parametrize("pool", ["encoder", "decoder.x", "extractor.", "trainer.job", "; rm -rf /"])
def test_what_is_no_pool_is_refused(processes: ProcessDriver, pool: str) -> None:
    with pytest.raises(ConfigError, match="no pool"):
        processes.scale(pool, 1, [])


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
    reconciler.step()
    assert driver.told == [("train", "demo", "rgb", 0)]
