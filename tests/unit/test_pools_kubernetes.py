"""Pools, registered extractors, trainings and leadership through the Kubernetes API.

Against a double of the API server, or, with KUBECONFIG set, against the cluster that it names, in the namespace of
ESSP_TEST_NAMESPACE (default: essp-test), which has to exist and is used up.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from essp_common.errors import ConfigError, PermanentError, Unavailable
from essp_common.features.declared import DeclaredOutput
from services.master.leader import Election
from services.master.pools.kubernetes import COST, LEAST, MOST, RELEASE, SCALED_BY, KubernetesDriver
from services.master.pools.manifests import RANKS_PER_NODE, WORK, ranks_per_node, training_job, training_name
from services.master.pools.port import PoolSize
from services.master.pools.view import View
from services.master.registrations import ExtractorRow, Resources, TrainerRow
from tests.kubernetes_api import ApiServer, Cluster, Refusal
from tests.unit.test_pools import until

NAMESPACE = os.environ.get("ESSP_TEST_NAMESPACE", "essp-test")
IMAGE = "registry.example/depth@sha256:" + "0f" * 32
DEPTH = ExtractorRow(
    name="depth_map", image=IMAGE, output=DeclaredOutput(shape=("T",)), least=2, resources=Resources(cpu="2", gpus=1)
)
TIMES_S = (3, 2, 1)
PAUSES_S = (0.01, 0.05)
DEMO_RGB = training_name("demo", "rgb")
"""The template of these tests gives the Job no prefix."""


def template(kind: str) -> str:
    pod = {
        "metadata": {"labels": {"essp.dev/pool": "REGISTERED"}},
        "spec": {
            "securityContext": {"runAsNonRoot": True},
            "containers": [{"name": "worker", "image": "none", "env": [{"name": "ESSP_BUS", "value": "kafka://k"}]}],
        },
    }
    spec: dict[str, Any] = {"template": pod}
    metadata: dict[str, Any] = {"name": "REGISTERED", "labels": {RELEASE: "essp"}}
    if kind == "Deployment":
        spec |= {"replicas": 1, "selector": {"matchLabels": {"essp.dev/pool": "REGISTERED"}}}
        metadata["labels"][SCALED_BY] = "master"
    else:
        pod["spec"]["restartPolicy"] = "Never"  # type: ignore[index]
        pod["spec"]["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1536Mi"}}]  # type: ignore[index]
        amounts = {"cpu": "1500m", "memory": "4Gi", "nvidia.com/gpu": "1"}
        pod["spec"]["containers"][0]["resources"] = {"limits": dict(amounts), "requests": dict(amounts)}  # type: ignore[index]
        spec["backoffLimit"] = 20
    return yaml.safe_dump({"kind": kind, "metadata": metadata, "spec": spec})


def deployment(name: str, work: str, replicas: int) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(template("Deployment").replace("REGISTERED", name))
    body["metadata"]["annotations"] = {WORK: work}
    body["spec"]["replicas"] = replicas
    return body


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def cluster(server: ApiServer) -> Cluster:
    return server.cluster


@pytest.fixture
def api(server: ApiServer, request: pytest.FixtureRequest) -> client.ApiClient:
    """Of the real cluster, if there is one, for the tests that do nothing to the double."""
    real = os.environ.get("KUBECONFIG") and "cluster" not in request.fixturenames
    return config.new_client_from_config() if real else server.client()


@pytest.fixture
def changes() -> threading.Event:
    """Set when the driver says that something has changed."""
    return threading.Event()


@pytest.fixture
def driver(api: client.ApiClient, tmp_path: Path, changes: threading.Event) -> Iterator[KubernetesDriver]:
    (tmp_path / "extractor-deployment.yaml").write_text(template("Deployment"))
    (tmp_path / "trainer-job.yaml").write_text(template("Job"))
    started = KubernetesDriver(api, NAMESPACE, tmp_path, "essp", PAUSES_S)
    started.start(changes.set)
    yield started
    started.close()


def read(api: client.ApiClient, name: str) -> Any:
    return client.AppsV1Api(api).read_namespaced_deployment(name, NAMESPACE)


def make(api: client.ApiClient, name: str, work: str, replicas: int) -> None:
    body: Any = deployment(name, work, replicas)
    client.AppsV1Api(api).create_namespaced_deployment(NAMESPACE, body)


def seen(driver: KubernetesDriver, **sizes: PoolSize) -> None:
    """Wait until the driver sees these pools, and no others; dots in names are underscores here."""
    until(lambda: {name.replace(".", "_"): size for name, size in driver.sizes().items()} == sizes)


def job_of(api: client.ApiClient, name: str = DEMO_RGB) -> Any:
    return client.BatchV1Api(api).read_namespaced_job(name, NAMESPACE)


def ended(cluster: Cluster, kind: str, reason: str, message: str) -> None:
    """Have the training's Job end."""
    body = copy.deepcopy(cluster.objects["jobs", DEMO_RGB])
    body["status"] = {"conditions": [{"type": kind, "status": "True", "reason": reason, "message": message}]}
    cluster.put("jobs", body)


