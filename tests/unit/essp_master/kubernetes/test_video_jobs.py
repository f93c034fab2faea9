"""A job as an object of Kubernetes: what becomes of a VideoJob, and of the job that it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from kubernetes import client

from essp_common.errors import ConfigError, Conflict, EsspError, Unavailable
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.wiring import Adapters
from essp_master.api.app import create_app
from essp_master.config import MasterSettings
from essp_master.pools.kubernetes import KubernetesDriver
from essp_master.pools.port import PlatformRefuses
from essp_master.service import Master
from essp_master.video_jobs.claims import Claims
from essp_master.video_jobs.cluster import VideoJobApi
from essp_master.video_jobs.controller import VideoJobs
from essp_master.video_jobs.decision import as_started
from essp_master.video_jobs.resource import API_VERSION, FINALIZER, KIND, VideoJob, mirrored_spec
from tests.harness.fleet import Clock, Fleet, make_job, run_to_rest
from tests.harness.kubernetes_objects import NAMESPACE, PAUSES_S, job_of
from tests.harness.masters import master_named
from tests.harness.running import running
from tests.harness.serving import JSON, served
from tests.harness.waiting import LONGEST_S, until

LR = "trainers.rgb.optimizer.lr"
NAME = "small"


class Bench:
    """A master, the part of it that follows VideoJobs, and what a user does to these."""

    def __init__(self, api: client.ApiClient, adapters: Adapters, folder: Path) -> None:
        self.master, self.clock, self.claims = master_named("one", adapters), Clock(), Claims()
        self.job = make_job(folder)
        self.api = VideoJobApi(api, NAMESPACE)
        self.core: Any = client.CoreV1Api(api)
        self.custom: Any = client.CustomObjectsApi(api)
        self.where = (*self.api._where, NAME)
        self.training: set[str] = set()
        self.part: VideoJobs | None = None
        self.uid = ""
        """Of the VideoJob that was made last."""

    @contextmanager
    def following(self, **options: Any) -> Iterator[VideoJobs]:
        """The master follows VideoJobs within the block."""
        part = VideoJobs(
            self.api, self.master, self.claims, lambda: self.training, pauses_s=PAUSES_S, clock=self.clock, **options
        )
        with running(part):
            self.part = part
            yield part
        self.part = None

    def apply(self, called: str = NAME, **changes: Any) -> None:
        """Make a VideoJob of the job, with other values of fields."""
        spec = mirrored_spec(self.job) | changes
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": called}, "spec": spec}
        self.uid = self.api.create(body).metadata.uid

    def edit(self, **spec: Any) -> None:
        self.custom.patch_namespaced_custom_object(
            *self.where, {"spec": spec}, _content_type="application/merge-patch+json", field_manager="essp-master"
        )

    def delete(self) -> None:
        self.custom.delete_namespaced_custom_object(*self.where)

    @property
    def found(self) -> VideoJob | None:
        present = self.api.list().items
        return next((found for found in present if found.metadata.name == NAME), None)

    @property
    def held(self) -> bool:
        return self.found is not None and self.found.held

    def status(self) -> Any:
        return self.found.status if self.found else {}

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition."""
        found = {c["type"]: (c["status"], c["reason"]) for c in self.status().get("conditions", ())}
        return found.get(kind, ("", ""))

    def events(self) -> list[str]:
        events = self.core.list_namespaced_event(NAMESPACE).items
        found = [event for event in events if event.involved_object.uid == self.uid]
        return [event.reason for event in sorted(found, key=lambda event: int(event.metadata.resource_version))]

    def until(self, holds: Callable[[], Any]) -> None:
        """Look until it is so."""

        def looked() -> bool:
            if self.part is not None:
                self.part.look()
            return bool(holds())

        until(looked)

    def until_phase(self, phase: str) -> None:
        self.until(lambda: self.status().get("phase") == phase)

    def until_accepted(self) -> None:
        self.until(lambda: self.found and self.found.accepted)


