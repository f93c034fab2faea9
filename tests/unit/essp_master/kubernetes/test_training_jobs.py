"""Trainers as Jobs: created, moved to other ranks, created again, and reported when they fail."""

from __future__ import annotations

import copy
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubernetes import client

from essp_common.runtime.troubles import Kind
from essp_engine.registrations import Resources, TrainerRow
from essp_master.pools import kubernetes
from essp_master.pools.kubernetes import RELEASE, KubernetesDriver
from essp_master.pools.manifests import RANKS_PER_NODE, TRAINING, ranks_per_node, training_job, training_name
from essp_master.pools.port import PoolSize
from essp_master.pools.trainer_ranks import TrainerRanks
from tests.harness.kubernetes_api import Cluster, Refusal
from tests.harness.kubernetes_objects import (
    DEMO_RGB,
    DEPTH,
    IMAGE,
    NAMESPACE,
    OWNER,
    begun,
    ended,
    job_of,
    made_anew_before_deletion,
    repaired,
    seen,
    template,
    told,
)
from tests.harness.waiting import until
from tests.unit.essp_master.pools.reconciler_bench import job, training


def test_a_training_moves_to_another_number_of_ranks(api: client.ApiClient, driver: KubernetesDriver) -> None:
    driver.train("demo", "rgb", 2, None)
    first = job_of(api)
    assert (first.spec.completions, first.spec.completion_mode) == (2, "Indexed")
    assert first.spec.backoff_limit == 40, "a group of two fails twice"
    seen(driver, trainer_demo_rgb=PoolSize(2, 0, 0))
    driver.train("demo", "rgb", 2, None)
    assert job_of(api).metadata.uid == first.metadata.uid
    driver.train("demo", "rgb", 3, TrainerRow(name="big", image=IMAGE, models=("resnet50",)))
    repaired(driver, lambda: driver.sizes() == {"trainer.demo.rgb": PoolSize(3, 0, 0)})
    container = job_of(api).spec.template.spec.containers[0]
    assert container.image == IMAGE
    world = {"WORLD_SIZE": "3", "NNODES": "3", "RANKS_PER_NODE": "1"}
    assert {e.name: e.value for e in container.env} == {"ESSP_BUS": "kafka://k", **world}
    driver.train("demo", "rgb", 0, None)
    repaired(driver, lambda: driver.sizes() == {})
    assert client.BatchV1Api(api).list_namespaced_job(NAMESPACE).items == []


def test_a_trainer_runs_in_the_image_of_the_row_that_has_its_model(
    api: client.ApiClient, driver: KubernetesDriver
) -> None:
    """With the resources and the settings of the row; a trainer of another model in that of the chart."""
    resources, environment = Resources(cpu="2", memory="3Gi"), {"OMP_NUM_THREADS": "2"}
    row = TrainerRow(name="own", image=IMAGE, models=("ownnet",), resources=resources, environment=environment)
    own = replace(training("rgb", 0.0), model="ownnet")
    TrainerRanks(driver, 2).step([job(trainers=(own, training("flow", 0.0)))], {"own": row})
    repaired(driver, lambda: len(driver.sizes()) == 2)
    rgb, flow = (job_of(api, training_name("demo", name)).spec.template.spec.containers[0] for name in ("rgb", "flow"))
    assert (rgb.image, flow.image) == (IMAGE, "none")
    assert (rgb.resources.limits, flow.resources.limits["cpu"]) == ({"cpu": "2", "memory": "3Gi"}, "1500m")
    assert ({e.name for e in rgb.env} - {e.name for e in flow.env}) == {"OMP_NUM_THREADS"}
    assert rgb.args == ["trainer", "--job=demo", "--trainer=rgb"]


