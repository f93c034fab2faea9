"""The chart on a real API server: what it makes is accepted, and upgrades, rights and removal are as promised.

No pod has to run: an API server with its controllers is enough.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kubernetes import client

from essp_common.runtime.conditions import Lasting
from essp_common.runtime.troubles import Kind
from essp_master.assembly import kubernetes_api
from essp_master.pools.kubernetes import KubernetesDriver
from essp_master.pools.manifests import TRAINING
from tests.chart.rendering import CASES, Helm, Object, of_kind, templates
from tests.chart.test_rights import on, rights
from tests.cluster.release import NO_SETUP, Release
from tests.harness.kubernetes_objects import DEPTH
from tests.harness.kubernetes_pod import ServiceAccount
from tests.harness.kubernetes_real import configuration, kubernetes_client
from tests.harness.waiting import until

ALL_ON: Object = on(election=True, registrations=True, ranks=8, scaling=True) | NO_SETUP


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_what_the_chart_makes_is_accepted_without_a_warning(helm: Helm, release: Release, case: Path) -> None:
    """In a namespace that enforces the restricted standard; also what the master makes of it at run time."""
    objects = helm.render(case)
    for account in of_kind(objects, "ServiceAccount"):
        release.create("ServiceAccount", {"metadata": {"name": account["metadata"]["name"]}})
    others = [made for made in objects if made["kind"] != "ServiceAccount"]
    assert release.refusals([*others, *map(filled_in, templates(objects))]) == []


def filled_in(template: Object) -> Object:
    """A template of what is made at run time, as far as the API requires it."""
    made: Object = json.loads(json.dumps(template).replace("REGISTERED", "registered"))
    if made["kind"] == "Job":
        made["spec"] |= {"completions": 1, "parallelism": 1}
    return made


@pytest.mark.parametrize("provider", ["master", "hpa"])
def test_upgrade_and_rollback_leave_the_size_that_others_have_set(release: Release, provider: str) -> None:
    values = NO_SETUP | {"autoscaling": {"provider": provider}}
    release.install(values)
    for size, log_format in ((3, "text"), (5, "json")):
        release.scale("essp-decoder", size, "essp-master")
        release.install(values | {"settings": {"log_format": log_format}})
        assert release.replicas("essp-decoder") == size
    release.scale("essp-decoder", 4, "somebody")
    release.rollback(1)
    assert (release.replicas("essp-decoder"), release.status()) == (4, "deployed")


def test_the_master_does_all_that_it_has_to_with_the_rights_of_the_chart_and_can_do_nothing_else(
    release: Release, helm: Helm, tmp_path: Path
) -> None:
    release.install(ALL_ON)
    for name, text in release.get("ConfigMap", "essp-templates")["data"].items():
        (tmp_path / name).write_text(text)
    with kubernetes_client(release.token("essp-master")) as api:
        assert granted(api, release.namespace) == {right[:3] for right in rights(helm.render(**ALL_ON))}
        with closing(driver_of(release, api, tmp_path)) as driver:
            pools = {"aggregator", "decoder", "extractor.flow", "predictor"}
            until(lambda: driver.sizes().keys() == pools)
            driver.scale("decoder", 4, ["nobody-1"])
            until(lambda: driver.sizes()["decoder"].replicas == 4)
            driver.add_extractor(DEPTH)
            for number in range(10):
                driver.train(f"job-{number}", "rgb", 1, None)
            until(lambda: len(driver.trainings()) == 10)
            driver.tell("decoder", "1 -> 4: as asked for")
            driver.repair()
            until(lambda: release.replicas("essp-extractor-depth-map") == DEPTH.min)
            labels = {"essp.dev/job": "job-3", "essp.dev/trainer": "rgb"}
            (third,) = [job for job in jobs(release) if job["metadata"]["labels"].items() >= labels.items()]
            assert third["spec"]["template"]["metadata"]["labels"].items() >= labels.items()
            for number in range(10):
                driver.train(f"job-{number}", "rgb", 0, None)
            driver.remove("extractor.depth_map")
            until(lambda: not driver.trainings() and driver.sizes().keys() == pools)
    assert [event for event in events(release) if event["reason"] == "EsspPool"]


def test_a_token_that_was_replaced_is_used(release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes replaces a pod's long before it expires; here the first one ends with its Secret."""
    release.install(ALL_ON)
    release.create("Secret", {"metadata": {"name": "first"}})
    settings, first = configuration(), release.token("essp-master", secret="first")
    server = urlsplit(settings.host)
    address, ca = (server.hostname or "", server.port or 443), Path(str(settings.ssl_ca_cert)).read_text()
    account = ServiceAccount(tmp_path, monkeypatch, address, ca, first)
    api = kubernetes_api()
    with closing(driver_of(release, api, tmp_path)) as driver:
        until(lambda: "decoder" in driver.sizes())
        account.replace(release.token("essp-master"))
        release.api.delete(release.path("Secret", "first")).raise_for_status()
        until(lambda: not is_accepted(first))
        driver.scale("decoder", 4, [])
        until(lambda: driver.sizes()["decoder"].replicas == 4)
    with closing(driver_of(release, api, tmp_path)) as driver:
        until(lambda: "decoder" in driver.sizes())
    api.rest_client.pool_manager.clear()