def test_a_pool_is_scaled_and_nothing_else_of_it_changed(api: client.ApiClient, driver: KubernetesDriver) -> None:
    make(api, "essp-decoder", "decoder", 3)
    seen(driver, decoder=PoolSize(3, 0))
    before = read(api, "essp-decoder")
    driver.scale("decoder", 7, [])
    after = read(api, "essp-decoder")
    seen(driver, decoder=PoolSize(7, 0))
    assert after.spec.template == before.spec.template
    driver.remove("decoder")
    seen(driver)


def test_bounds_are_those_of_the_chart(cluster: Cluster, driver: KubernetesDriver) -> None:
    body = deployment("essp-decoder", "decoder", 3) | {"status": {}}
    for least, most, bounds in (("2", "9", (2, 9)), ("", "many", (1, 64)), ("80", "", (80, 80))):
        body["metadata"]["annotations"] |= {LEAST: least, MOST: most}
        cluster.put("deployments", body)
        seen(driver, decoder=PoolSize(3, 0, *bounds))


@pytest.mark.parametrize("labels", [{}, {SCALED_BY: "master"}, {SCALED_BY: "master", RELEASE: "other"}])
def test_a_pool_that_others_scale_is_not_touched(
    cluster: Cluster, driver: KubernetesDriver, labels: dict[str, str]
) -> None:
    """An HPA's, or another release's in the same namespace."""
    body = deployment("theirs", "decoder", 3)
    body["metadata"]["labels"] = labels
    cluster.put("deployments", body)
    cluster.put("deployments", deployment("ours", "extractor.flow", 1))
    seen(driver, extractor_flow=PoolSize(1, 0))
    driver.scale("decoder", 1, [])
    assert cluster.objects["deployments", "theirs"]["spec"]["replicas"] == 3


def test_idle_pods_are_the_ones_to_go(cluster: Cluster, driver: KubernetesDriver) -> None:
    cluster.put("deployments", deployment("essp-decoder", "decoder", 3))
    for number in range(3):
        cluster.put("pods", {"metadata": {"name": f"pod-{number}", "labels": {"essp.dev/pool": "essp-decoder"}}})
    seen(driver, decoder=PoolSize(3, 0))
    driver.scale("decoder", 2, ["pod-1-17", "pod-0-17", "pod-2-17"])
    costs = {name: cluster.objects["pods", name]["metadata"]["annotations"][COST] for name in cluster.names("pods")}
    assert int(costs["pod-1"]) < int(costs["pod-0"]) == int(costs["pod-2"])


