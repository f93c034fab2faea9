"""The queue of a master: who runs, who waits, what people see of it, and that no clip is lost or trained twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from essp.account import account_of
from essp.audit.invariants import check
from essp_common import topics
from essp_common.artifacts.history import History
from essp_common.errors import Conflict, Unavailable
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, JobSummary, QueueStatus
from essp_common.pb.v1.messages_pb2 import (
    AGGREGATOR,
    ClipReady,
    Control,
    DecodeSeed,
    Finished,
    Made,
    Progress,
    Trained,
)
from essp_common.wiring import Adapters
from essp_engine.preflight.output import Asked
from essp_master.config import MasterSettings
from essp_master.service import Master
from tests.harness.fleet import Clock, Fleet, make_job
from tests.harness.refused import refused

BUDGET_BYTES = 2**16
"""Of each job: room for 16 of its clips and more."""
CLIPS = [10, 4, 16]
EVERYTHING = [(number, index) for number, clips in enumerate(CLIPS) for index in range(clips)]


class Workers(Fleet):
    """The workers of one job among several."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for subscription in (*self._seeds, self._clips):
            subscription.close()
        bus = self.adapters.bus
        self._seeds = [bus.subscribe([topics.SEEDS], f"decoder of {self.job.name}")]
        self._clips = bus.subscribe([topics.CLIPS], f"extractor of {self.job.name}")

    def _extract(self, ready: ClipReady) -> None:
        if ready.clip.job == self.job.name:
            super()._extract(ready)

    @property
    def is_done(self) -> bool:
        """Everything is trained."""
        return self.trained == {"trainer.rgb": EVERYTHING}


class Bench:
    """Masters one after another, with room for some jobs of one kind, and the workers of each."""

    def __init__(self, adapters: Adapters, folder: Path) -> None:
        self._adapters = adapters
        self._folder = folder
        self._first = make_job(
            folder,
            epochs=1,
            streams={"rgb": {}},
            trainers={"rgb": {"stream": "rgb", "batch_size": 2, "augment": {"crop": 16}}},
        )
        self._settings: MasterSettings | None = None
        self._names = (f"m{number}" for number in count(1))
        self.clock = Clock()
        self.workers: dict[str, Workers] = {}
        self.master: Master

    def has_room_for(self, jobs: int, **settings: Any) -> Master:
        """Begin."""
        values = {"history_s": 0.0, "ready_s": 0.0, "queue_budget": jobs * BUDGET_BYTES, **settings}
        self._settings = MasterSettings.model_validate(values)
        return self.take_over()

    def take_over(self) -> Master:
        """Another master."""
        assert self._settings is not None
        self.master = Master(self._adapters, self._settings, next(self._names), True, self.clock)
        self.master.recover()
        self.tick()
        return self.master

    def die(self) -> None:
        """The master is killed."""
        self.master._subscription.close()

    def job(self, name: str, **more: Any) -> JobSpec:
        """A job of its own name and output."""
        return self._first.model_copy(update={"name": name, "output": f"file://{self._folder}/{name}", **more})

    def start(self, *names: str, staffed: bool = True, **more: Any) -> None:
        """Start jobs, whose workers are up (`staffed`); the first letter of a name is its team."""
        for name in names:
            spec = self.job(name, **more)
            if staffed:
                self.workers[name] = Workers(self._adapters, spec)
            self.clock.now_s += 1.0
            self.master.start(spec, asked=Asked(name[0]))

    def tick(self) -> None:
        """Time for the master to look at the queue."""
        self.clock.now_s += 1.0
        self.master.step(0)
        self.master.step(0)

    def work(self, *names: str) -> None:
        """The workers of these jobs do what they can, and the master hears of it."""
        while sum(self.workers[name].work() for name in names) + self.master.step(0):
            pass
        self.tick()

    def finish(self, name: str) -> None:
        """A job ends, with all of its clips."""
        assert self.workers[name].is_done
        self.workers[name].finish()
        self.tick()
        assert self.master.status(name).state is JobState.COMPLETED

    def jobs(self) -> dict[str, JobSummary]:
        """What people see in the list."""
        return {job.name: job for job in self.master.jobs()}

    def running(self) -> set[str]:
        """The names of those that run."""
        return {name for name, job in self.jobs().items() if job.state is JobState.RUNNING}

    def queue(self) -> list[str]:
        """The names of those that wait, in their order."""
        places = {job.queue.position: name for name, job in self.jobs().items() if job.queue}
        assert sorted(places) == list(range(1, len(places) + 1))
        return [places[position] for position in sorted(places)]

    def close(self) -> None:
        """All leave."""
        for workers in self.workers.values():
            workers.close()