@pytest.mark.double  # a pod that is only said to be the Job's does not hold up the end of a real one
def test_a_successor_waits_for_the_pods_of_the_one_before(cluster: Cluster, driver: KubernetesDriver) -> None:
    """Never two groups of one training: they save under the same name."""
    driver.train("demo", "rgb", 1, None)
    cluster.put("pods", {"metadata": {"name": "rank-0", "labels": {"batch.kubernetes.io/job-name": DEMO_RGB}}})
    seen(driver, trainer_demo_rgb=PoolSize(1, 0, 0))
    first = cluster.objects["jobs", DEMO_RGB]["metadata"]["uid"]
    driver.train("demo", "rgb", 4, None)
    until(lambda: "deletionTimestamp" in cluster.objects["jobs", DEMO_RGB]["metadata"])
    assert driver.repair() == []
    assert cluster.objects["jobs", DEMO_RGB]["metadata"]["uid"] == first
    cluster.delete("pods", "rank-0")
    repaired(driver, lambda: driver.sizes() == {"trainer.demo.rgb": PoolSize(4, 0, 0)})


def test_a_new_master_finds_the_trainings_of_the_one_before(
    api: client.ApiClient, driver: KubernetesDriver, tmp_path: Path
) -> None:
    assert driver.trainings() == {}
    driver.train("demo", "rgb", 3, None)
    first = job_of(api).metadata.uid
    with closing(begun(api, tmp_path, lambda: None)) as successor:
        until(lambda: successor.trainings() == {("demo", "rgb"): 3})
        successor.train("demo", "rgb", 3, None)
        assert job_of(api).metadata.uid == first, "it goes on as it is"
        successor.train("demo", "rgb", 0, None)
        until(lambda: successor.trainings() == {})


def test_an_upgrade_reaches_the_trainings_that_run(
    api: client.ApiClient, driver: KubernetesDriver, tmp_path: Path
) -> None:
    """By another Job, which resumes; one whose template is as before goes on."""
    driver.train("demo", "rgb", 2, None)
    seen(driver, trainer_demo_rgb=PoolSize(2, 0, 0))
    first = job_of(api).metadata.uid
    driver.repair()
    assert job_of(api).metadata.uid == first
    file = tmp_path / "trainer-job.yaml"
    file.write_text(file.read_text().replace("value: kafka://k", "value: kafka://moved"))

    def moved() -> bool:
        jobs: list[Any] = client.BatchV1Api(api).list_namespaced_job(NAMESPACE).items
        return [job.spec.template.spec.containers[0].env[0].value for job in jobs] == ["kafka://moved"]

    repaired(driver, moved)
    assert job_of(api).metadata.uid != first
    seen(driver, trainer_demo_rgb=PoolSize(2, 0, 0))


def test_what_the_master_has_made_goes_with_the_release(cluster: Cluster, driver: KubernetesDriver) -> None:
    driver.train("demo", "rgb", 1, None)
    driver.add_extractor(DEPTH)
    assert (len(cluster.names("jobs")), len(cluster.names("deployments"))) == (1, 1)
    cluster.delete("configmaps", OWNER["metadata"]["name"])
    until(lambda: cluster.names("jobs") == cluster.names("deployments") == [])


def test_a_job_that_stands_in_a_queue_is_left_alone_and_says_so(cluster: Cluster, driver: KubernetesDriver) -> None:
    """As Kueue does it: it suspends the Job, labels it, and lets it go on later."""
    driver.train("demo", "rgb", 1, None)
    seen(driver, trainer_demo_rgb=PoolSize(1, 0, 0))
    body = copy.deepcopy(cluster.objects["jobs", DEMO_RGB])
    body["spec"]["suspend"] = True
    cluster.put("jobs", body)
    repaired(driver, lambda: "queue" in driver.sizes()["trainer.demo.rgb"].held_up)
    assert cluster.objects["jobs", DEMO_RGB]["metadata"]["uid"] == body["metadata"]["uid"]
    body["spec"]["suspend"] = False
    cluster.put("jobs", body)
    repaired(driver, lambda: not driver.sizes()["trainer.demo.rgb"].held_up)