def test_a_registered_extractor_gets_its_deployment(api: client.ApiClient, driver: KubernetesDriver) -> None:
    driver.add_extractor(DEPTH)
    seen(driver, extractor_depth_map=PoolSize(2, 0))
    made = read(api, "extractor-depth-map").spec.template.spec
    container = made.containers[0]
    assert container.image == IMAGE
    assert container.args == ["extractor", "run", "--feature=depth_map"]
    assert container.resources.limits == {"cpu": "2", "memory": "2Gi", "nvidia.com/gpu": "1"}
    assert made.security_context.run_as_non_root, "as in the template"
    driver.scale("extractor.depth_map", 5, [])
    driver.add_extractor(DEPTH.model_copy(update={"resources": Resources(cpu="4")}))
    changed = read(api, "extractor-depth-map").spec
    assert changed.template.spec.containers[0].resources.limits["cpu"] == "4"
    assert changed.replicas == 5, "a change of what runs does not change how many"
    driver.remove("extractor.depth_map")
    driver.remove("extractor.depth_map")
    seen(driver)


# --- trainings ---


def test_a_training_moves_to_another_number_of_ranks(api: client.ApiClient, driver: KubernetesDriver) -> None:
    driver.train("demo", "rgb", 2, None)
    first = job_of(api)
    assert (first.spec.completions, first.spec.completion_mode) == (2, "Indexed")
    assert first.spec.backoff_limit == 40, "a group of two fails twice"
    seen(driver, trainer_demo_rgb=PoolSize(2, 0, 0))
    driver.train("demo", "rgb", 2, None)
    assert job_of(api).metadata.uid == first.metadata.uid
    driver.train("demo", "rgb", 3, TrainerRow(name="big", image=IMAGE, models=("resnet50",)))
    mended(driver, lambda: driver.sizes() == {"trainer.demo.rgb": PoolSize(3, 0, 0)})
    container = job_of(api).spec.template.spec.containers[0]
    assert container.image == IMAGE
    world = {"WORLD_SIZE": "3", "NNODES": "3", "RANKS_PER_NODE": "1"}
    assert {e.name: e.value for e in container.env} == {"ESSP_BUS": "kafka://k", **world}
    driver.train("demo", "rgb", 0, None)
    mended(driver, lambda: driver.sizes() == {})
    assert client.BatchV1Api(api).list_namespaced_job(NAMESPACE).items == []


def mended(driver: KubernetesDriver, condition: Callable[[], bool]) -> None:
    """Repair until it is so, as the reconciler does whenever something changes."""
    until(lambda: bool(driver.repair() or True) and condition())


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
    mended(driver, lambda: driver.sizes() == {"trainer.demo.rgb": PoolSize(4, 0, 0)})


def test_a_job_that_somebody_deletes_is_made_again(cluster: Cluster, driver: KubernetesDriver) -> None:
    driver.train("demo", "rgb", 2, None)
    seen(driver, trainer_demo_rgb=PoolSize(2, 0, 0))
    assert driver.repair() == []
    cluster.delete("jobs", DEMO_RGB)
    seen(driver)
    (sentence,) = driver.repair()
    assert "made again" in sentence
    seen(driver, trainer_demo_rgb=PoolSize(2, 0, 0))


def test_a_job_that_failed_is_told_once_and_one_that_is_done_left_alone(
    cluster: Cluster, driver: KubernetesDriver
) -> None:
    driver.train("demo", "rgb", 2, None)
    seen(driver, trainer_demo_rgb=PoolSize(2, 0, 0))
    ended(cluster, "Failed", "PodFailurePolicy", "exit code 2")
    seen(driver)
    (sentence,) = driver.repair()
    assert "PodFailurePolicy exit code 2" in sentence
    assert f"kubectl delete job {DEMO_RGB}" in sentence
    assert driver.repair() == []
    ended(cluster, "Complete", "CompletionsReached", "")
    assert driver.repair() == []
    assert cluster.count("POST", "jobs") == 1


