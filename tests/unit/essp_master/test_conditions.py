"""What keeps ESSP from working is told within seconds: an event, a metric, a line of doctor, and readiness says no."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import httpx
import pytest

from essp.doctor import master as doctor
from essp.doctor.finding import Level
from essp_common import topics
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import CacheUsage
from essp_common.errors import StorageFull
from essp_common.job.status import JobEvent
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import CheckpointReady, Heartbeat, Progress, Trouble
from essp_common.runtime.conditions import SEEN_S
from essp_common.runtime.troubles import MEANINGS, Kind
from essp_common.wiring import Adapters
from essp_engine.worker.heartbeat import INTERVAL_S
from essp_master import service
from essp_master.api.app import create_app
from essp_master.config import MasterSettings
from essp_master.service import _LOOK_S, Master
from tests.harness.fleet import Clock, Fleet, FleetOf, master_over, run_to_rest
from tests.harness.serving import served
from tests.harness.waiting import LONGEST_S, until


@dataclass
class Bench:
    """A master with a job whose workers only say that they are up."""

    adapters: Adapters
    fleet: Fleet
    clock: Clock = field(default_factory=Clock)
    workers: dict[str, tuple[str, dict[str, float], dict[str, str]]] = field(default_factory=dict)
    """Worker -> its pool, what its heartbeats say, and what troubles it."""

    def __post_init__(self) -> None:
        self.master: Master = master_over(self.adapters, self.clock)
        for pool in ("decoder", "extractor.frame_diff"):
            self.up(f"{pool}-1", pool)
        self.master.start(self.fleet.job)
        self.pass_time(0)

    def up(self, worker: str, pool: str, partitions: float = 64, troubles: Mapping[str, str] = {}) -> None:
        """Have a worker that says so."""
        self.workers[worker] = (pool, {"partitions": partitions}, dict(troubles))

    def pass_time(self, seconds: float) -> None:
        """Let heartbeats come and the master look, as often as they do."""
        until_s, next_beat_s = self.clock.now_s + seconds, self.clock.now_s
        while True:
            if self.clock.now_s >= next_beat_s:
                next_beat_s += INTERVAL_S
                for worker, (pool, gauges, troubles) in self.workers.items():
                    beat = Heartbeat(pool=pool, gauges=gauges, troubles=troubles)
                    progress = Progress(worker=worker, heartbeat=beat)
                    self.adapters.bus.publish(topics.PROGRESS, b"", progress.SerializeToString())
            self.master.step(0)
            self.master.look()
            if self.clock.now_s >= until_s:
                return
            self.clock.now_s += _LOOK_S

    def present(self) -> set[tuple[str, str]]:
        return {(it.kind.value, it.subject) for it in self.master.conditions.present}

    def events(self) -> list[JobEvent]:
        return [event for event in self.master.events("small") if event.kind == "condition"]


@pytest.fixture
def bench(adapters: Adapters, fleet_of: FleetOf) -> Bench:
    return Bench(adapters, fleet_of())


@contextmanager
def api(master: Master) -> Iterator[httpx.Client]:
    settings = MasterSettings(api_open=True)
    with (
        served(create_app(master, settings), settings) as url,
        httpx.Client(base_url=url, timeout=LONGEST_S, verify=False) as client,
    ):
        yield client


def no_room(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_pool_with_workers_and_work_but_no_partitions_is_told_of_everywhere(bench: Bench) -> None:
    bench.pass_time(60)
    assert not bench.present(), "nothing is wrong"
    bench.up("decoder-1", "decoder", partitions=0)
    bench.pass_time(SEEN_S)
    assert bench.present() == {("unassigned", "decoder")}
    (event,) = bench.events()
    assert "workers are up (1) and clips wait (" in event.message
    assert "no partitions" in event.message
    assert "restart it, or the workers" in event.message, "what to do"
    assert (event.data["kind"], event.data["subject"], event.data["over"]) == ("unassigned", "decoder", False)
    with api(bench.master) as client:
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert "not ready: unassigned: decoder: workers are up and work waits" in answer.text
        (listed,) = client.get("/v1/conditions").json()
        assert listed["words"] in event.message
        assert 'essp_condition{kind="unassigned",subject="decoder"} 1.0' in client.get("/metrics").text
        (line,) = [f for f in doctor.examine(str(client.base_url).rstrip("/"), "") if f.level is not Level.OK]
        assert line.level is Level.FAIL
        assert "unassigned: decoder: workers are up (1)" in line.what
        assert "broker" in line.remedy


def test_a_master_on_servers_for_trying_says_so_and_is_ready(adapters: Adapters, fleet_of: FleetOf) -> None:
    master = master_over(adapters, Clock(), trial_servers=True)
    master.look()
    assert {it.kind for it in master.conditions.present} == {Kind.TRIAL_SERVERS}
    with api(master) as client:
        assert client.get("/v1/conditions").json()[0]["kind"] == "trial-servers"
        assert "trial-servers" not in client.get("/readyz").text


def test_what_is_over_is_told_too_and_the_master_is_ready_again(bench: Bench) -> None:
    bench.up("decoder-1", "decoder", partitions=0)
    bench.pass_time(SEEN_S)
    bench.up("decoder-1", "decoder", partitions=64)
    bench.pass_time(INTERVAL_S + _LOOK_S)
    assert [event.data["over"] for event in bench.events()] == [False, True]
    assert bench.events()[-1].message == "decoder: unassigned is over"
    with api(bench.master) as client:
        assert client.get("/readyz").text == "ready\n"
        assert client.get("/v1/conditions").json() == []
        assert 'essp_condition{kind="unassigned",subject="decoder"} 0.0' in client.get("/metrics").text


@pytest.mark.parametrize("pool", ["trainer", "trainer.", "trainer.small", "trainer..rgb", "trainer.other.rgb"])
def test_what_calls_itself_a_training_and_is_none_of_this_job_is_no_event_of_it(bench: Bench, pool: str) -> None:
    """Anybody can send a heartbeat."""
    bench.up("stray", pool, troubles={Kind.STORAGE_FULL: "no room"})
    bench.up("rgb-1", "trainer.small.rgb", troubles={Kind.STORAGE_FULL: "no room"})
    bench.pass_time(SEEN_S)
    assert bench.present() == {("storage-full", pool), ("storage-full", "trainer.small.rgb")}
    assert [event.data["subject"] for event in bench.events()] == ["trainer.small.rgb"]


def test_a_job_says_which_of_its_workers_do_not_stay_up(bench: Bench) -> None:
    """Where it says why it does not get on, and not only in a list of conditions that nobody looks at."""
    wrong = dict.fromkeys(["trainer.other.rgb", "extractor.hog", "trainer.small.rgb"], "OOMKilled (limit 300Mi)")
    bench.master.conditions.add(lambda: {(Kind.CRASHING, pool): words for pool, words in wrong.items()})
    bench.pass_time(_LOOK_S)
    status = bench.master.status("small")
    assert status.reason == "trainer.small.rgb: OOMKilled (limit 300Mi)"
    assert status.bottleneck is not None
    assert status.bottleneck.words == f"{status.reason}."
    wrong.clear()
    bench.pass_time(_LOOK_S)
    assert not bench.master.status("small").reason


@pytest.mark.parametrize(
    ("present", "part", "blamed"),
    [
        (
            {(Kind.BUS_SILENT, "master"): "the broker is silent", (Kind.NO_WORKERS, "decoder"): "none"},
            "master",
            "broker",
        ),
        (
            {(Kind.CACHE_REFUSES, "decoder"): "Redis refuses", (Kind.BUS_SILENT, "extractor.hog"): "x"},
            "decoder",
            "Redis",
        ),
        ({(Kind.HELD_UP, "decoder"): "0/3 nodes", (Kind.BUS_SILENT, "trainer.other.rgb"): "x"}, "decoder", "0/3 nodes"),
        ({(Kind.STORAGE_SILENT, "trainer.small.rgb"): "no answer"}, "trainer.rgb", "no answer"),
    ],
    ids=["broker", "cache", "no room", "store"],
)
def test_servers_and_platform_are_blamed_before_the_workers_that_wait_for_them(
    bench: Bench, present: dict[tuple[Kind, str], str], part: str, blamed: str
) -> None:
    bench.master.conditions.add(lambda: present)
    bench.pass_time(_LOOK_S)
    status = bench.master.status("small")
    assert status.bottleneck is not None
    assert (status.bottleneck.part, blamed in status.bottleneck.words) == (part, True)
    assert blamed in status.reason
    assert bench.master.jobs()[0].reason == status.reason, "in the list as well"


def test_a_checkpoint_that_is_not_saved_is_the_reason_but_not_the_bottleneck(bench: Bench) -> None:
    """Training goes on; the job does not end."""
    bench.master.conditions.add(lambda: {(Kind.UNSAVED, "trainer.small.rgb"): "there is no bucket"})
    bench.pass_time(_LOOK_S)
    status = bench.master.status("small")
    assert status.reason == "trainer.small.rgb: there is no bucket"
    assert status.bottleneck is None or "bucket" not in status.bottleneck.words


def test_an_unexpected_error_does_not_end_the_looking(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = iter([lambda: 1 // 0, bench.master.drain])
    monkeypatch.setattr(service, "_LOOK_S", 0.0)
    monkeypatch.setattr(bench.master, "look", lambda: next(looks)())
    bench.master._watch()
    assert list(looks) == []
    assert "essp-conditions: unexpected error" in caplog.text


def test_a_group_that_is_dealt_anew_for_a_moment_is_no_condition(bench: Bench) -> None:
    bench.up("decoder-1", "decoder", partitions=0)
    bench.pass_time(10)
    bench.up("decoder-1", "decoder", partitions=64)
    bench.pass_time(60)
    assert not bench.events()


def test_a_worker_without_partitions_is_none_where_others_own_all_of_them(bench: Bench) -> None:
    bench.up("decoder-2", "decoder", partitions=0)
    bench.pass_time(60)
    assert not bench.present()


def test_partitions_that_nobody_owns_are_told_of(bench: Bench) -> None:
    """Those of a member that is gone, and that the broker still holds for it."""
    bench.up("decoder-1", "decoder", partitions=40)
    bench.pass_time(SEEN_S)
    (condition,) = bench.master.conditions.present
    assert "own 40 of 64 partitions" in condition.words


def test_no_partitions_are_no_harm_while_no_work_waits(bench: Bench) -> None:
    bench.up("extractor-1", "extractor.flow", partitions=0)
    bench.pass_time(60)
    bench.master.pause("small")
    bench.up("decoder-1", "decoder", partitions=0)
    bench.pass_time(60)
    assert not bench.present()


def test_work_for_a_pool_without_workers_is_told_of(bench: Bench) -> None:
    bench.pass_time(60)
    del bench.workers["decoder-1"]
    bench.pass_time(SEEN_S)
    assert bench.present() == {("no-workers", "decoder")}
    assert "no worker of the pool has reported for" in bench.events()[-1].message


def test_work_for_a_pool_that_was_never_up_is_told_of(bench: Bench) -> None:
    bench.workers.clear()
    master = master_over(bench.adapters, bench.clock)
    bench.master.stop("small")
    bench.master = master
    master.start(bench.fleet.job)
    bench.pass_time(SEEN_S)
    assert ("no-workers", "decoder") in bench.present()
    assert "no worker of the pool is up" in bench.events()[-1].message


def test_a_job_that_is_trained_and_has_no_aggregator_is_told_of(bench: Bench) -> None:
    run_to_rest(bench.master, bench.fleet)
    for trainer in bench.fleet.job.trainers:
        ready = CheckpointReady(job="small", trainer=trainer, uri=f"file:///{trainer}", final=True)
        bench.fleet.report(Progress(checkpoint=ready))
    bench.pass_time(SEEN_S)
    assert bench.present() == {("no-workers", "aggregator")}
    assert "a job waits to be fused and tested" in bench.events()[-1].message
    bench.up("aggregator-1", "aggregator")
    bench.pass_time(SEEN_S)
    assert not bench.present()


def test_a_master_that_waits_for_a_server_does_not_take_workers_for_gone(bench: Bench) -> None:
    """It reads no heartbeats meanwhile."""
    bench.pass_time(60)
    for _ in range(60):
        bench.clock.now_s += _LOOK_S
        bench.master.look()
    assert not bench.present()
    bench.pass_time(60)
    assert not bench.events()


def test_a_broker_that_carries_nothing_is_said_once_and_not_for_each_pool(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.adapters.bus, "troubles", lambda: {Kind.BUS_STALLED: "the broker acknowledges nothing"})
    workers, bench.workers = bench.workers, {}
    bench.pass_time(60)
    assert bench.present() == {("bus-stalled", "master")}
    monkeypatch.undo()
    bench.pass_time(_LOOK_S)
    bench.workers = workers
    bench.pass_time(60)
    assert not bench.present()
    assert [event.data["kind"] for event in bench.events()] == ["bus-stalled"] * 2


def test_what_is_over_for_the_master_is_not_said_by_heartbeats_from_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.adapters.cache, "troubles", lambda: {Kind.CACHE_SILENT: "redis://r does not answer"})
    bench.up("decoder-1", "decoder", 64, {Kind.CACHE_SILENT: "redis://r does not answer"})
    bench.pass_time(INTERVAL_S + _LOOK_S)
    monkeypatch.undo()
    bench.pass_time(0)
    bench.up("decoder-1", "decoder", 64)
    bench.pass_time(60)
    assert {event.data["subject"] for event in bench.events()} == {"master"}


def test_a_cache_that_does_not_answer_keeps_nobody_waiting(adapters: Adapters, fleet_of: FleetOf) -> None:
    """Neither those who ask for a status or the metrics, nor the master's own work."""
    answers = threading.Event()

    class Silent(MemoryCache):
        def usage(self) -> CacheUsage:
            answers.wait(LONGEST_S)
            return super().usage()

    fleet = fleet_of()
    master = master_over(replace(adapters, cache=Silent(2**20)), Clock())
    running = threading.Thread(target=master.run)
    running.start()
    try:
        master.start(fleet.job)
        assert master.status("small").cache is None
        with api(master) as client:
            assert client.get("/v1/jobs/small").json()["cache"] is None
            assert "essp_job_clips" in client.get("/metrics").text
        fleet.report(Progress(trouble=Trouble(trainer="rgb", reason="no room for it", unsaved=True)))
        until(lambda: any("trouble" not in e.kind and "no room" in e.message for e in master.events("small")))
    finally:
        answers.set()
        master.drain()
        running.join(LONGEST_S)