@pytest.fixture
def bench(adapters: Adapters, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(adapters, tmp_path)
    yield made
    made.close()


def test_a_job_without_room_waits_and_runs_when_there_is_some(bench: Bench) -> None:
    master = bench.has_room_for(1)
    bench.start("a1", "a2")
    assert bench.running() == {"a1"}
    status = master.status("a2")
    assert (status.state, status.team) == (JobState.QUEUED, "a")
    assert status.queue == QueueStatus(position=1, reason="its budget is 64.0 KiB, and 0 B of 64.0 KiB are free")
    assert master.events("a2")[-1].message == f"job a2: number 1 in the queue: {status.queue.reason}"
    bench.work("a1")
    bench.workers["a2"].learn()
    command = bench.workers["a2"].commands[-1]
    assert (command.job, command.command, command.queued) == ("a2", Control.PAUSE, True)
    assert not master.status("a2").phases[0].issued
    bench.finish("a1")
    assert (bench.running(), bench.queue()) == ({"a2"}, [])
    bench.work("a2")
    bench.finish("a2")


def test_a_job_that_waits_can_be_paused_and_comes_back_to_the_queue(bench: Bench) -> None:
    master = bench.has_room_for(1)
    bench.start("a1", "a2")
    assert master.pause("a2").state is JobState.PAUSED
    assert bench.queue() == []
    assert master.resume("a2").state is JobState.QUEUED
    assert master.resume("a2").state is JobState.QUEUED, "twice is harmless"
    master.stop("a1")
    assert bench.running() == {"a2"}
    master.pause("a2")
    assert master.resume("a2").state is JobState.RUNNING, "there is room"


def test_what_a_quota_never_allows_is_refused(bench: Bench) -> None:
    master = bench.has_room_for(9, ranks=4, teams={"a": {"budget": "32KiB"}, "b": {"ranks": 1}})
    with refused("limits.budget", "range"):
        bench.start("a1")
    of_two = bench.job("b1")
    of_two = of_two.model_copy(update={"trainers": of_two.trainers | {"other": of_two.trainers["rgb"]}})
    with refused("trainers", "range"):
        master.validate(of_two, asked=Asked("b"))
    bench.start("b1")
    with refused("trainers", "range"):
        master.change("b1", {"trainers.other.stream": "rgb", "trainers.other.batch_size": 2})
    bench.start("c1")
    assert bench.running() == {"b1", "c1"}


def test_while_the_size_of_the_cache_is_not_known_nothing_new_runs(
    bench: Bench, adapters: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise Unavailable("the cache is away")

    master = bench.has_room_for(1, queue_budget=None)
    with monkeypatch.context() as patched:
        patched.setattr(adapters.cache, "usage", away)
        bench.start("a1")
        assert [job.queue.reason for job in master.jobs() if job.queue] == [
            "the frame cache does not answer, so it is not known how much it may hold"
        ]
    bench.start("a2")
    assert bench.running() == {"a1", "a2"}


def test_a_preempted_job_finishes_what_it_has_in_hand_and_goes_on_by_itself(bench: Bench, adapters: Adapters) -> None:
    """Whatever masters come and go meanwhile, each clip is trained once."""
    bench.has_room_for(2)
    bench.start("a1", "a2")
    workers = bench.workers["a2"]
    workers.learn()
    workers.decode()
    workers.train("trainer.rgb", 3)
    bench.start("b1")
    assert (bench.running(), bench.queue()) == ({"a1"}, ["b1", "a2"])
    told = bench.jobs()["a2"].queue
    assert told is not None
    assert told.reason == "it made room for a job of another team, and continues when there is room again"
    bench.tick()
    told = bench.jobs()["b1"].queue
    assert told is not None
    assert told.reason == "it starts when a job of another team has finished the current work"
    bench.die()
    bench.take_over()
    assert (bench.running(), bench.queue()) == ({"a1"}, ["b1", "a2"]), "the next master knows who waits"
    assert bench.jobs()["a2"].team == "a"
    bench.work("a2")
    assert (bench.running(), bench.queue()) == ({"a1", "b1"}, ["a2"])
    assert 3 < len(workers.trained["trainer.rgb"]) < len(EVERYTHING), "what it had in hand, and no more"
    bench.work("b1", "a2")
    bench.die()
    bench.take_over()
    assert (bench.running(), bench.queue()) == ({"a1", "b1"}, ["a2"])
    bench.work("b1", "a2")
    bench.finish("b1")
    assert bench.running() == {"a1", "a2"}
    bench.work("a1", "a2")
    for name in ("a1", "a2"):
        bench.finish(name)
    for name in ("a1", "a2", "b1"):
        history = History(adapters.stores.under(bench.workers[name].job.output))
        while (newest := history.newest()) is None or newest.state != JobState.COMPLETED:
            bench.tick()
        account = account_of(history.read())
        findings = check(account, None, bench.master.status(name), account.last_ms)
        assert [(f.invariant, f.violations) for f in findings if f.holds is False] == []


def test_bytes_that_are_lost_while_a_job_finishes_are_made_again(bench: Bench) -> None:
    """Otherwise its trainers would wait for them, and it would hold all the rest for as long."""
    bench.has_room_for(1)
    bench.start("a1")
    workers = bench.workers["a1"]
    workers.learn()
    workers.lose_seeds()
    bench.start("a2", priority=1)
    bench.work("a1", "a2")
    assert bench.running() == set()
    bench.clock.now_s += 100.0
    bench.tick()
    bench.work("a1", "a2")
    assert (bench.running(), bench.queue()) == ({"a2"}, ["a1"])


class Crew:
    """Workers of all jobs together, who make and train at once what was issued for a job."""

    def __init__(self, adapters: Adapters) -> None:
        self._bus = adapters.bus
        self._seeds = adapters.bus.subscribe([topics.SEEDS], "decoder")
        self._units: dict[str, list[DecodeSeed]] = defaultdict(list)

    def work(self, *names: str) -> int:
        """Do what there is to do for these jobs; how many work units there were."""
        for record in self._seeds.poll(10_000, 0):
            unit = DecodeSeed.FromString(record.value)
            self._units[unit.job].append(unit)
            self._seeds.done(record)
        units = [unit for name in names for unit in self._units.pop(name, [])]
        for unit in units:
            indices = [seed.index for seed in unit.seeds]
            phase: Any = {"purpose": unit.purpose, "epoch": unit.epoch, "indices": indices}
            self._report(unit, made=Made(bytes=[1000] * len(indices), **phase))
            self._report(unit, trained=Trained(job=unit.job, consumer="trainer.rgb", **phase))
        return len(units)

    def finish(self, name: str) -> None:
        """The aggregator's word."""
        finished = Finished(job=name, stage=AGGREGATOR, uri="file:///model")
        self._report(DecodeSeed(job=name), finished=finished)

    def _report(self, unit: DecodeSeed, **event: Any) -> None:
        progress = Progress(job=unit.job, worker="w1", fence=unit.fence, **event)
        self._bus.publish(topics.PROGRESS, unit.job.encode(), progress.SerializeToString())

    def close(self) -> None:
        """Leave."""
        self._seeds.close()


def test_twenty_jobs_of_three_teams_share_what_five_may_take_up(bench: Bench, adapters: Adapters) -> None:
    """What people see, step by step, and in which order all of them end."""
    bench.has_room_for(5, history_s=60.0, teams={"a": {}, "b": {"weight": 2}, "c": {"jobs": 1}})
    crew = Crew(adapters)
    bench.start(*(f"a{n}" for n in range(10)), staffed=False)
    assert bench.running() == {"a0", "a1", "a2", "a3", "a4"}
    assert bench.queue() == ["a5", "a6", "a7", "a8", "a9"]
    bench.start("b0", "b1", "b2", "b3", "b4", "b5", "c0", "c1", "c2", "c3", staffed=False)
    assert bench.running() == {"a0", "a1"}, "three have to make room, and still have clips in hand"
    crew.work("a2", "a3", "a4")
    bench.tick()
    listed = bench.jobs()
    assert bench.running() == {"a0", "a1", "b0", "b1", "c0"}, "of a team, those that came last make room"
    assert {name for name, job in listed.items() if job.reason.startswith("it made room")} == {"a2", "a3", "a4"}
    reasons = {name: job.queue.reason for name, job in listed.items() if job.queue}
    assert reasons["b2"] == "its budget is 64.0 KiB, and 0 B of 320 KiB are free"
    assert (reasons["b3"], reasons["a2"]) == ("b2 comes first", "a job of another team comes first")
    order, ended = bench.queue(), list[str]()
    assert order[:4] == ["b2", "c1", "b3", "a2"], "the smallest share first, with twice the weight for b"
    assert [name for name in order if name[0] == "a"] == [f"a{n}" for n in range(2, 10)]
    while going := sorted(bench.running(), key=lambda name: bench.jobs()[name].created):
        assert len(going) <= 5
        assert sum(name[0] == "c" for name in going) <= 1
        while crew.work(*bench.jobs()) + bench.master.step(0):
            pass
        status = bench.master.status(going[0])
        assert status.progress.done == status.progress.total == sum(CLIPS)
        crew.finish(going[0])
        ended.append(going[0])
        bench.tick()
        if len(ended) == 7:
            before = bench.running(), bench.queue()
            bench.die()
            bench.take_over()
            assert (bench.running(), bench.queue()) == before
    assert len(ended) == 20
    assert all(job.state is JobState.COMPLETED for job in bench.jobs().values())
    for team in "abc":
        mine = [name for name in ended if name[0] == team]
        assert mine == sorted(mine), "in the order of their starts"
    crew.close()


def test_a_priority_can_be_changed_and_outlives_its_master(bench: Bench) -> None:
    master = bench.has_room_for(1)
    bench.start("a1", "a2", "a3", "a4")
    assert bench.queue() == ["a2", "a3", "a4"]
    assert master.prioritise("a4", -5).priority == -5
    master.prioritise("a3", -2)
    assert bench.queue() == ["a2", "a3", "a4"]
    master.prioritise("a4", -1)
    master.prioritise("a4", -1)
    assert bench.queue() == ["a2", "a4", "a3"]
    assert master.events("a4")[-1].message == "job a4: priority -1 instead of -5"
    bench.die()
    master = bench.take_over()
    assert bench.queue() == ["a2", "a4", "a3"]
    assert [bench.jobs()[name].priority for name in ("a2", "a3", "a4")] == [0, -2, -1]
    master.prioritise("a3", 7)
    assert bench.running() == set()
    assert bench.queue()[0] == "a3"
    bench.work("a1")
    assert bench.running() == {"a3"}
    assert bench.queue() == ["a1", "a2", "a4"]
    bench.work("a3")
    bench.finish("a3")
    with pytest.raises(Conflict, match="job a3 is completed"):
        master.prioritise("a3", 1)