def test_a_job_that_is_refused_is_told_once_and_stops_no_other(
    cluster: Cluster, driver: KubernetesDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = cluster.answer

    def full(method: str, url: str, body: Any) -> Any:
        if method == "POST" and body["metadata"]["name"] == DEMO_RGB:
            raise Refusal(403, "Forbidden", "exceeded quota: jobs=1")
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


def test_trainings_alike_in_name_have_jobs_of_their_own() -> None:
    alike = [("a-b", "c"), ("a", "b-c"), ("a_b", "c"), ("a" * 62, "b"), ("a" * 62, "c")]
    names = {training_name(*one) for one in alike}
    assert len(names) == len(alike)
    assert all(len(f"{'f' * 26}-{name}-63") <= 63 for name in names), "a pod's host name"


@given(ranks=st.integers(1, 64), most=st.integers(1, 16))
def test_ranks_are_spread_evenly_over_as_few_pods_as_can_be(ranks: int, most: int) -> None:
    per_node = ranks_per_node(ranks, most)
    assert ranks % per_node == 0
    assert per_node <= most
    assert not [more for more in range(per_node + 1, most + 1) if ranks % more == 0]


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


def test_without_the_charts_templates_nothing_can_be_registered(api: client.ApiClient, tmp_path: Path) -> None:
    bare = KubernetesDriver(api, NAMESPACE, tmp_path / "none")
    with pytest.raises(ConfigError, match="registrations: true"):
        bare.add_extractor(DEPTH)
    with pytest.raises(ConfigError, match="ranks: N"):
        bare.train("demo", "rgb", 1, None)


# --- what is watched ---


def test_what_somebody_else_does_is_seen_without_asking_again(
    cluster: Cluster, driver: KubernetesDriver, changes: threading.Event
) -> None:
    cluster.put("deployments", deployment("essp-decoder", "decoder", 3))
    seen(driver, decoder=PoolSize(3, 0))
    until(lambda: cluster.watching == 2)
    lists = cluster.count("GET", "deployments")
    changes.clear()
    body = deployment("essp-decoder", "decoder", 9) | {"status": {"readyReplicas": 5}}
    cluster.put("deployments", body)
    assert changes.wait(10)
    seen(driver, decoder=PoolSize(9, 5))
    cluster.put("deployments", {**body, "metadata": {**body["metadata"], "labels": {}}})
    seen(driver)
    assert cluster.count("GET", "deployments") == lists


def test_a_watch_that_ends_goes_on_where_it_was(cluster: Cluster, driver: KubernetesDriver) -> None:
    seen(driver)
    until(lambda: cluster.watching == 2)
    lists = cluster.count("GET", "deployments")
    cluster.hang_up()
    cluster.put("deployments", deployment("essp-decoder", "decoder", 3))
    seen(driver, decoder=PoolSize(3, 0))
    assert cluster.count("GET", "deployments") == lists


def test_bookmarks_keep_the_version_young(cluster: Cluster, driver: KubernetesDriver) -> None:
    """Others' objects change, ours do not, and what was is forgotten: with a bookmark nothing has to be listed anew."""
    seen(driver)
    until(lambda: cluster.watching == 2)
    lists = cluster.count("GET", "deployments")
    cluster.put("deployments", {**deployment("theirs", "x", 1), "metadata": {"name": "theirs", "labels": {}}})
    cluster.bookmark()
    until(lambda: driver._deployments._version == str(cluster.version))
    cluster.compact()
    watches = cluster.count("WATCH", "deployments")
    cluster.hang_up()
    until(lambda: cluster.count("WATCH", "deployments") > watches)
    cluster.put("deployments", deployment("essp-decoder", "decoder", 3))
    seen(driver, decoder=PoolSize(3, 0))
    assert cluster.count("GET", "deployments") == lists


def test_what_was_missed_for_good_is_listed_anew(cluster: Cluster, driver: KubernetesDriver) -> None:
    cluster.put("deployments", deployment("gone-meanwhile", "extractor.flow", 1))
    seen(driver, extractor_flow=PoolSize(1, 0))
    lists = cluster.count("GET", "deployments")
    with cluster.lock:  # nobody is told of what happens in here
        cluster.delete("deployments", "gone-meanwhile")
        cluster.put("deployments", deployment("essp-decoder", "decoder", 3))
        cluster.compact()
        cluster.hang_up()
    seen(driver, decoder=PoolSize(3, 0))
    assert cluster.count("GET", "deployments") == lists + 1


def test_an_api_that_does_not_answer_is_tried_again_later(cluster: Cluster, driver: KubernetesDriver) -> None:
    cluster.put("deployments", deployment("essp-decoder", "decoder", 3))
    seen(driver, decoder=PoolSize(3, 0))
    cluster.outage = True

    def unknown() -> bool:
        try:
            driver.sizes()
        except Unavailable as error:
            return "503" in str(error)
        return False

    until(unknown)
    cluster.put("deployments", deployment("essp-decoder", "decoder", 4))
    cluster.outage = False
    until(lambda: not unknown())
    seen(driver, decoder=PoolSize(4, 0))


def test_the_longer_it_is_away_the_more_seldom_it_is_asked(cluster: Cluster) -> None:
    """Pauses of an hour: after its first tries the view asks no more, and ends at once all the same."""
    cluster.outage = True
    tried = threading.Event()

    def lists(**_: object) -> object:
        cluster.requests.append(("GET", "/deployments"))
        tried.set()
        raise ApiException(status=503, reason="away")

    view = View("deployments", "V1Deployment", lists, lambda: None, (3600.0, 7200.0))
    view.start()
    assert tried.wait(10)
    with pytest.raises(Unavailable, match="503 away"):
        view.objects()
    view.close()
    assert cluster.count("GET", "deployments") == 1


def test_a_right_that_is_missing_is_named(cluster: Cluster) -> None:
    def lists(**_: object) -> object:
        raise ApiException(status=403, reason="Forbidden")

    view = View("jobs", "V1Job", lists, lambda: None, PAUSES_S)
    view.start()
    with pytest.raises(PermanentError, match="the chart's Role"):
        view.objects()
    view.close()


def test_a_driver_that_is_closed_watches_no_more(cluster: Cluster, driver: KubernetesDriver) -> None:
    seen(driver)
    until(lambda: cluster.watching == 2)
    driver.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("essp-watch")]