def test_what_workers_say_of_their_servers_is_told_once_for_each_pool(bench: Bench) -> None:
    for number in range(3):
        bench.up(f"decoder-{number}", "decoder", 64, {Kind.CACHE_SILENT: "redis://r does not answer"})
    bench.pass_time(INTERVAL_S + _LOOK_S)
    (condition,) = bench.master.conditions.present
    assert (condition.kind, condition.subject) == (Kind.CACHE_SILENT, "decoder")
    assert "3 of 3 workers" in condition.words
    assert "redis://r does not answer" in condition.words


def test_what_a_heartbeat_cannot_know_is_not_believed(bench: Bench) -> None:
    bench.up("decoder-1", "decoder", 64, {Kind.CRASHING: "x", "of another version": "y", Kind.BUS_STALLED: "z" * 5000})
    bench.pass_time(INTERVAL_S + _LOOK_S)
    (condition,) = bench.master.conditions.present
    assert condition.kind is Kind.BUS_STALLED
    assert len(condition.words) < 1000


def test_a_full_disk_is_told_of_until_there_is_room_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.adapters.stores.under(bench.fleet.job.output)
    assert isinstance(store, DirectoryStore)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", no_room)
        with pytest.raises(StorageFull):
            store.put("weights", b"123")
        bench.master.look()
    assert bench.present() == {("storage-full", "master")}
    assert "No space left on device" in bench.events()[-1].message
    store.put("weights", b"123")
    bench.master.look()
    assert not bench.present()
    assert bench.events()[-1].data["over"]


