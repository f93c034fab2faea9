"""Pools as Deployments of a namespace, trainings as indexed Jobs, through the Kubernetes API.

The contract with the chart: a Deployment whose label `essp.dev/scaled-by` is `master` is a pool; its annotation
`essp.dev/work` says what it does (`decoder`, `extractor.flow`), `essp.dev/min-replicas` and `essp.dev/max-replicas` are
its bounds. Sizes are set through the scale subresource, so that the master needs no right to change anything else of
them. Before a pool shrinks, idle pods get the lower deletion cost, so they are the ones to go.

What is registered becomes a Deployment (an extractor) or a Job (a training) from templates which the chart gives the
master as files: names, image, arguments, resources and replicas are set here, all else, security above all, is as in
the template.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from essp_common.errors import ConfigError, PermanentError, Unavailable
from services.master.pools.port import PoolSize
from services.master.registrations import ExtractorRow, Resources, TrainerRow

log = logging.getLogger(__name__)

POOL = "essp.dev/pool"
WORK = "essp.dev/work"
SCALED_BY = "essp.dev/scaled-by"
LEAST, MOST = "essp.dev/min-replicas", "essp.dev/max-replicas"
TRAINING = "essp.dev/training"
COST = "controller.kubernetes.io/pod-deletion-cost"
_SELECTOR = f"{SCALED_BY}=master"
_PLACEHOLDER = "REGISTERED"
_TIMEOUT_S = (3.0, 10.0)
_BUSY, _IDLE = "100", "-100"


class KubernetesDriver:
    """Implements `services.master.pools.port.PoolDriver`. Thread-safe."""

    def __init__(self, api: client.ApiClient, namespace: str, templates: Path) -> None:
        """`templates`: folder with `extractor-deployment.yaml` and `trainer-job.yaml`."""
        # Not as their own types: those leave every field of every object optional.
        self._apps: Any = client.AppsV1Api(api)
        self._core: Any = client.CoreV1Api(api)
        self._batch: Any = client.BatchV1Api(api)
        self._namespace = namespace
        self._templates = templates

    def sizes(self) -> Mapping[str, PoolSize]:
        """The pools that the master scales."""
        return {
            work: PoolSize(
                deployment.spec.replicas or 0, deployment.status.ready_replicas or 0, *_bounds(deployment.metadata)
            )
            for work, deployment in self._deployments().items()
        }

    def scale(self, pool: str, replicas: int, spare: Sequence[str]) -> None:
        """Set the replicas; idle pods are marked as those to go."""
        deployment = self._deployments().get(pool)
        if deployment is None:
            return
        if (surplus := (deployment.spec.replicas or 0) - replicas) > 0:
            self._mark(deployment, spare[:surplus])
        with _answers():
            self._apps.patch_namespaced_deployment_scale(
                deployment.metadata.name, self._namespace, {"spec": {"replicas": replicas}}, _request_timeout=_TIMEOUT_S
            )

    def repair(self) -> list[str]:
        """Nothing: Kubernetes starts again what died."""
        return []

    def add_extractor(self, row: ExtractorRow) -> None:
        """Have a Deployment for the feature."""
        body = self._template("extractor-deployment.yaml", f"extractor-{row.name.replace('_', '-')}")
        body["metadata"].setdefault("annotations", {})[WORK] = f"extractor.{row.name}"
        body["spec"]["replicas"] = row.least
        _fill(
            _container(body), row.image, ["extractor", "run", f"--feature={row.name}"], row.resources, row.environment
        )
        name = body["metadata"]["name"]
        self._apply(
            lambda: self._apps.create_namespaced_deployment(self._namespace, body, _request_timeout=_TIMEOUT_S),
            lambda: self._apps.patch_namespaced_deployment(
                name, self._namespace, _without_replicas(body), _request_timeout=_TIMEOUT_S
            ),
        )

    def remove(self, pool: str) -> None:
        """Delete the pool's Deployment; its pods get SIGTERM and their grace period."""
        deployment = self._deployments().get(pool)
        if deployment is not None:
            with _answers(missing_ok=True):
                self._apps.delete_namespaced_deployment(
                    deployment.metadata.name, self._namespace, _request_timeout=_TIMEOUT_S
                )

    def train(self, job: str, trainer: str, ranks: int, row: TrainerRow | None) -> None:
        """Have an indexed Job of so many pods; one with other ranks is deleted, and its successor goes on from the
        checkpoint that it saves when it is told to leave."""
        name = f"trainer-{job}-{trainer}".replace("_", "-").lower()
        present = self._ranks(name)
        if present == ranks:
            return
        if present is not None:
            self._delete_job(name)
        if not ranks:
            return
        body = self._template("trainer-job.yaml", name)
        body["metadata"].setdefault("labels", {})[TRAINING] = name
        body["spec"] |= {"completions": ranks, "parallelism": ranks, "completionMode": "Indexed"}
        container = _container(body)
        arguments = ["trainer", f"--job={job}", f"--trainer={trainer}"]
        world = {"WORLD_SIZE": str(ranks)}
        if row is not None:
            _fill(container, row.image, arguments, row.resources, {**row.environment, **world})
        else:
            container["args"] = arguments
            _set_environment(container, world)
        with _answers():
            self._batch.create_namespaced_job(self._namespace, body, _request_timeout=_TIMEOUT_S)

    def close(self) -> None:
        """Pools outlive the master."""

    # --- within ---

    def _deployments(self) -> dict[str, Any]:
        with _answers():
            found = self._apps.list_namespaced_deployment(
                self._namespace, label_selector=_SELECTOR, _request_timeout=_TIMEOUT_S
            )
        return {_work(deployment): deployment for deployment in found.items}

    def _mark(self, deployment: Any, leaving: Sequence[str]) -> None:
        """Give each pod its deletion cost: low for those of the workers that are to leave."""
        labels = deployment.spec.selector.match_labels
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        with _answers():
            pods = self._core.list_namespaced_pod(
                self._namespace, label_selector=selector, _request_timeout=_TIMEOUT_S
            ).items
        named = {worker.rpartition("-")[0] for worker in leaving}  # a worker is its host's name and its process id
        for pod in pods:
            cost = _IDLE if pod.metadata.name in named else _BUSY
            if (pod.metadata.annotations or {}).get(COST) != cost:
                body = {"metadata": {"annotations": {COST: cost}}}
                with _answers(missing_ok=True):
                    self._core.patch_namespaced_pod(
                        pod.metadata.name, self._namespace, body, _request_timeout=_TIMEOUT_S
                    )

    def _ranks(self, name: str) -> int | None:
        """On how many ranks a training runs; None: not at all."""
        with _answers():
            jobs = self._batch.list_namespaced_job(
                self._namespace, label_selector=f"{TRAINING}={name}", _request_timeout=_TIMEOUT_S
            ).items
        alive = [job for job in jobs if job.metadata.deletion_timestamp is None]
        return int(alive[0].spec.completions) if alive else None

    def _delete_job(self, name: str) -> None:
        with _answers(missing_ok=True):
            self._batch.delete_namespaced_job(
                name, self._namespace, propagation_policy="Foreground", _request_timeout=_TIMEOUT_S
            )

    def _apply(self, create: Callable[[], object], change: Callable[[], object]) -> None:
        """Create a thing, or change the one that is there."""
        try:
            with _answers(conflict_ok=False):
                create()
        except _Exists:
            with _answers():
                change()

    def _template(self, file: str, name: str) -> dict[str, Any]:
        path = self._templates / file
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise ConfigError(f"{path} is missing: install the chart with controlPlane.registrations: true") from error
        body: dict[str, Any] = yaml.safe_load(text.replace(_PLACEHOLDER, name))
        return copy.deepcopy(body)


