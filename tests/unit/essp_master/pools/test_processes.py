"""Pools as processes of one machine."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from essp_common.errors import ConfigError, Unavailable
from essp_common.runtime.conditions import SEEN_S
from essp_common.runtime.process import process_name
from essp_common.runtime.troubles import Kind
from essp_engine.registrations import TrainerRow
from essp_master.config import MasterSettings
from essp_master.pools.processes import _LEAVE_S, ProcessDriver
from essp_master.pools.reconciler import PERIOD_S, Reconciler
from essp_master.pools.worker_registry import WorkerRegistry
from tests.harness.fleet import Clock
from tests.harness.waiting import LONGEST_S, until
from tests.unit.essp_master.pools.reconciler_bench import IMAGE

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


class Hung:
    """A worker that does not leave before it is killed."""

    pid, stdin = 1, None

    def __init__(self, clock: Clock) -> None:
        self.clock, self.killed = clock, False

    def poll(self) -> int | None:
        return -9 if self.killed else None

    def terminate(self) -> None: ...

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float = 0.0) -> int:
        if self.killed:
            return -9
        self.clock.now_s += timeout
        raise subprocess.TimeoutExpired("essp", timeout)


def test_workers_that_do_not_leave_are_waited_for_together(clock: Clock) -> None:
    driver = ProcessDriver({}, WAITS, clock)
    hung: list[Any] = [Hung(clock) for _ in range(5)]
    driver._leaving = [("decoder", worker, 0.0) for worker in hung]
    began_s = clock()
    driver.close()
    assert clock() - began_s == _LEAVE_S
    assert all(worker.killed for worker in hung)


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
