"""The chart's release in a namespace of a real cluster: what tests do to it, and what they see of it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.chart.rendering import MINIMAL, Helm, Object
from tests.harness.waiting import LONGEST_S, until
from tools.chart_reference import CHART

PATHS = {
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "Event": "/api/v1/namespaces/{}/events",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "LimitRange": "/api/v1/namespaces/{}/limitranges",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Pod": "/api/v1/namespaces/{}/pods",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "ResourceQuota": "/api/v1/namespaces/{}/resourcequotas",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Service": "/api/v1/namespaces/{}/services",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "HorizontalPodAutoscaler": "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers",
    "Ingress": "/apis/networking.k8s.io/v1/namespaces/{}/ingresses",
}
"""Where the API has what the chart makes."""
VIDEO_JOBS = "/apis/essp.io/v1alpha1/namespaces/{}/videojobs"
"""Where it has them if the chart has been installed once."""
MERGE = {"Content-Type": "application/merge-patch+json"}
NO_SETUP = {"topics": {"job": {"enabled": False}}}
"""No hook: it would wait for pods, which a cluster without nodes does not run."""


def images() -> Object:
    """Values for the images of ESSP_IMAGES: a registry, or `nodes` if the nodes have them."""
    where = os.environ["ESSP_IMAGES"]
    return {"pullPolicy": "Never"} if where == "nodes" else {"registry": where}


def component(name: str) -> dict[str, str]:
    """Labels of the pods of one component."""
    return {"app.kubernetes.io/component": name}


def ready(thing: Object) -> bool:
    """Whether a pod or a node says that it is."""
    return holds(thing, "Ready")


def holds(thing: Object, condition: str) -> bool:
    """Whether this is among the conditions of its status."""
    conditions = thing["status"].get("conditions", ())
    return any(it["type"] == condition and it["status"] == "True" for it in conditions)


@dataclass(frozen=True)
class Release:
    """`essp` in one namespace."""

    api: httpx.Client
    helm: Helm
    namespace: str

    def install(self, values: Object, case: Path | None = MINIMAL) -> None:
        """Install or upgrade it. Raises `Refused` with helm's words."""
        shared = [] if case is None else ["--values", str(case)]
        self._helm("upgrade", "--install", "essp", str(CHART), *shared, values=values)

    def rollback(self, revision: int) -> None:
        self._helm("rollback", "essp", str(revision))

    def uninstall(self) -> None:
        self._helm("uninstall", "essp")

    def remove(self) -> None:
        """Remove the namespace. VideoJobs in it wait for no master."""
        for left in self.api.get(self.video_jobs()).json().get("items", ()):
            path = self.video_jobs(left["metadata"]["name"])
            self.api.patch(path, json={"metadata": {"finalizers": None}}, headers=MERGE)
        self.api.delete(f"/api/v1/namespaces/{self.namespace}")

    def status(self) -> str:
        """`deployed`, `failed`, ..."""
        text = self._helm("status", "essp")
        return next(line.partition(": ")[2] for line in text.splitlines() if line.startswith("STATUS"))

    def _helm(self, *args: str, values: Object | None = None) -> str:
        return self.helm.run(*args, "--namespace", self.namespace, values=values)

    def path(self, kind: str, *more: str) -> str:
        return "/".join((PATHS[kind].format(self.namespace), *more))

    def video_jobs(self, *name: str) -> str:
        """The path of all, or of one."""
        return "/".join((VIDEO_JOBS.format(self.namespace), *name))

    def get(self, kind: str, name: str) -> Object:
        found: Object = self.api.get(self.path(kind, name)).raise_for_status().json()
        return found

    def names(self, kind: str) -> set[str]:
        found = self.api.get(self.path(kind)).raise_for_status().json()["items"]
        return {item["metadata"]["name"] for item in found}

    def create(self, kind: str, body: Object) -> None:
        self.api.post(self.path(kind), json=body).raise_for_status()

    def scale(self, deployment: str, replicas: int, manager: str) -> None:
        """As somebody of this name."""
        self.api.patch(
            self.path("Deployment", deployment, "scale"),
            params={"fieldManager": manager},
            json={"spec": {"replicas": replicas}},
            headers=MERGE,
        ).raise_for_status()

    def replicas(self, deployment: str) -> int:
        return int(self.get("Deployment", deployment)["spec"]["replicas"])

    def token(self, account: str, secret: str = "") -> str:
        """One of a service account's, as its pods get it. `secret`: it is good as long as this one exists."""
        path = self.path("ServiceAccount", account, "token")
        until(lambda: account in self.names("ServiceAccount"))
        spec: Object = {"expirationSeconds": 3600}
        if secret:
            uid = self.get("Secret", secret)["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Secret", "name": secret, "uid": uid}
        made = self.api.post(path, json={"spec": spec}).raise_for_status()
        return str(made.json()["status"]["token"])

    def pods(self, labels: Mapping[str, str]) -> list[Object]:
        """Those with these labels."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        answer = self.api.get(self.path("Pod"), params={"labelSelector": selector})
        found: list[Object] = answer.raise_for_status().json()["items"]
        return found

    def up(self) -> bool:
        """Whether all pools but those of trainers have all their pods."""
        found = self.api.get(self.path("Deployment")).raise_for_status().json()["items"]
        return bool(found) and all(self._is_up(deployment) for deployment in found)

    def _is_up(self, deployment: Object) -> bool:
        """Asks the pods, too: the status of a Deployment follows a moment later."""
        wanted = deployment["spec"]["replicas"]
        pods = self.pods(deployment["spec"]["selector"]["matchLabels"])
        live = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return bool(deployment["status"].get("availableReplicas", 0) == wanted == sum(map(ready, live)))

    def left(self) -> set[tuple[str, str]]:
        """Kind and name of all that is there, but events and what Kubernetes makes of itself."""
        found = {(kind, name) for kind in PATHS.keys() - {"Event"} for name in self.names(kind)}
        return found - {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}

    @contextmanager
    def forwarded(self, token: str) -> Iterator[httpx.Client]:
        """The master's API, through the Service, as a person reaches it; for as long as the pod behind it lives."""
        command = ["kubectl", "port-forward", "--namespace", self.namespace, "service/essp-master", ":8080"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                if not (ports := re.findall(r"127\.0\.0\.1:(\d+)", line)):
                    raise httpx.ConnectError("there is no master to forward to")
                headers = {"Authorization": f"Bearer {token}"}
                with httpx.Client(
                    base_url=f"http://127.0.0.1:{ports[0]}", headers=headers, timeout=LONGEST_S
                ) as client:
                    yield client
            finally:
                process.terminate()

    def refusals(self, objects: list[Object]) -> list[str]:
        """What the API server says against these objects, or warns of; nothing is made."""
        said: list[str] = []
        for made in objects:
            if made["kind"] not in PATHS:
                continue  # of an operator that the cluster has not
            body: dict[str, Any] = {**made, "metadata": {**made["metadata"], "namespace": self.namespace}}
            found = self.api.post(self.path(made["kind"]), params={"dryRun": "All"}, json=body)
            words = [found.json()["message"]] if found.status_code >= 400 else found.headers.get_list("Warning")
            said += [f"{made['kind']} {made['metadata']['name']}: {each}" for each in words]
        return said