# --- who leads ---


def candidate(api: client.ApiClient, name: str, lost: threading.Event) -> Election:
    return Election(api, NAMESPACE, "essp-master", name, lost.set, TIMES_S)


def test_of_two_masters_one_leads_and_the_other_knows_who(api: client.ApiClient) -> None:
    first, second = candidate(api, "http://one", threading.Event()), candidate(api, "http://two", threading.Event())
    first.start()
    assert first.wait(10)
    second.start()
    assert not second.wait(1.5)
    assert (second.leads, second.leader, first.leader) == (False, "http://one", "http://one")


@pytest.mark.parametrize("how", ["outage", "hanging"])
def test_a_leader_that_cannot_renew_gives_up_and_the_other_takes_over(
    cluster: Cluster, server: ApiServer, how: str
) -> None:
    """Whether the API says that it is away, or says nothing."""
    lost = threading.Event()
    first = candidate(server.client(), "http://one", lost)
    first.start()
    assert first.wait(10)
    setattr(cluster, how, True)
    assert lost.wait(10), "within the renew deadline"
    cluster.outage = False
    second = candidate(server.client(), "http://two", threading.Event())
    assert second.wait_to_lead(threading.Event(), 0.1)
    assert second.leader == "http://two"


def test_a_leader_that_leaves_lets_the_next_one_begin_at_once(api: client.ApiClient) -> None:
    """A lease of ten minutes is not waited for."""
    lost = threading.Event()
    first = Election(api, NAMESPACE, "essp-handover", "http://one", lost.set, (600, 300, 1))
    second = Election(api, NAMESPACE, "essp-handover", "http://two", threading.Event().set, (600, 300, 1))
    assert first.wait_to_lead(threading.Event(), 0.1)
    second.start()
    until(lambda: second.leader == "http://one")
    second.resign()
    assert second.leader == "http://one", "who does not lead has nothing to give up"
    first.resign()
    assert second.wait(30)
    assert not lost.is_set()


def test_a_standby_that_is_to_leave_leaves(api: client.ApiClient) -> None:
    leader, standby = candidate(api, "http://one", threading.Event()), candidate(api, "http://two", threading.Event())
    leader.start()
    assert leader.wait(10)
    draining = threading.Event()
    draining.set()
    assert not standby.wait_to_lead(draining)