class _Exists(Exception):
    """There is one already."""


@contextmanager
def _answers(missing_ok: bool = False, conflict_ok: bool = True) -> Iterator[None]:
    """Within this block errors of the client become ours."""
    try:
        yield
    except ApiException as error:
        if error.status == 404 and missing_ok:
            return
        if error.status == 409 and not conflict_ok:
            raise _Exists from error
        if error.status in (403, 401):
            raise PermanentError(f"Kubernetes refuses: {error.reason}; the chart's Role has to allow it") from error
        if error.status and error.status < 500 and error.status not in (409, 429):
            raise PermanentError(f"Kubernetes refuses: {error.status} {error.reason}: {error.body}") from error
        raise Unavailable(f"Kubernetes answers {error.status} {error.reason}") from error
    except HTTPError as error:
        raise Unavailable(f"the Kubernetes API does not answer: {error}") from error


def _work(deployment: Any) -> str:
    metadata = deployment.metadata
    work: str = (metadata.annotations or {}).get(WORK) or metadata.labels.get(POOL) or metadata.name
    return work


def _bounds(metadata: Any) -> tuple[int, int]:
    """As the chart says; what makes no sense counts as not said."""
    found = [(metadata.annotations or {}).get(name, "") for name in (LEAST, MOST)]
    least, most = (int(text) if text.isdigit() else default for text, default in zip(found, (1, 64), strict=True))
    return least, max(least, most)


def _container(body: Mapping[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = body["spec"]["template"]["spec"]["containers"][0]
    return container


def _fill(
    container: dict[str, Any], image: str, arguments: list[str], resources: Resources, environment: Mapping[str, str]
) -> None:
    container["image"] = image
    container["args"] = arguments
    amounts = {"cpu": resources.cpu, "memory": resources.memory}
    if resources.gpus:
        amounts[resources.gpu_type] = str(resources.gpus)
    container["resources"] = {"requests": dict(amounts), "limits": dict(amounts)}
    _set_environment(container, environment)


def _set_environment(container: dict[str, Any], environment: Mapping[str, str]) -> None:
    kept = [entry for entry in container.get("env", []) if entry["name"] not in environment]
    container["env"] = kept + [{"name": name, "value": value} for name, value in environment.items()]


def _without_replicas(body: dict[str, Any]) -> dict[str, Any]:
    """A change of what runs, not of how many: that is the autoscaler's."""
    changed = copy.deepcopy(body)
    del changed["spec"]["replicas"]
    return changed
