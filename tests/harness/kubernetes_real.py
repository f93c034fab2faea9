"""A real Kubernetes API server, as tests of its double use it.

It stands behind the double's front (`ApiServer`), which counts requests, hangs up, answers nonsense or is away when a
test says so; everything else it passes on. Each test has a namespace of its own: the one that tests name is replaced in
what passes. Controllers are real. Nothing schedules or runs the pods: their template names a scheduler that does not
exist, so that what nodes would say is what a test says (`settle`), on a cluster with nodes and on one without.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import httpx
from kubernetes import client, config

from tests.harness.kubernetes_api import UNLIMITED, Cluster, Object, Refusal, status_of_pod
from tests.harness.waiting import LONGEST_S, until

VARIABLE = "KUBECONFIG"
GROUPS = {
    "configmaps": "/api/v1",
    "deployments": "/apis/apps/v1",
    "events": "/api/v1",
    "jobs": "/apis/batch/v1",
    "leases": "/apis/coordination.k8s.io/v1",
    "pods": "/api/v1",
    "resourcequotas": "/api/v1",
}
_OF_THE_SERVER = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")
_OF_THE_JOB = ("controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name")


class RealCluster(Cluster):
    """One namespace of the cluster that KUBECONFIG names."""

    def __init__(self, http: httpx.Client, namespace: str, named: str) -> None:
        """`namespace`: the real one. `named`: what tests call it."""
        super().__init__()
        self.objects = _Objects(self)
        self._http = http
        self._namespace, self._named = namespace, named
        self._streams: set[httpx.Response] = set()

    def names(self, kind: str) -> list[str]:
        return sorted(item["metadata"]["name"] for item in self.ask("GET", self.path(kind))["items"])

    def put(self, kind: str, body: Object) -> Object:
        name, status = body["metadata"]["name"], body.get("status")
        there_already = name in self.names(kind)
        if not there_already:
            self.ask("POST", self.path(kind), _new(kind, body))
        elif body.get("spec"):
            there = {key: value for key, value in body["metadata"].items() if key not in _OF_THE_SERVER}
            self.ask("PUT", self.path(kind, name), {**body, "metadata": there})
        elif labels := body["metadata"].get("labels"):
            self.ask("PATCH", self.path(kind, name), {"metadata": {"labels": labels}})
        if status:
            self.ask("PATCH", self.path(kind, name, "status"), {"status": status})
        return self.objects[kind, name]

    def delete(self, kind: str, name: str) -> None:
        options = {"propagationPolicy": "Background", **({"gracePeriodSeconds": 0} if kind == "pods" else {})}
        self.ask("DELETE", self.path(kind, name), options)
        until(lambda: name not in self.names(kind))

    def hang_up(self) -> None:
        super().hang_up()
        for stream in list(self._streams):
            link = stream.extensions["network_stream"].get_extra_info("socket")
            with suppress(OSError):  # not that of TLS, which another thread reads
                socket.socket.shutdown(link, socket.SHUT_RDWR)

    def limit(self, quota: int = UNLIMITED) -> None:
        """Have a quota, or none. Its controller counts, in the beginning alone, the pods that it has seen by then, and
        later each pod that is admitted: those of before have to be there."""
        if "team" in self.names("resourcequotas"):
            self.delete("resourcequotas", "team")
        self.quota = quota
        if quota < UNLIMITED:
            until(lambda: self._told("replicas", "active") == self._wanted())
            body = {"metadata": {"name": "team"}, "spec": {"hard": {"pods": str(quota)}}}
            self.ask("POST", self.path("resourcequotas"), body)
            counted = {"pods": str(self._wanted())}
            until(lambda: self.objects["resourcequotas", "team"].get("status", {}).get("used") == counted)

    def annotate(self, kind: str, name: str, annotation: str) -> None:
        version = self.objects[kind, name]["metadata"]["resourceVersion"]
        self.ask("PATCH", self.path(kind, name), {"metadata": {"annotations": {annotation: version}}})

    def settle(self, room: int, broken: str = "") -> None:
        """Say of the pods what a scheduler and kubelets would; quotas are real."""
        made = min(self._wanted(), self.quota)
        until(lambda: len(self._live()) == made, f"there are not {made} pods")
        for number, pod in enumerate(self._live()):
            status = status_of_pod(number < room, broken)
            status["conditions"].append({"type": "Ready", "status": str(number < room and not broken)})
            self.ask("PATCH", self.path("pods", pod["metadata"]["name"], "status"), {"status": status})
        until(lambda: self._told("readyReplicas", "ready") == (0 if broken else min(made, room)))

    def end_job(self, name: str, kind: str, reason: str, message: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        before = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}[kind]
        shared = {"status": "True", "reason": reason, "message": message, "lastTransitionTime": now}
        conditions = [{"type": each, **shared} for each in (before, kind)]
        job = self.objects["jobs", name]
        status = {"startTime": job["metadata"]["creationTimestamp"], "conditions": conditions, "active": 0, "ready": 0}
        if kind == "Complete":
            count = job["spec"]["completions"]
            indexes = "0" if count == 1 else f"0-{count - 1}" if count > 2 else "0,1"
            status |= {"completionTime": now, "succeeded": count, "completedIndexes": indexes}
        self.ask("PATCH", self.path("jobs", name, "status"), {"status": status})

    def answer(self, method: str, url: str, body: Any) -> Object:
        self.note(method, url)
        return self.ask(method, url, body)

    def watch(self, path: str, query: dict[str, str]) -> Generator[Object]:
        with self.lock:
            self.requests.append(("WATCH", path))
            if self.outage:
                raise Refusal(503, "ServiceUnavailable")
            self.watching += 1
        try:
            with self._http.stream("GET", self._real(f"{path}?{urlencode(query)}"), timeout=None) as found:
                self._streams.add(found)
                try:
                    if found.status_code != 200:
                        found.read()
                        raise _refusal(found)
                    yield {}
                    with suppress(httpx.HTTPError, httpx.StreamError, OSError):  # hung up
                        for line in found.iter_lines():
                            yield json.loads(line)
                finally:
                    self._streams.discard(found)
        finally:
            with self.lock:
                self.watching -= 1

    def ask(self, method: str, url: str, body: Any = None) -> Object:
        """Ask the API server. Raises `Refusal`."""
        # What the API server's own kinds take, and what those of a definition do.
        merge = "merge-patch+json" if url.startswith("/apis/essp.io/") else "strategic-merge-patch+json"
        kind = "json-patch+json" if isinstance(body, list) else merge
        headers = {"Content-Type": f"application/{kind if method == 'PATCH' else 'json'}"}
        content = None if body is None else json.dumps(body).replace(f'"{self._named}"', f'"{self._namespace}"')
        found = self._http.request(method, self._real(url), content=content, headers=headers)
        if found.status_code >= 400:
            raise _refusal(found)
        answer: Object = found.json()
        return answer

    def path(self, kind: str, *more: str) -> str:
        """Where the API has the objects of a kind, or one of them."""
        return "/".join((f"{GROUPS[kind]}/namespaces/{self._named}/{kind}", *more))

    def _real(self, url: str) -> str:
        return url.replace(f"/namespaces/{self._named}", f"/namespaces/{self._namespace}", 1)

    def _wanted(self) -> int:
        """Pods that Deployments and Jobs are to have."""
        return self._sum("spec", "replicas", "parallelism")

    def _told(self, of_deployment: str, of_job: str) -> int:
        """Pods that are in the status of Deployments and Jobs, by the names of the fields."""
        return self._sum("status", of_deployment, of_job)

    def _sum(self, part: str, of_deployment: str, of_job: str) -> int:
        fields = (("deployments", of_deployment), ("jobs", of_job))
        found = ((item, field) for kind, field in fields for item in self.ask("GET", self.path(kind))["items"])
        return sum(item[part].get(field, 0) for item, field in found)

    def _live(self) -> list[Object]:
        items = self.ask("GET", self.path("pods"))["items"]
        live = [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]
        return sorted(live, key=lambda pod: pod["metadata"]["name"])


class _Objects(dict[tuple[str, str], Object]):
    """(kind, name) -> the object as it is now."""

    def __init__(self, cluster: RealCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def __getitem__(self, key: tuple[str, str]) -> Object:
        return self._cluster.ask("GET", self._cluster.path(*key))


@contextmanager
def real_cluster(unique: str, named: str) -> Iterator[RealCluster]:
    """A namespace of the cluster, from `with` to its end; tests call it `named`."""
    with administrator() as http:
        http.post("/api/v1/namespaces", json={"metadata": {"name": unique}}).raise_for_status()
        try:
            yield RealCluster(http, unique, named)
        finally:
            http.delete(f"/api/v1/namespaces/{unique}")  # not waited for: the next test has another


def configuration() -> client.Configuration:
    """Of the Kubernetes client, with all rights."""
    found = client.Configuration()
    config.load_kube_config(os.environ[VARIABLE], client_configuration=found)
    return found


@contextmanager
def kubernetes_client(token: str = "") -> Iterator[client.ApiClient]:
    """A Kubernetes client, with all rights or with those of a token; its connections end with it."""
    settings = configuration()
    if token:
        settings.cert_file = settings.key_file = None
        settings.api_key = {"authorization": f"Bearer {token}"}
    made = client.ApiClient(settings)
    try:
        yield made
    finally:
        made.rest_client.pool_manager.clear()


def administrator() -> httpx.Client:
    """A client of the API with all rights."""
    found = configuration()
    context = ssl.create_default_context(cafile=found.ssl_ca_cert)
    if found.cert_file:
        context.load_cert_chain(found.cert_file, found.key_file)
    token = found.api_key.get("authorization")
    headers = {"Authorization": token} if token else {}
    return httpx.Client(base_url=found.host, verify=context, headers=headers, timeout=LONGEST_S)


def _refusal(found: httpx.Response) -> Refusal:
    said = found.json()
    return Refusal(found.status_code, said.get("reason", ""), said.get("message", ""))


def _new(kind: str, body: Object) -> Object:
    """The object as one that did not exist before, with what the API requires of one."""
    made: Object = json.loads(json.dumps({key: value for key, value in body.items() if key != "status"}))
    for key in _OF_THE_SERVER:
        made["metadata"].pop(key, None)
    pod = {"schedulerName": "tests", "containers": [{"name": "c", "image": "none"}]}
    if kind == "pods":
        made["spec"] = pod | made.get("spec", {})
        for container in made["spec"]["containers"]:
            container.setdefault("image", "none")
    if kind == "jobs":
        spec = made.setdefault("spec", {})
        spec.pop("selector", None)
        template = spec.setdefault("template", {"spec": pod | {"restartPolicy": "Never"}})
        for labels in (made["metadata"].get("labels", {}), template.get("metadata", {}).get("labels", {})):
            for name in _OF_THE_JOB:
                labels.pop(name, None)
    return made