def test_a_job_that_somebody_deletes_is_made_again(cluster: Cluster, driver: KubernetesDriver) -> None:
    driver.train("demo", "rgb", 2, None)
    seen(driver, trainer_demo_rgb=PoolSize(2, 0, 0))
    assert driver.repair() == []
    cluster.delete("jobs", DEMO_RGB)
    seen(driver)
    (sentence,) = driver.repair()
    assert "made again" in sentence
    seen(driver, trainer_demo_rgb=PoolSize(2, 0, 0))


def test_a_job_that_failed_is_told_once_and_left_alone(cluster: Cluster, driver: KubernetesDriver) -> None:
    driver.train("demo", "rgb", 2, None)
    seen(driver, trainer_demo_rgb=PoolSize(2, 0, 0))
    ended(cluster, "Failed", "PodFailurePolicy", "exit code 2")
    seen(driver)
    (sentence,) = driver.repair()
    assert "PodFailurePolicy exit code 2" in sentence
    assert f"kubectl delete job {DEMO_RGB}" in sentence
    assert driver.failed() == {("demo", "rgb")}
    assert "PodFailurePolicy" in driver.troubles()[Kind.CRASHING, "trainer.demo.rgb"], "a condition, a metric, an alert"
    (event,) = told(cluster)
    assert (event["type"], event["message"]) == ("Warning", sentence)
    assert event["involvedObject"]["kind"] == "Job"
    assert driver.repair() == []
    assert cluster.count("POST", "jobs") == 1


def pod_that_ended(number: int, code: int, reason: str, **more: Any) -> dict[str, Any]:
    """A pod of the training's Job."""
    ended = {"exitCode": code, "reason": reason, "finishedAt": datetime.now(UTC).isoformat()}
    container = {"name": "c", "image": IMAGE, "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Failed", "containerStatuses": [container | {"state": {"terminated": ended}}], **more}
    spec = {"containers": [{"name": "c", "resources": {"limits": {"memory": "300Mi"}}}]}
    labels = {"batch.kubernetes.io/job-name": DEMO_RGB}
    return {"metadata": {"name": f"{DEMO_RGB}-0-{number}", "labels": labels}, "spec": spec, "status": status}


@pytest.mark.double
def test_trainers_that_end_again_and_again_are_told_of(cluster: Cluster, driver: KubernetesDriver) -> None:
    """Their pods are never started again themselves, so none of them is ever said to be in a loop."""
    driver.train("demo", "rgb", 1, None)
    seen(driver, trainer_demo_rgb=PoolSize(1, 0, 0))
    about = Kind.CRASHING, "trainer.demo.rgb"
    cluster.put("pods", pod_that_ended(0, 1, "Error"))
    cluster.put("pods", pod_that_ended(1, 76, "Error"))
    evicted = {"type": "DisruptionTarget", "status": "True"}
    cluster.put("pods", pod_that_ended(2, 137, "Error", conditions=[evicted]))
    driver.repair()
    assert not driver.troubles(), "one alone may be chance, and the others were told to leave"
    cluster.put("pods", pod_that_ended(3, 1, "Error"))
    driver.repair()
    assert "2 pods have ended, the last one with exit code 1 (Error)" in driver.troubles()[about]
    cluster.put("pods", pod_that_ended(4, 137, "OOMKilled"))
    driver.repair()
    words = driver.troubles()[about]
    assert "3 pods have ended, the last one OOMKilled (limit 300Mi); raise controlPlane.trainer.resources" in words
    assert words in [event["message"] for event in told(cluster)]
    for name in cluster.names("pods"):
        cluster.delete("pods", name)
    driver.repair()
    assert not driver.troubles()


