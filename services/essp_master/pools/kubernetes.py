"""Pools as Deployments of a namespace, trainers as indexed Jobs, through the Kubernetes API.

The contract with the chart: a Deployment whose label `essp.dev/scaled-by` is `master` is a pool of the release that
`app.kubernetes.io/instance` names; its annotation `essp.dev/work` says what it does (`decoder`, `extractor.flow`),
`essp.dev/min-replicas` and `essp.dev/max-replicas` are its bounds. Sizes are set through the scale subresource, so that
the master needs no right to change anything else of them. Before a pool shrinks, idle pods get the lower deletion cost,
so they are the ones to go. Registered extractors become Deployments, trainers become Jobs, from templates which the
chart gives the master as files (`manifests.py`).

Deployments and Jobs are watched (`informer.py`), so a pool that is scaled by hand, or a Job that is deleted, is noticed
at once. A training is repaired: a Job that is gone is created again; one that differs is deleted and, once its pods are
gone, created anew. It resumes from the checkpoint that its pods saved. A registered extractor's Deployment is repaired
too: made again when it is gone, and given another pod, which Kubernetes rolls out, when it differs.

What differs is seen from a digest that each of these objects carries. The templates are read at each repair, so an
upgrade of the release that changes them (servers, settings, images, resources) reaches what runs, with no new master.

What is done to a pool or a training is an Event of its Deployment or Job, so `kubectl describe` shows it.

A master that takes over finds what the one before has made: trainings keep their ranks, and what belongs to no job and
no registration any more is removed. A ConfigMap of the release owns all of it, so Kubernetes removes it with the
release.

Nothing is deleted, or changed, because of its name alone: an object's labels have to say that the master made it for
this release, and a deletion names the object's uid, so an object of the same name that was made meanwhile stays.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubernetes import client

from essp_common.errors import ConfigError, EsspError, PermanentError
from essp_common.runtime import ids
from essp_common.runtime.conditions import Subject
from essp_common.runtime.troubles import Kind
from essp_engine.registrations import ExtractorRow, TrainerRow
from essp_master.pools.informer import TIMEOUT_S, Exists, Informer, answers
from essp_master.pools.manifests import (
    MADE_OF,
    MANAGED_BY,
    MASTER,
    RANKS,
    TRAINING,
    WORK,
    Manifest,
    extractor_deployment,
    owned,
    training_job,
    training_name,
)
from essp_master.pools.pod_trouble import shortage_of, trouble_of
from essp_master.pools.port import CannotNow, PlatformRefuses, PoolSize, TrainingKey

POOL = "essp.dev/pool"
SCALED_BY = "essp.dev/scaled-by"
RELEASE = "app.kubernetes.io/instance"
MIN_REPLICAS, MAX_REPLICAS = "essp.dev/min-replicas", "essp.dev/max-replicas"
COST = "controller.kubernetes.io/pod-deletion-cost"
_JOB = "batch.kubernetes.io/job-name"
_BUSY, _IDLE = "100", "-100"
"""Deletion costs: of two pods Kubernetes removes the one with the lower cost."""
_HIDDEN = 3
"""So often a Job of a training's name may be there unseen before people are told: one of ours may not be in the watch
yet."""
_HALF_DONE_S = 60.0
"""So long after one another the ranks of a training may end. Where one has ended, and others run on, it has left before
the end and is never started again: then the Job is made again."""
_LOOK_AT_ALL_S = 15.0
"""How often the pods of pools are looked at that are all up: what ends and is started again is up most of the time."""
_WRITES: dict[str, Any] = {"_request_timeout": TIMEOUT_S, "field_manager": MASTER}
"""Of each request that changes something: who it was, for those who find another owner of what they want to change."""
_LONGEST_MESSAGE = 1024
"""Characters of an Event, as the API allows them."""


@dataclass
class _Training:
    """A training as it is to be."""

    job: str
    trainer: str
    ranks: int
    row: TrainerRow | None
    wanted: bool
    """Whether it is to have a Job."""
    there: bool = False
    """Its Job has been seen."""
    reported: str = ""
    """The last sentence about it, so that none is repeated."""
    half_done_s: float | None = None
    """Since when some of its pods have ended for good, and others run."""
    hidden: int = 0
    """How often the API said that a Job of that name exists, while none of ours was seen."""
    template: str = ""
    """What `body` was made from."""
    body: Manifest = field(default_factory=dict)
    """Its Job."""

    def follow(self, template: str) -> None:
        """Have the Job be made from this template."""
        if template != self.template:
            self.template = template
            self.body = training_job(template, self.job, self.trainer, max(self.ranks, 1), self.row)


@dataclass
class _Extractor:
    """A registered extractor as it is to be."""

    row: ExtractorRow
    template: str = ""
    body: Manifest = field(default_factory=dict)
    """Its Deployment."""

    def follow(self, template: str) -> None:
        """Have the Deployment be made from this template."""
        if template != self.template:
            self.template = template
            self.body = extractor_deployment(template, self.row)


class KubernetesDriver:
    """Implements `essp_master.pools.port.PoolDriver`. Thread-safe."""

    def __init__(
        self,
        api: client.ApiClient,
        namespace: str,
        templates: Path,
        release: str = "",
        owner: str = "",
        pauses_s: tuple[float, float] = (1.0, 30.0),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`templates`: folder with `extractor-deployment.yaml` and `trainer-job.yaml`. `release`: whose pools these
        are; empty: all of the namespace. `owner`: the ConfigMap of the release with which all goes that is made here;
        empty: it stays. `pauses_s`: see `Informer`."""
        # Not as their own types: those leave every field of every object optional.
        self._apps: Any = client.AppsV1Api(api)
        self._core: Any = client.CoreV1Api(api)
        self._batch: Any = client.BatchV1Api(api)
        self._namespace = namespace
        self._templates = templates
        self._release = release
        self._owner_name = owner
        self._owner: Any = None
        self._clock = clock
        self._look_at_all_s = clock()
        self._trainers: dict[str, _Training] = {}
        self._extractors: dict[str, _Extractor] = {}
        """By pool."""
        self._lock = threading.RLock()
        self._crashing: dict[str, str] = {}
        """Pools whose pods did not stay up at the last look, and why."""
        self._short: dict[str, str] = {}
        """Pools of which pods were not made or not placed at the last look, and why."""
        self._changed: Callable[[], None] = lambda: None
        self._deployments = Informer("deployments", "V1Deployment", self._list_deployments, self._on_change, pauses_s)
        self._jobs = Informer("jobs", "V1Job", self._list_jobs, self._on_change, pauses_s)
        self._trains = (templates / "trainer-job.yaml").exists()

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to watch what there is."""
        self._changed = changed
        self._deployments.start()
        if self._trains:  # else there is no right to look at Jobs
            self._jobs.start()

    def sizes(self) -> Mapping[str, PoolSize]:
        """The pools that the master scales, and its trainers."""
        held_up = self._short | self._crashing
        pools = {
            (work := _work(found)): PoolSize(
                found.spec.replicas or 0,
                found.status.ready_replicas or 0,
                *_bounds(found.metadata),
                registered=_is_registered(found),
                held_up=held_up.get(work, ""),
            )
            for found in self._deployments.objects().values()
        }
        trainers = {
            (work := _work(job)): PoolSize(
                job.spec.parallelism or 0, job.status.ready or 0, 0, held_up=held_up.get(work, "")
            )
            for job in self._running_jobs()
        }
        return pools | trainers

    def scale(self, pool: str, replicas: int, spare: Sequence[str]) -> None:
        """Set the replicas; idle pods are marked as those to go."""
        deployment = self._deployment(pool)
        if deployment is None:
            return
        if (surplus := (deployment.spec.replicas or 0) - replicas) > 0:
            self._mark(deployment, spare[:surplus])
        with answers():
            self._apps.patch_namespaced_deployment_scale(
                deployment.metadata.name, self._namespace, {"spec": {"replicas": replicas}}, **_WRITES
            )

    def repair(self) -> list[str]:
        """See that each training has the Job, and each registered extractor the Deployment, that it should have.
        Kubernetes itself starts again what died."""
        done = []
        with self._lock:
            for pool, extractor in self._extractors.items():
                with suppress(PermanentError, ConfigError, CannotNow):  # the others' Deployments are no worse for it
                    if sentence := self._repair_extractor(pool, extractor):
                        done.append(sentence)
                        self.tell(pool, sentence)
            for name, training in list(self._trainers.items()):
                try:
                    sentence = self._repair(name)
                except (PermanentError, ConfigError, CannotNow) as error:  # the others' Jobs are no worse for it
                    sentence = f"trainer {name} cannot be run: {error}"
                if sentence and sentence != training.reported:
                    done.append(sentence)
                    self._record(self._job_of(name), sentence, "Warning")
                training.reported = sentence or training.reported
        self._look_at_pods()
        return done

    def tell(self, pool: str, sentence: str) -> None:
        """An Event of the pool's Deployment, or of the training's Job."""
        with suppress(EsspError):
            jobs = (job for job in self._running_jobs() if _work(job) == pool)
            self._record(self._deployment(pool) or next(jobs, None), sentence, "Normal")

    def troubles(self) -> Mapping[Subject, str]:
        """Pools whose pods do not stay up, and trainings whose Job has failed."""
        jobs = self._jobs.objects().values() if self._trains else ()
        failed = {
            _work(job): f"Job {job.metadata.name} has failed: {why}; see its pods' logs, and delete it to try again"
            for job in jobs
            if (why := _conditions(job).get("Failed"))
        }
        half_done = {
            _work(job): _half_done(job)
            for job in self._running_jobs()
            if (training := self._trainers.get(job.metadata.labels[TRAINING])) and training.half_done_s is not None
        }
        return {(Kind.CRASHING, pool): words for pool, words in (self._crashing | half_done | failed).items()}

    def add_extractor(self, row: ExtractorRow) -> None:
        """Have a Deployment for the feature."""
        pool = ids.extractor_pool([row.name])
        extractor = _Extractor(row)
        with self._lock:
            self._repair_extractor(pool, extractor)
            self._extractors[pool] = extractor  # last: one that is refused is no worse for the one before

    def remove(self, pool: str) -> None:
        """Delete the pool's Deployment; its pods get SIGTERM and their grace period."""
        with self._lock:
            self._extractors.pop(pool, None)
        deployment = self._deployment(pool)
        if deployment is not None and _is_registered(deployment):
            with answers(missing_ok=True):
                self._apps.delete_namespaced_deployment(
                    deployment.metadata.name, self._namespace, body=_only(deployment), _request_timeout=TIMEOUT_S
                )

    def train(self, job: str, trainer: str, ranks: int, row: TrainerRow | None) -> None:
        """Have an indexed Job for so many ranks. One that differs is deleted; its successor, made when that is gone,
        resumes from the checkpoint that it saves when it has to leave."""
        name = training_name(job, trainer)
        training = _Training(job, trainer, ranks, row, ranks > 0)
        training.follow(self._template("trainer-job.yaml"))
        with self._lock:
            self._trainers[name] = training
            if not training.wanted:
                self._delete_unseen(name)
            with suppress(PermanentError, CannotNow):  # `repair` reports it
                self._repair(name)

    def trainings(self) -> Mapping[TrainingKey, int]:
        """Ranks of the trainings that have a Job, whichever master made it."""
        jobs = self._jobs.objects().values() if self._trains else ()
        return {
            ids.training_of(_work(job)): int((job.metadata.annotations or {}).get(RANKS, job.spec.parallelism or 1))
            for job in jobs
            if job.metadata.deletion_timestamp is None and ids.is_training(_work(job))
        }

    def failed(self) -> Set[TrainingKey]:
        """Trainings whose Job has failed; a Job that somebody deletes is tried again."""
        return self._with_condition("Failed")

    def done(self) -> Set[TrainingKey]:
        """Trainings whose Job is complete."""
        return self._with_condition("Complete")

    def close(self) -> None:
        """Stop watching. Pools outlive the master."""
        self._deployments.close()
        if self._trains:
            self._jobs.close()

    # --- within ---

    def _on_change(self) -> None:
        self._changed()

    def _list_deployments(self, **options: Any) -> Any:
        return self._apps.list_namespaced_deployment(
            self._namespace, label_selector=self._ours(f"{SCALED_BY}=master"), **options
        )

    def _list_jobs(self, **options: Any) -> Any:
        return self._batch.list_namespaced_job(self._namespace, label_selector=self._ours(TRAINING), **options)

    def _ours(self, selector: str) -> str:
        return f"{selector},{RELEASE}={self._release}" if self._release else selector

    def _deployment(self, pool: str) -> Any:
        return next((d for d in self._deployments.objects().values() if _work(d) == pool), None)

    def _job_of(self, name: str) -> Any:
        """The Job of a training, if one is there."""
        return next((j for j in self._jobs.objects().values() if j.metadata.labels[TRAINING] == name), None)

    def _record(self, found: Any, sentence: str, kind: str) -> None:
        """An Event of an object, if there is one; who cannot write it goes on."""
        if found is None:
            return
        is_job = isinstance(found, client.V1Job)
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        event = {
            "metadata": {"name": f"{found.metadata.name}.{uuid.uuid4().hex[:16]}", "namespace": self._namespace},
            "involvedObject": {
                "apiVersion": "batch/v1" if is_job else "apps/v1",
                "kind": "Job" if is_job else "Deployment",
                "name": found.metadata.name,
                "namespace": self._namespace,
                "uid": found.metadata.uid,
            },
            "reason": "EsspPool",
            "message": sentence[:_LONGEST_MESSAGE],
            "type": kind,
            "source": {"component": MASTER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        with suppress(EsspError), answers():
            self._core.create_namespaced_event(self._namespace, event, **_WRITES)

    def _with_condition(self, condition: str) -> Set[TrainingKey]:
        """Trainings of whose Job this holds, and that is not leaving."""
        jobs = self._jobs.objects().values() if self._trains else ()
        return {
            ids.training_of(_work(job))
            for job in jobs
            if job.metadata.deletion_timestamp is None and condition in _conditions(job) and ids.is_training(_work(job))
        }

    def _running_jobs(self) -> list[Any]:
        """The Jobs of trainings that have not ended."""
        jobs = self._jobs.objects().values() if self._trains else ()
        return [job for job in jobs if not _ended(job)]

    def _look_at_pods(self) -> None:
        """See why pods are not there or do not stay up, of the pools and trainings that are not complete."""
        look_at_all = self._clock() >= self._look_at_all_s
        if look_at_all:
            self._look_at_all_s = self._clock() + _LOOK_AT_ALL_S
        deployments, jobs = list(self._deployments.objects().values()), self._running_jobs()
        lacking = [d for d in deployments if (d.status.ready_replicas or 0) < (d.spec.replicas or 0)]
        lacking += [job for job in jobs if (job.status.ready or 0) < (job.spec.parallelism or 0)]
        lacks = {_work(workload) for workload in lacking}
        kept = set() if look_at_all else {_work(workload) for workload in (*deployments, *jobs)} - lacks
        crashing = {pool: why for pool, why in self._crashing.items() if pool in kept}
        short: dict[str, str] = {}
        now = datetime.now(UTC)
        for workload in (*deployments, *jobs) if look_at_all else lacking:
            with suppress(PermanentError):  # no right to look
                pods, pool = self._pods(workload), _work(workload)
                crashing[pool] = trouble_of(pods, now, _resources_of(pool), pool in lacks)
                if pool in lacks:
                    short[pool] = shortage_of(workload, pods)
        for pool, why in crashing.items():
            if why and why != self._crashing.get(pool) and ids.is_training(pool):
                self._record(next(job for job in jobs if _work(job) == pool), why, "Warning")
        self._crashing = {pool: why for pool, why in crashing.items() if why}
        self._short = {pool: why for pool, why in short.items() if why}

    def _pods(self, workload: Any) -> Sequence[Any]:
        """The pods of a Deployment or a Job that are not leaving."""
        labels = workload.spec.selector.match_labels if workload.spec.selector else {_JOB: workload.metadata.name}
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        with answers():
            pods: Sequence[Any] = self._core.list_namespaced_pod(
                self._namespace, label_selector=selector, _request_timeout=TIMEOUT_S
            ).items
        return [pod for pod in pods if pod.metadata.deletion_timestamp is None]

    def _mark(self, deployment: Any, leaving: Sequence[str]) -> None:
        """Give each pod its deletion cost: low for those of the workers that are to leave."""
        pods = self._pods(deployment)
        named = {worker.rpartition("-")[0] for worker in leaving}  # a worker is its host's name and more
        for pod in pods:
            cost = _IDLE if pod.metadata.name in named else _BUSY
            if (pod.metadata.annotations or {}).get(COST) != cost:
                body = {"metadata": {"annotations": {COST: cost}}}
                with answers(missing_ok=True):
                    self._core.patch_namespaced_pod(pod.metadata.name, self._namespace, body, **_WRITES)

    def _repair_extractor(self, pool: str, extractor: _Extractor) -> str:
        """Have a registered extractor's Deployment, as it should be; a sentence for people if they have to know."""
        extractor.follow(self._template("extractor-deployment.yaml"))
        found = self._deployment(pool)
        if found is None:
            with suppress(Exists), answers():  # it is not seen yet, or not gone yet: the watch will show either
                self._apps.create_namespaced_deployment(self._namespace, self._owned(extractor.body), **_WRITES)
            return ""
        if not _is_registered(found):
            raise PlatformRefuses(
                f"Deployment {found.metadata.name} is pool {pool} already, and the master did not make it; take back "
                "the registration, or remove that Deployment from the release"
            )
        if found.metadata.deletion_timestamp is not None or not _differs(found, extractor.body):
            return ""
        with answers(missing_ok=True):
            self._apps.patch_namespaced_deployment(
                found.metadata.name, self._namespace, _replacing(found, extractor.body), **_WRITES
            )
        return f"pool {pool} was made of something else; its pods are replaced, a few at a time"

    def _repair(self, name: str) -> str:
        """Bring a training's Job closer to what it should be; a sentence for people if they have to know."""
        training = self._trainers[name]
        training.follow(self._template("trainer-job.yaml"))
        job = self._job_of(name)
        if job is not None and job.metadata.deletion_timestamp is not None:
            return ""  # what comes next comes when its pods are gone
        if job is None:
            if training.wanted:
                return self._create(name, training)
            del self._trainers[name]
            return ""
        if not training.wanted or _differs(job, training.body):
            self._delete(job)
            return ""
        training.there = True
        if sentence := self._made_whole(training, job):
            return sentence
        why, failed = _conditions(job).get("Failed", ""), job.metadata.name
        if not why:
            return ""
        return f"Job {failed} has failed: {why}; see its pods' logs; `kubectl delete job {failed}` has it tried again"

    def _made_whole(self, training: _Training, job: Any) -> str:
        """Delete a Job that cannot come to its end, so that it is made again; a sentence if it was."""
        if _ended(job) or not job.status.completed_indexes:
            training.half_done_s = None
            return ""
        now_s = self._clock()
        if training.half_done_s is None:
            training.half_done_s = now_s
        if now_s - training.half_done_s < _HALF_DONE_S:
            return ""
        training.half_done_s = None
        self._delete(job)
        return _half_done(job)

    def _create(self, name: str, training: _Training) -> str:
        try:
            with answers():
                self._batch.create_namespaced_job(self._namespace, self._owned(training.body), **_WRITES)
        except Exists:  # it is not seen yet, or not gone yet: the watch will show either
            training.hidden += 1
            there = f"there is a Job {training.body['metadata']['name']} that is not the master's; delete it"
            return there if training.hidden > _HIDDEN else ""
        training.hidden = 0
        gone, training.there, training.reported = training.there, False, ""
        return f"the Job of training {name} was gone and is made again" if gone else ""

    def _delete_unseen(self, name: str) -> None:
        """Delete a training's Job also where the watch has not told of it yet."""
        with answers():
            jobs = self._batch.list_namespaced_job(
                self._namespace, label_selector=self._ours(f"{TRAINING}={name}"), _request_timeout=TIMEOUT_S
            ).items
        for job in jobs:
            self._delete(job)

    def _delete(self, job: Any) -> None:
        """Delete a training's Job: this one, and no other that has its name by now."""
        with answers(missing_ok=True):
            self._batch.delete_namespaced_job(
                job.metadata.name, self._namespace, body=_only(job, "Foreground"), _request_timeout=TIMEOUT_S
            )

    def _owned(self, body: Manifest) -> Manifest:
        """The object as one that goes with the release."""
        if not self._owner_name:
            return body
        if self._owner is None:  # within `answers` of whoever makes it
            self._owner = self._core.read_namespaced_config_map(
                self._owner_name, self._namespace, _request_timeout=TIMEOUT_S
            )
        return owned(body, self._owner)

    def _template(self, file: str) -> str:
        path = self._templates / file
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            setting = "ranks: N" if file.startswith("trainer") else "registrations: true"
            raise ConfigError(
                f"{path} is missing: install the chart with controlPlane.{setting}", code="missing"
            ) from error


def _work(found: Any) -> str:
    metadata = found.metadata
    work: str = (metadata.annotations or {}).get(WORK) or metadata.labels.get(POOL) or metadata.name
    return work


def _is_registered(deployment: Any) -> bool:
    """Whether the master made it, for a registered extractor."""
    return bool(deployment.metadata.labels.get(MANAGED_BY) == MASTER)


def _only(found: Any, propagation: str | None = None) -> client.V1DeleteOptions:
    """Of a deletion: that it is of this object, and not of another one with its name."""
    return client.V1DeleteOptions(
        preconditions=client.V1Preconditions(uid=found.metadata.uid), propagation_policy=propagation
    )


def _bounds(metadata: Any) -> tuple[int, int]:
    """As the chart says; what makes no sense counts as not said."""
    found = [(metadata.annotations or {}).get(name, "") for name in (MIN_REPLICAS, MAX_REPLICAS)]
    low, high = (int(text) if text.isdigit() else default for text, default in zip(found, (1, 64), strict=True))
    return low, max(low, high)


def _conditions(job: Any) -> dict[str, str]:
    """Conditions that hold of a Job, each with its reason."""
    return {
        condition.type: f"{condition.reason or ''} {condition.message or ''}".strip()
        for condition in job.status.conditions or ()
        if condition.status == "True"
    }


def _half_done(job: Any) -> str:
    """What is wrong with a Job of which some pods have ended for good, and others run."""
    return (
        f"pods {job.status.completed_indexes} of Job {job.metadata.name} have ended as if the training were over, and "
        f"others run on without them; it is made again {_HALF_DONE_S:.0f} s after that, and goes on from its checkpoint"
    )


def _resources_of(pool: str) -> str:
    """The value of the chart that says what its pods get."""
    return "controlPlane.trainer.resources" if ids.is_training(pool) else "resources of the pool"


def _ended(job: Any) -> bool:
    return bool({"Complete", "Failed"} & _conditions(job).keys())


def _differs(found: Any, body: Manifest) -> bool:
    """Whether an object was made of something else than it should be."""
    made_of: str = body["metadata"]["annotations"][MADE_OF]
    return (found.metadata.annotations or {}).get(MADE_OF) != made_of


def _replacing(found: Any, body: Manifest) -> list[Manifest]:
    """A change (RFC 6902) of what runs, not of how many: that is the autoscaler's.

    The pod is replaced, not merged: a merge would keep what the template does not have any more.
    """
    annotations = {**(found.metadata.annotations or {}), **body["metadata"]["annotations"]}
    return [
        {"op": "replace", "path": "/spec/template", "value": body["spec"]["template"]},
        {"op": "add", "path": "/metadata/annotations", "value": annotations},
    ]