@pytest.fixture
def bench(api: client.ApiClient, adapters: Adapters, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(api, adapters, tmp_path)
    yield made
    for body in made.api.list().items:
        if body.held:
            made.api.release(body)
        made.api.delete(body)
    made.master._subscription.close()


def started_by_request(bench: Bench, **changes: Any) -> Master:
    bench.master.start(JobSpec.model_validate(bench.job.model_dump(mode="json") | changes))
    return bench.master


def test_a_video_job_becomes_a_job_and_says_how_it_is_doing(bench: Bench, adapters: Adapters) -> None:
    fleet = Fleet(adapters, bench.job)
    with bench.following():
        bench.apply()
        bench.until_phase("Running")
        assert bench.condition("Ready") == ("True", "Running")
        assert bench.condition("Complete") == ("False", "Running")
        assert bench.held
        run_to_rest(bench.master, fleet)
        fleet.finish(uri="file:///out/model/manifest.json")
        bench.master.step(0)
        bench.until(lambda: bench.condition("Complete") == ("True", "Completed"))
        bench.until(lambda: not bench.held)
        status = bench.status()
        shown = {name: status[name] for name in ("epoch", "top1", "model", "observedGeneration")}
        assert shown == {"epoch": "2/2", "top1": "90.0 %", "model": "file:///out/model", "observedGeneration": 1}
        bench.delete()
        bench.until(lambda: bench.found is None)
    assert bench.master.state(NAME) is JobState.COMPLETED, "whose outputs stay"
    assert bench.events() == ["Pending", "Running", "Completed"]
    fleet.close()


class Settled(threading.Event):
    """Records how long it was waited for, and waits not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return self.is_set()


def test_what_is_written_about_many_is_not_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    api: Any = SimpleNamespace(list=lambda: None)
    part, settled, looks = VideoJobs(api, SimpleNamespace(), Claims()), Settled(), list[int]()
    monkeypatch.setattr(part, "_draining", settled)
    monkeypatch.setattr(part._informer, "start", lambda: None)

    def look() -> None:
        looks.append(len(settled.waits))
        part._wake()  # by each status that is written
        if len(looks) == 3:
            part.drain()

    monkeypatch.setattr(part, "look", look)
    part._wake()
    part.run()
    assert looks == [0, 1, 2]


@pytest.mark.parametrize(
    ("error", "passed_s", "seen"),
    [(Unavailable("no answer"), 0, False), (Unavailable("no answer"), 60, True), (PlatformRefuses("no CRD"), 0, True)],
)
def test_no_trainer_is_without_its_video_job_because_the_api_was_away_for_a_moment(
    error: EsspError, passed_s: float, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    api: Any = SimpleNamespace(list=lambda: None)
    clock, claims = Clock(), Claims()
    part = VideoJobs(api, SimpleNamespace(), claims, clock=clock)
    monkeypatch.setattr(part._informer, "start", lambda: None)

    def look() -> None:
        part.drain()
        clock.now_s += passed_s
        raise error

    monkeypatch.setattr(part, "look", look)
    part._wake()
    part.run()
    assert claims.seen.is_set() is seen


def test_what_cannot_be_a_job_is_refused_with_the_reason_until_it_is_mended(bench: Bench) -> None:
    with bench.following():
        bench.apply(data={"catalog": f"{bench.job.output}/none.parquet"})
        bench.until(lambda: bench.condition("Ready") == ("False", "Invalid"))
        assert bench.status()["phase"] == "Refused"
        assert "spec.data.catalog" in bench.status()["message"]
        assert not bench.held
        bench.edit(data={"catalog": bench.job.data.catalog})
        bench.until_phase("Running")
    assert bench.events() == ["Pending", "Refused", "Running"]


def test_a_server_that_is_away_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise Unavailable("the store does not answer")

    with bench.following(), monkeypatch.context() as patch:
        patch.setattr(bench.master, "validate", away)
        bench.apply()
        bench.until(lambda: bench.condition("Degraded") == ("True", "Unavailable"))
        assert bench.status()["phase"] == "Pending"
        patch.undo()
        bench.until_phase("Running")
        assert bench.condition("Degraded") == ("False", "AsExpected")


def test_a_deleted_video_job_stays_until_its_job_has_stopped_and_its_trainers_have_left(bench: Bench) -> None:
    with bench.following():
        bench.apply()
        bench.until_phase("Running")
        bench.training.add(NAME)
        bench.delete()
        bench.until_phase("Stopping")
        assert bench.master.state(NAME) is JobState.STOPPED
        assert bench.found is not None
        bench.training.clear()
        bench.until(lambda: bench.found is None)
    assert "Stopped" in bench.events()


def test_trainers_that_do_not_leave_hold_a_video_job_only_for_so_long(bench: Bench) -> None:
    with bench.following(release_s=120.0):
        bench.apply()
        bench.until_phase("Running")
        bench.training.add(NAME)
        bench.delete()
        bench.until_phase("Stopping")
        bench.clock.now_s += 121.0
        bench.until(lambda: bench.found is None)
    assert "TrainersLeft" in bench.events()


def test_a_master_that_comes_later_ends_what_was_deleted_meanwhile(bench: Bench) -> None:
    with bench.following():
        bench.apply()
        bench.until_phase("Running")
    bench.delete()
    assert bench.found is not None, "nobody is there who could stop its job"
    bench.claims = Claims()
    with bench.following():
        bench.until(lambda: bench.found is None)
    assert bench.master.state(NAME) is JobState.STOPPED


def test_a_job_that_a_request_has_started_is_taken_over_only_by_its_like(bench: Bench) -> None:
    started_by_request(bench)
    with bench.following():
        bench.apply(epochs=3)
        bench.until(lambda: bench.condition("Ready") == ("False", "NameTaken"))
        bench.until(lambda: bench.events() == ["Refused"])  # written after the status
        assert bench.master.present(NAME).epochs == 2
        bench.edit(epochs=2)
        bench.until_phase("Running")
        assert bench.held
        bench.apply("second", name=NAME)
        second = (*bench.where[:-1], "second")
        bench.until(lambda: bench.custom.get_namespaced_custom_object(*second).get("status"))
        assert "VideoJob small" in bench.custom.get_namespaced_custom_object(*second)["status"]["message"]
        assert bench.master.state(NAME) is JobState.RUNNING


def test_an_edit_reaches_the_job_and_leaves_alone_what_it_does_not_give(bench: Bench) -> None:
    with bench.following():
        bench.apply()
        bench.until_accepted()
        bench.master.change(NAME, {"aggregation.strategies": ["best"]})
        bench.edit(epochs=4, trainers={"rgb": {"optimizer": {"lr": 0.5}}})
        bench.until_accepted()
        present = bench.master.present(NAME)
        assert (present.epochs, present.trainers["rgb"].optimizer.lr) == (4, 0.5)
        assert [strategy.name for strategy in present.aggregation.strategies] == ["best"]
        bench.edit(limits={"budget": "128KiB"})
        bench.until(lambda: bench.condition("Degraded") == ("True", "ChangeRefused"))
        assert bench.condition("Ready") == ("True", "Running"), "it goes on as it was"
        assert bench.status()["observedGeneration"] == 3
        bench.edit(limits={"budget": "64KiB"})
        bench.until(lambda: bench.condition("Degraded") == ("False", "AsExpected"))
        bench.edit(trainers={"more": {"stream": "none"}})
        bench.until(lambda: "spec.trainers.more.stream" in bench.status()["message"])
        bench.edit(trainers={"more": None, "diff": None})
        bench.until(lambda: "spec.trainers.diff" in bench.status()["message"])
        assert bench.master.present(NAME).trainers.keys() == {"rgb", "diff"}


def test_a_complete_job_takes_no_edit_but_more_epochs(bench: Bench, adapters: Adapters) -> None:
    fleet = Fleet(adapters, bench.job)
    with bench.following():
        bench.apply()
        bench.until_accepted()
        run_to_rest(bench.master, fleet)
        fleet.finish()
        bench.master.step(0)
        bench.until_phase("Completed")
        bench.edit(trainers={"rgb": {"optimizer": {"lr": 0.5}}})
        bench.until(lambda: bench.condition("Degraded") == ("True", "ChangeRefused"))
        assert bench.status()["phase"] == "Completed"
        assert bench.events().count("Completed") == 1
        bench.edit(epochs=3)
        bench.until_phase("Running")
    fleet.close()


def test_a_video_job_that_is_applied_again_as_another_job_is_told_the_difference(
    adapters: Adapters, tmp_path: Path
) -> None:
    """Also if what was changed while the former ran, as its rate, is nothing for the new trainer."""
    master, document = master_named("one", adapters), make_job(tmp_path).model_dump(mode="json")
    document["trainers"]["rgb"]["optimizer"]["lr"] = 0.5
    job = JobSpec.model_validate(document)
    master.start(job)
    master.stop(job.name)
    document["streams"]["rgb"], document["clip"]["frames"] = {"feature": "hog"}, 15
    document["trainers"]["rgb"] = {"stream": "rgb", "model": "fisher_vector", "batch_size": 2}
    wanted = JobSpec.model_validate(document)
    with pytest.raises(ConfigError, match=r"holds another job, which differs in .*trainers\.rgb\.model"):
        master.validate(as_started(wanted, master.spec(job.name)))


def test_a_job_that_has_ended_runs_again_when_its_video_job_changes_and_not_before(bench: Bench) -> None:
    with bench.following():
        bench.apply()
        bench.until_accepted()
        bench.master.stop(NAME)
        bench.until(lambda: bench.status()["phase"] == "Stopped" and not bench.held)
        bench.edit(epochs=3, trainers={"rgb": {"optimizer": {"lr": 0.5}}})
        bench.until_phase("Running")
        present = bench.master.present(NAME)
        assert (present.epochs, present.trainers["rgb"].optimizer.lr) == (3, 0.5)
        assert bench.master.spec(NAME).trainers["rgb"].optimizer.lr != 0.5, "which its output remembers"


def test_a_video_job_pauses_its_job_or_leaves_that_to_requests(bench: Bench) -> None:
    with bench.following():
        bench.apply(paused=True)
        bench.until_phase("Paused")
        assert bench.found is not None
        assert not bench.found.began
        bench.edit(paused=False)
        bench.until_phase("Running")
        with pytest.raises(Conflict, match='"paused":true'):
            bench.claims.check_state(NAME, JobState.PAUSED)
        bench.edit(paused=True)
        bench.until_phase("Paused")
        bench.edit(paused=None)
        bench.until_accepted()
        assert bench.master.state(NAME) is JobState.PAUSED
        bench.claims.check_state(NAME, JobState.RUNNING)
        bench.master.resume(NAME)
        bench.until_phase("Running")


def test_requests_that_contradict_a_video_job_are_refused(bench: Bench) -> None:
    with bench.following():
        bench.apply()
        bench.until_accepted()
        claims = bench.claims
        claims.check_start(bench.job)
        contradictions: list[Callable[[], None]] = [
            lambda: claims.check_start(bench.job.model_copy(update={"epochs": 5})),
            lambda: claims.check_change(NAME, ["epochs"]),
            lambda: claims.check_remove(NAME),
        ]
        for refused in contradictions:
            with pytest.raises(Conflict, match="VideoJob small"):
                refused()
        claims.check_change(NAME, [LR])
        claims.check_state(NAME, JobState.STOPPED)
        claims.check_remove("other")


def lr_of(bench: Bench) -> float | None:
    """What the VideoJob says, once it is what the job has."""
    return found.wanted.trainers["rgb"].optimizer.lr if (found := bench.found) and found.accepted else None


def test_a_job_of_a_request_has_a_video_job_that_follows_it_if_asked_for(bench: Bench) -> None:
    master = started_by_request(bench)
    with bench.following(mirrors=True):
        bench.until_phase("Running")
        assert bench.found is not None
        assert bench.found.mirrored
        bench.until_accepted()
        master.change(NAME, {"epochs": 3})
        bench.until(lambda: bench.found and bench.found.spec.get("epochs") == 3 and bench.found.accepted)
        bench.claims.check_change(NAME, ["epochs"])
        default = bench.job.trainers["rgb"].optimizer.lr
        master.change(NAME, {LR: 0.5})
        bench.until(lambda: lr_of(bench) == 0.5)
        master.change(NAME, {LR: default})  # which its VideoJob leaves out
        bench.until(lambda: lr_of(bench) == default)
        master.change(NAME, {"epochs": 4})
        bench.until(lambda: bench.found and bench.found.spec.get("epochs") == 4 and bench.found.accepted)
        assert master.present(NAME).trainers["rgb"].optimizer.lr == default
        bench.delete()
        bench.until(lambda: bench.found is None)
        assert master.state(NAME) is JobState.STOPPED
        started_by_request(bench, epochs=4)
        bench.until_accepted()
        master.stop(NAME)
        bench.until_phase("Stopped")
        master.remove(NAME)
        bench.until(lambda: bench.found is None)


def test_a_video_job_of_another_release_is_left_to_that(bench: Bench) -> None:
    spec = mirrored_spec(bench.job)
    metadata = {"name": NAME, "labels": {"essp.io/release": "other"}}
    bench.api.create({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})
    with bench.following(release="essp"):
        bench.until(bench.claims.seen.is_set)
        assert bench.claims.holder(NAME) is None
    with bench.following(release="other"):
        bench.until_phase("Running")


def test_trainings_belong_to_the_video_job_and_stand_in_its_queue(
    bench: Bench, driver: KubernetesDriver, api: client.ApiClient
) -> None:
    driver._owner_of = bench.claims.owner_of
    kueue = {"kueue.x-k8s.io/queue-name": "gpus"}
    topology = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    metadata = {"name": "demo", "labels": kueue | {"team": "vision"}, "annotations": topology}
    spec = mirrored_spec(bench.job.model_copy(update={"name": "demo"}))
    bench.api.create({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})
    with bench.following():
        bench.until(lambda: (held := bench.claims.holder("demo")) and held.held)
        owner = bench.claims.holder("demo")
        assert owner is not None
        driver.train("demo", "rgb", 1, None)
        made = job_of(api)
        (reference,) = made.metadata.owner_references
        assert (reference.kind, reference.name, reference.uid) == (KIND, "demo", owner.metadata.uid)
        assert made.metadata.labels.items() >= kueue.items()
        assert "team" not in made.metadata.labels
        assert made.spec.template.metadata.annotations == topology
        driver.train("other", "rgb", 1, None)
        present = [job.metadata for job in client.BatchV1Api(api).list_namespaced_job(NAMESPACE).items if job.metadata]
        (other,) = [metadata for metadata in present if metadata.name and "other" in metadata.name]
        assert other.owner_references
        assert other.owner_references[0].kind == "ConfigMap"


def test_the_rest_api_says_which_video_job_a_request_contradicts(tmp_path: Path, adapters: Adapters) -> None:
    job, claims = make_job(tmp_path), Claims()
    metadata = {"name": NAME, "uid": "u", "generation": 1, "finalizers": [FINALIZER]}
    spec = mirrored_spec(job) | {"paused": False, "priority": 3}
    claims.follow([VideoJob.from_dict({"metadata": metadata, "spec": spec})])
    app = create_app(master_named("one", adapters), MasterSettings(), claims=claims)
    refused: list[tuple[str, str, Any]] = [
        ("POST", "/v1/jobs", job.model_dump(mode="json")),
        ("POST", "/v1/jobs:validate", job.model_dump(mode="json")),
        ("PATCH", f"/v1/jobs/{NAME}", {"epochs": 9}),
        ("PUT", f"/v1/jobs/{NAME}/priority", {"priority": 5}),
        ("POST", f"/v1/jobs/{NAME}:pause", None),
        ("DELETE", f"/v1/jobs/{NAME}", None),
    ]
    with served(app) as url, httpx.Client(base_url=url, timeout=LONGEST_S, headers=JSON) as http:
        answers = [http.request(method, path, json=body) for method, path, body in refused]
    assert [answer.status_code for answer in answers] == [409] * len(refused)
    assert all("VideoJob small" in answer.json()["detail"] for answer in answers)