def test_a_job_of_which_some_ranks_are_done_and_others_not_is_made_again(
    cluster: Cluster, driver: KubernetesDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.train("demo", "rgb", 2, None)
    seen(driver, trainer_demo_rgb=PoolSize(2, 0, 0))
    body = copy.deepcopy(cluster.objects["jobs", DEMO_RGB])
    body["status"] = {"completedIndexes": "1", "active": 1}
    cluster.put("jobs", body)
    repaired(driver, lambda: bool(driver.troubles()))
    assert "pods 1 of Job" in driver.troubles()[Kind.CRASHING, "trainer.demo.rgb"]
    assert driver.repair() == [], "all of them may be about to end"
    monkeypatch.setattr(kubernetes, "_HALF_DONE_S", 0.0)
    (sentence,) = driver.repair()
    assert "it is made again" in sentence
    repaired(driver, lambda: cluster.count("POST", "jobs") == 2)
    seen(driver, trainer_demo_rgb=PoolSize(2, 0, 0))
    assert not driver.troubles()


@pytest.mark.parametrize(("kind", "reason"), [("Complete", "CompletionsReached"), ("Failed", "PodFailurePolicy")])
def test_a_job_that_has_ended_stays_when_its_training_is_over_until_that_runs_again(
    cluster: Cluster, driver: KubernetesDriver, tmp_path: Path, api: client.ApiClient, kind: str, reason: str
) -> None:
    """With the logs of its pods, for as long as its time to live says; also for the master after this one."""
    driver.train("demo", "rgb", 2, None)
    seen(driver, trainer_demo_rgb=PoolSize(2, 0, 0))
    first, labels = job_of(api).metadata.uid, job_of(api).metadata.labels
    assert (labels["essp.dev/job"], labels["essp.dev/trainer"]) == ("demo", "rgb")
    assert job_of(api).spec.template.metadata.labels["essp.dev/job"] == "demo", "kubectl logs --selector"
    ended(cluster, kind, reason, "")
    seen(driver)
    with closing(begun(api, tmp_path, lambda: None)) as successor:
        until(lambda: bool(successor.done() | successor.failed()))
        for each in (driver, successor):
            each.train("demo", "rgb", 0, None)
            each.repair()
            assert cluster.names("jobs") == [DEMO_RGB]
            assert not each.troubles()
            assert (each.trainings(), each.done(), each.failed()) == ({}, set(), set()), "it is of the past"
    driver.train("demo", "rgb", 1, None)
    repaired(driver, lambda: driver.sizes() == {"trainer.demo.rgb": PoolSize(1, 0, 0)})
    assert job_of(api).metadata.uid != first


def test_a_training_that_goes_on_after_its_job_was_complete_gets_another_job(
    cluster: Cluster, driver: KubernetesDriver
) -> None:
    """More epochs came when its trainers had just ended."""
    ranks, demand = TrainerRanks(driver, 2), job(trainers=(training("rgb", 0.0),))
    ranks.step([demand], {})
    seen(driver, trainer_demo_rgb=PoolSize(2, 0, 0))
    ended(cluster, "Complete", "CompletionsReached", "")
    until(lambda: driver.done() == {("demo", "rgb")})
    ranks.step([demand], {})
    repaired(driver, lambda: driver.sizes() == {"trainer.demo.rgb": PoolSize(2, 0, 0)})
    assert driver.done() == set()
    assert cluster.count("POST", "jobs") == 2


@pytest.mark.parametrize(
    "refusal",
    [Refusal(403, "Forbidden", "exceeded quota: jobs=1"), Refusal(500, "InternalError", "exceeded quota: no answer")],
    ids=["a quota", "a webhook that fails"],
)
def test_a_job_that_is_refused_is_told_once_and_stops_no_other(
    cluster: Cluster, driver: KubernetesDriver, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    answer = cluster.answer

    def full(method: str, url: str, body: Any) -> Any:
        if method == "POST" and body["metadata"]["name"] == DEMO_RGB:
            raise refusal
        return answer(method, url, body)

    monkeypatch.setattr(cluster, "answer", full)
    driver.train("demo", "rgb", 1, None)
    driver.train("demo", "flow", 1, None)
    (sentence,) = driver.repair()
    assert "exceeded quota" in sentence
    seen(driver, trainer_demo_flow=PoolSize(1, 0, 0))
    assert driver.repair() == []
    monkeypatch.undo()
    assert driver.repair() == []
    seen(driver, trainer_demo_flow=PoolSize(1, 0, 0), trainer_demo_rgb=PoolSize(1, 0, 0))


def test_a_job_of_somebody_else_that_is_in_the_way_is_told_of(cluster: Cluster, driver: KubernetesDriver) -> None:
    cluster.put("jobs", {"metadata": {"name": DEMO_RGB}, "spec": {}})
    driver.train("demo", "rgb", 1, None)
    told = [sentence for _ in range(6) for sentence in driver.repair()]
    assert len(told) == 1
    assert "not the master's" in told[0]


def test_a_job_of_somebody_else_stays_when_a_training_ends(cluster: Cluster, driver: KubernetesDriver) -> None:
    """A name proves nothing; nor do the labels of another release."""
    labels = {TRAINING: DEMO_RGB, RELEASE: "another"}
    for others in ({}, labels):
        cluster.put("jobs", {"metadata": {"name": DEMO_RGB, "labels": others}, "spec": {}})
        driver.train("demo", "rgb", 0, None)
        driver.repair()
        assert cluster.names("jobs") == [DEMO_RGB]


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_job_that_was_made_anew_meanwhile_is_not_deleted_with_the_one_before(
    cluster: Cluster, driver: KubernetesDriver, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """The watch tells of it a moment later."""
    driver.train("demo", "rgb", 2, None)
    seen(driver, trainer_demo_rgb=PoolSize(2, 0, 0))
    made_anew_before_deletion(monkeypatch, cluster, "jobs")
    driver.train("demo", "rgb", ranks, None)
    assert cluster.names("jobs") == [DEMO_RGB]


def test_trainers_with_similar_names_have_different_jobs() -> None:
    alike = [("a-b", "c"), ("a", "b-c"), ("a_b", "c"), ("a" * 62, "b"), ("a" * 62, "c")]
    names = {training_name(*one) for one in alike}
    assert len(names) == len(alike)
    assert all(len(f"{'f' * 26}-{name}-63") <= 63 for name in names), "a pod's host name"


@given(ranks=st.integers(1, 64), limit=st.integers(1, 16))
def test_ranks_are_spread_evenly_over_as_few_pods_as_can_be(ranks: int, limit: int) -> None:
    per_node = ranks_per_node(ranks, limit)
    assert ranks % per_node == 0
    assert per_node <= limit
    assert not [more for more in range(per_node + 1, limit + 1) if ranks % more == 0]


def test_ranks_that_share_a_pod_get_the_resources_of_all() -> None:
    body = yaml.safe_load(template("Job"))
    body["metadata"]["annotations"] = {RANKS_PER_NODE: "8"}
    made = training_job(yaml.safe_dump(body), "demo", "rgb", 12, None)
    assert (made["spec"]["completions"], made["spec"]["backoffLimit"]) == (2, 40)
    pod = made["spec"]["template"]["spec"]
    amounts = {"cpu": "9", "memory": str(24 * 2**30), "nvidia.com/gpu": "6"}
    assert pod["containers"][0]["resources"] == {"limits": amounts, "requests": amounts}
    assert pod["volumes"][0]["emptyDir"]["sizeLimit"] == str(6 * 1536 * 2**20)
    environment = {e["name"]: e["value"] for e in pod["containers"][0]["env"]}
    assert environment.items() >= {"WORLD_SIZE": "12", "NNODES": "2", "RANKS_PER_NODE": "6"}.items()