def is_accepted(token: str) -> bool:
    """Whether the API server knows who comes with this token. It remembers for some seconds."""
    with kubernetes_client(token) as api:
        try:
            client.CoreV1Api(api).list_namespaced_pod("default")
        except client.ApiException as error:
            return bool(error.status != 401)
    return True


def driver_of(release: Release, api: client.ApiClient, templates: Path) -> KubernetesDriver:
    """The master's driver at work."""
    driver = KubernetesDriver(api, release.namespace, templates, "essp", "essp-templates", (0.05, 0.5))
    driver.start(lambda: None)
    return driver


def granted(api: client.ApiClient, namespace: str) -> set[tuple[str, str, str]]:
    """Group, resource and verb of all that an account may do there, but what everybody may."""
    asked: Any = {"spec": {"namespace": namespace}}
    found: Any = client.AuthorizationV1Api(api).create_self_subject_rules_review(asked)
    return {
        (group, resource, verb)
        for rule in found.status.resource_rules
        for group in rule.api_groups or ()
        for resource in rule.resources or ()
        for verb in rule.verbs
        if group not in ("authorization.k8s.io", "authentication.k8s.io")
    }


def jobs(release: Release) -> list[Object]:
    found: list[Object] = release.api.get(release.path("Job"), params={"labelSelector": TRAINING}).json()["items"]
    return found


def events(release: Release) -> list[Object]:
    found: list[Object] = release.api.get(release.path("Event")).json()["items"]
    return found


def test_other_pods_have_no_right_at_all(release: Release, helm: Helm) -> None:
    release.install(ALL_ON)
    for account in of_kind(helm.render(**ALL_ON), "ServiceAccount"):
        name = account["metadata"]["name"]
        if name != "essp-master":
            with kubernetes_client(release.token(name)) as client_:
                assert granted(client_, release.namespace) == set(), name


@pytest.mark.parametrize(
    ("kind", "body", "words", "pools"),
    [
        ("ResourceQuota", {"hard": {"pods": "0"}}, "exceeded quota: team", {"decoder", "trainer.demo.rgb"}),
        ("ResourceQuota", {"hard": {"limits.cpu": "100"}}, "must specify limits.cpu", {"trainer.demo.rgb"}),
        (
            "LimitRange",
            {"limits": [{"type": "Container", "max": {"memory": "8Mi"}}]},
            "maximum memory usage",
            {"decoder", "trainer.demo.rgb"},
        ),
    ],
    ids=["no pods", "limits are asked for", "too large"],
)
def test_what_the_namespace_does_not_allow_reaches_people_in_its_words(
    release: Release, tmp_path: Path, kind: str, body: Object, words: str, pools: set[str]
) -> None:
    """Of pools and of trainings; they are conditions, and so the reason of each job that needs them."""
    release.create(kind, {"metadata": {"name": "team"}, "spec": body})
    release.install(ALL_ON)
    (tmp_path / "trainer-job.yaml").write_text(release.get("ConfigMap", "essp-templates")["data"]["trainer-job.yaml"])
    with kubernetes_client() as api, closing(driver_of(release, api, tmp_path)) as driver:
        driver._lasting = Lasting(0.0)
        driver.train("demo", "rgb", 1, None)

        def told() -> bool:
            driver.repair()
            found = driver.troubles()
            return all(words in found.get((Kind.HELD_UP, pool), "") for pool in pools)

        until(told)


def test_uninstall_leaves_nothing(release: Release, tmp_path: Path) -> None:
    """Neither of the release nor of what the master has made."""
    release.install(ALL_ON)
    for name, text in release.get("ConfigMap", "essp-templates")["data"].items():
        (tmp_path / name).write_text(text)
    with kubernetes_client() as api, closing(driver_of(release, api, tmp_path)) as driver:
        driver.train("demo", "rgb", 2, None)
        driver.add_extractor(DEPTH)
        until(lambda: len(jobs(release)) == 1)
    release.uninstall()
    until(lambda: release.left() == set())


def test_a_setting_that_is_wrong_changes_nothing(release: Release) -> None:
    """An upgrade that is refused leaves what runs."""
    release.install(NO_SETUP)
    before = release.get("Deployment", "essp-decoder")["metadata"]["generation"]
    with pytest.raises(Exception, match="decoder"):
        release.install(NO_SETUP | {"pools": {"decoder": {"replicas": 65}}})
    assert release.get("Deployment", "essp-decoder")["metadata"]["generation"] == before
    assert release.status() == "deployed"