def test_a_checkpoint_that_cannot_be_saved_is_told_of_until_one_is(bench: Bench) -> None:
    bench.fleet.report(Progress(trouble=Trouble(trainer="rgb", reason="no room for it", unsaved=True)))
    bench.pass_time(_LOOK_S)
    assert bench.present() == {("unsaved", "trainer.small.rgb")}
    bench.fleet.report(Progress(trouble=Trouble(trainer="diff", reason="the loss is above that of guessing")))
    bench.fleet.report(Progress(checkpoint=CheckpointReady(job="small", trainer="rgb", uri="file:///rgb")))
    bench.pass_time(_LOOK_S)
    assert not bench.present()


def test_a_job_that_starts_meanwhile_is_told(bench: Bench) -> None:
    bench.up("decoder-1", "decoder", 64, {Kind.CACHE_SILENT: "redis://r does not answer"})
    bench.pass_time(INTERVAL_S + _LOOK_S)
    bench.master.stop("small")
    bench.fleet.finish()
    bench.master.step(0)
    before = bench.master.status("small").last_event
    bench.master.start(bench.fleet.job)
    bench.master.look()
    assert any(event.kind == "condition" for event in bench.master.events("small", before))


def test_every_kind_says_what_to_do() -> None:
    assert set(MEANINGS) == set(Kind)
    assert all(";" in meaning for meaning in MEANINGS.values()), "what it is; what to do"


def test_a_paused_pool_is_the_reason_why_a_job_stands_still_and_nothing_is_issued_again(bench: Bench) -> None:
    bench.master.conditions.add(lambda: {(Kind.PAUSED, "decoder"): "the pool is paused"})
    bench.pass_time(10)
    status = bench.master.status("small")
    assert status.bottleneck is not None
    assert status.bottleneck.part == "decoder"
    assert status.bottleneck.words == "The decoders are paused: `essp pool resume decoder` lets them work again."
    assert status.reason == "decoder: the pool is paused"
    bench.pass_time(10 * bench.master._settings.stall_s)
    assert bench.master.status("small").counts.reissued == 0
