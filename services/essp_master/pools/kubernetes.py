"""Pools as Deployments of a namespace, trainers as indexed Jobs, through the Kubernetes API.

The contract with the chart: a Deployment whose label `essp.dev/scaled-by` is `master` is a pool of the release named in
`app.kubernetes.io/instance`. Its annotation `essp.dev/work` says what it does (`decoder`, `extractor.flow`), and
`essp.dev/min-replicas` and `essp.dev/max-replicas` are its bounds. Sizes are set through the scale subresource, so the
master needs no right to change anything else about pools. Before a pool shrinks, idle pods get the lower deletion cost,
so that they are removed first. Registered extractors become Deployments and trainers become Jobs, from templates that
the chart gives the master as files (`manifests.py`).

Deployments and Jobs are watched (`informer.py`), so a pool that is scaled by hand, or a Job that is deleted, is noticed
at once. Trainers are repaired: a Job that is gone is created again; one that differs is deleted and, when its pods are
gone, created again. It resumes from the checkpoint that its pods saved. Deployments of registered extractors are
repaired too: one that is gone is created again, and one that differs gets a new pod template, which Kubernetes rolls
out. A difference shows in a digest that each of these objects carries. The templates are read at each repair, so an
upgrade of the release that changes them (servers, settings, images, resources) reaches running workers without a new
master. Every action on a pool or a training is recorded as an Event of its Deployment or Job, so `kubectl describe`
shows it.

A master that takes over finds the objects that the previous one created: trainers keep their ranks, and objects that
no longer belong to a job or a registration are removed. A ConfigMap of the release owns all of them, so Kubernetes
removes them together with the release.

A training's Job that has ended stays when the training is over, so that `kubectl get jobs` and `kubectl logs` show
it, until its `ttlSecondsAfterFinished` is over or the training runs again.

No object is deleted or changed because of its name alone: its labels must say that the master created it for this
release, and a deletion names the object's uid, so an object of the same name that was created in the meantime stays.
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
from essp_common.runtime.conditions import Lasting, Subject
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
    Owner,
    config_map,
    extractor_deployment,
    owned,
    training_job,
    training_name,
)
from essp_master.pools.pod_trouble import shortage_of, trouble_of, untold
from essp_master.pools.port import CannotNow, PlatformRefuses, PoolSize, TrainingKey

POOL = "essp.dev/pool"
SCALED_BY = "essp.dev/scaled-by"
RELEASE = "app.kubernetes.io/instance"
MIN_REPLICAS, MAX_REPLICAS = "essp.dev/min-replicas", "essp.dev/max-replicas"
COST = "controller.kubernetes.io/pod-deletion-cost"
_JOB = "batch.kubernetes.io/job-name"
_BUSY, _IDLE = "100", "-100"
"""Deletion costs: of two pods, Kubernetes removes the one with the lower cost."""
_HIDDEN = 3
"""How often a training's Job may exist without being seen before this is reported: the watch may not show a Job of ours
yet."""
_HALF_DONE_S = 60.0
"""How far apart in time the ranks of a training may end. If one has ended and others still run, it left early and is
never restarted, so the Job is created again."""
_LOOK_AT_ALL_S = 15.0
"""Interval at which pods are inspected even of pools that are fully up: a pod that keeps ending and restarting is up
most of the time."""
_PASSES_S = 20.0
"""Pods that are created and placed within this time were not held up."""
_WRITES: dict[str, Any] = {"_request_timeout": TIMEOUT_S, "field_manager": MASTER}
"""Options of each request that changes something. They name the writer, for users who find another owner of an object
that they want to change."""
_LONGEST_MESSAGE = 1024
"""Longest message of an Event that the API allows, in characters."""


@dataclass
class _Training:
    """The desired state of a training."""

    job: str
    trainer: str
    ranks: int
    row: TrainerRow | None
    wanted: bool
    """Whether it should have a Job."""
    there: bool = False
    """Whether its Job has been seen."""
    reported: str = ""
    """The last sentence reported about it, so that it is not repeated."""
    half_done_s: float | None = None
    """Since when some of its pods have ended for good while others run."""
    hidden: int = 0
    """How often the API reported that a Job of that name exists while none of ours was seen."""
    template: str = ""
    """The template that `body` was built from."""
    owner: Owner | None = None
    """The VideoJob that it belongs to, which `body` was built for."""
    body: Manifest = field(default_factory=dict)
    """Its Job."""

    def follow(self, template: str, owner: Owner | None) -> None:
        """Build the Job from this template for this owner, unless it already was."""
        if (template, owner) != (self.template, self.owner):
            self.template, self.owner = template, owner
            self.body = training_job(template, self.job, self.trainer, max(self.ranks, 1), self.row, owner)


@dataclass
class _Extractor:
    """The desired state of a registered extractor."""

    row: ExtractorRow
    template: str = ""
    body: Manifest = field(default_factory=dict)
    """Its Deployment."""

    def follow(self, template: str) -> None:
        """Build the Deployment from this template, unless it already was."""
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
        owner_of: Callable[[str], Owner | None] = lambda job: None,
    ) -> None:
        """`templates`: folder with `extractor-deployment.yaml` and `trainer-job.yaml`. `release`: the release whose
        pools these are; empty: all of the namespace. `owner`: the release's ConfigMap that owns all created objects;
        empty: they outlive the release. `pauses_s`: see `Informer`. `owner_of`: returns the VideoJob of a job, which
        then owns its training runs instead."""
        # Not with their own types, in which every field of every object is optional.
        self._apps: Any = client.AppsV1Api(api)
        self._core: Any = client.CoreV1Api(api)
        self._batch: Any = client.BatchV1Api(api)
        self._namespace = namespace
        self._templates = templates
        self._release = release
        self._owner_name = owner
        self._owner: Any = None
        self._owner_of = owner_of
        self._clock = clock
        self._look_at_all_s = clock()
        self._trainers: dict[str, _Training] = {}
        self._extractors: dict[str, _Extractor] = {}
        """By pool."""
        self._lock = threading.RLock()
        self._released: set[str] = set()
        """Uids of ended Jobs whose training is over: they stay, with the logs of their pods, until their time to live
        is over, or until the training runs again."""
        self._crashing: dict[str, str] = {}
        """Pools whose pods did not stay up at the last inspection, with the reason."""
        self._short: dict[str, str] = {}
        """Pools with pods that were not created or not scheduled at the last inspection, with the reason."""
        self._idle: Set[str] = set()
        """Pools that had no worker at the last inspection, and training runs that lacked a pod."""
        self._lasting = Lasting(_PASSES_S, clock)
        self._changed: Callable[[], None] = lambda: None
        self._deployments = Informer("deployments", "V1Deployment", self._list_deployments, self._on_change, pauses_s)
        self._jobs = Informer("jobs", "V1Job", self._list_jobs, self._on_change, pauses_s)
        self._trains = (templates / "trainer-job.yaml").exists()

    def start(self, changed: Callable[[], None]) -> None:
        """Start watching."""
        self._changed = changed
        self._deployments.start()
        if self._trains:  # otherwise the master has no right to read Jobs
            self._jobs.start()

    def sizes(self) -> Mapping[str, PoolSize]:
        """Return the sizes of the pools that the master scales, and of its trainers."""
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
        """Set the replicas; idle pods are marked to be removed first."""
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
        """Ensure that each training has its Job and each registered extractor its Deployment, as they should be.
        Kubernetes itself restarts pods that died."""
        done = []
        with self._lock:
            for pool, extractor in self._extractors.items():
                with suppress(PermanentError, ConfigError, CannotNow):  # the other Deployments are unaffected
                    if sentence := self._repair_extractor(pool, extractor):
                        done.append(sentence)
                        self.tell(pool, sentence)
            for name, training in list(self._trainers.items()):
                try:
                    sentence = self._repair(name)
                except (PermanentError, ConfigError, CannotNow) as error:  # the other Jobs are unaffected
                    sentence = f"trainer {name} cannot be run: {error}"
                if sentence and sentence != training.reported:
                    done.append(sentence)
                    self._record(self._job_of(name), sentence, "Warning")
                training.reported = sentence or training.reported
        self._look_at_pods()
        return done

    def tell(self, pool: str, sentence: str) -> None:
        """Record an Event of the pool's Deployment or of the training's Job."""
        with suppress(EsspError):
            jobs = (job for job in self._running_jobs() if _work(job) == pool)
            self._record(self._deployment(pool) or next(jobs, None), sentence, "Normal")

    def troubles(self) -> Mapping[Subject, str]:
        """Return the pools whose pods do not stay up or do not come up, and the training runs whose Job has failed."""
        failed = {
            _work(job): f"Job {job.metadata.name} has failed: {why}; see its pods' logs, and delete it to try again"
            for job in self._current_jobs()
            if (why := _conditions(job).get("Failed"))
        }
        half_done = {
            _work(job): _half_done(job)
            for job in self._running_jobs()
            if (training := self._trainers.get(job.metadata.labels[TRAINING])) and training.half_done_s is not None
        }
        crashing = self._crashing | half_done | failed
        short = {pool: why for pool, why in self._short.items() if pool in self._idle and pool not in crashing}
        return {(Kind.CRASHING, pool): words for pool, words in crashing.items()} | self._lasting.of(
            {(Kind.HELD_UP, pool): words for pool, words in short.items()}
        )

    def add_extractor(self, row: ExtractorRow) -> None:
        """Ensure a Deployment for the feature."""
        pool = ids.extractor_pool([row.name])
        extractor = _Extractor(row)
        with self._lock:
            self._repair_extractor(pool, extractor)
            self._extractors[pool] = extractor  # last: if it is refused, the previous one stays

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
        """Ensure an indexed Job for this many ranks. One that differs is deleted; its successor, created when it is
        gone, resumes from the checkpoint that the old one saves when it leaves."""
        name = training_name(job, trainer)
        training = _Training(job, trainer, ranks, row, ranks > 0)
        training.follow(self._template("trainer-job.yaml"), self._owner_of(training.job))
        with self._lock:
            self._trainers[name] = training
            if not training.wanted:
                self._delete_unseen(name)
            with suppress(PermanentError, CannotNow):  # `repair` reports it
                self._repair(name)

    def trainings(self) -> Mapping[TrainingKey, int]:
        """Return the ranks of the training runs that have a Job, whichever master created it."""
        return {
            ids.training_of(_work(job)): int((job.metadata.annotations or {}).get(RANKS, job.spec.parallelism or 1))
            for job in self._current_jobs()
            if job.metadata.deletion_timestamp is None and ids.is_training(_work(job))
        }

    def failed(self) -> Set[TrainingKey]:
        """Return the training runs whose Job has failed. Deleting the Job makes the master try again."""
        return self._with_condition("Failed")

    def done(self) -> Set[TrainingKey]:
        """Return the training runs whose Job is complete."""
        return self._with_condition("Complete")

    def close(self) -> None:
        """Stop watching. Pools outlive the master."""
        self._deployments.close()
        if self._trains:
            self._jobs.close()

    # --- internals ---

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
        """Return the Job of a training, if there is one."""
        return next((j for j in self._jobs.objects().values() if j.metadata.labels[TRAINING] == name), None)

    def _record(self, found: Any, sentence: str, kind: str) -> None:
        """Record an Event of an object, if there is one. A failure to write it is ignored."""
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
        """Return the training runs whose Job has this condition and is not being deleted."""
        return {
            ids.training_of(_work(job))
            for job in self._current_jobs()
            if job.metadata.deletion_timestamp is None and condition in _conditions(job) and ids.is_training(_work(job))
        }

    def _current_jobs(self) -> list[Any]:
        """Return the Jobs of training runs that are not over."""
        jobs = self._jobs.objects().values() if self._trains else ()
        return [job for job in jobs if job.metadata.uid not in self._released]

    def _running_jobs(self) -> list[Any]:
        """Return the Jobs of training runs that have not ended."""
        return [job for job in self._current_jobs() if not _ended(job)]

    def _look_at_pods(self) -> None:
        """Find out why pods are missing or do not stay up, in pools and training runs that are not complete."""
        look_at_all = self._clock() >= self._look_at_all_s
        if look_at_all:
            self._look_at_all_s = self._clock() + _LOOK_AT_ALL_S
        deployments, jobs = list(self._deployments.objects().values()), self._running_jobs()
        lacking = [d for d in deployments if (d.status.ready_replicas or 0) < (d.spec.replicas or 0)]
        lacking += [job for job in jobs if (job.status.ready or 0) < (job.spec.parallelism or 0)]
        lacks = {_work(workload) for workload in lacking}
        # Pools that are up and not inspected this time keep their last finding.
        kept = set() if look_at_all else {_work(workload) for workload in (*deployments, *jobs)} - lacks
        crashing = {pool: why for pool, why in self._crashing.items() if pool in kept}
        short: dict[str, str] = {}
        now = datetime.now(UTC)
        for workload in (*deployments, *jobs) if look_at_all else lacking:
            with suppress(PermanentError):  # no right to read pods
                pods, pool = self._pods(workload), _work(workload)
                told = self._told(untold(workload, pods, now)) if pool in lacks else {}
                crashing[pool] = trouble_of(pods, now, _resources_of(pool), pool in lacks, told)
                if pool in lacks:
                    short[pool] = shortage_of(workload, pods, now, told)
        for pool, why in crashing.items():
            if why and why != self._crashing.get(pool) and ids.is_training(pool):
                self._record(next(job for job in jobs if _work(job) == pool), why, "Warning")
        self._idle = {_work(it) for it in lacking if not getattr(it.status, "ready_replicas", None)}
        self._crashing = {pool: why for pool, why in crashing.items() if why}
        self._short = {pool: why for pool, why in short.items() if why}

    def _pods(self, workload: Any) -> Sequence[Any]:
        """Return the pods of a Deployment or a Job, including those that are being deleted."""
        labels = workload.spec.selector.match_labels if workload.spec.selector else {_JOB: workload.metadata.name}
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        with answers():
            pods: Sequence[Any] = self._core.list_namespaced_pod(
                self._namespace, label_selector=selector, _request_timeout=TIMEOUT_S
            ).items
        return pods

    def _told(self, uids: Sequence[str]) -> dict[str, str]:
        """Return the newest warning that Kubernetes has about each of these objects."""
        found: dict[str, str] = {}
        for uid in uids:
            with suppress(PermanentError), answers():  # no right to read events
                events = self._core.list_namespaced_event(
                    self._namespace,
                    field_selector=f"involvedObject.uid={uid},type=Warning",
                    _request_timeout=TIMEOUT_S,
                ).items
                warnings = [event for event in events if event.source is None or event.source.component != MASTER]
                if warnings:
                    newest = max(warnings, key=lambda event: event.last_timestamp or event.metadata.creation_timestamp)
                    found[uid] = f"{newest.reason}: {newest.message}"
        return found

    def _mark(self, deployment: Any, leaving: Sequence[str]) -> None:
        """Set the deletion cost of each pod: low for the workers that should leave."""
        pods = [pod for pod in self._pods(deployment) if pod.metadata.deletion_timestamp is None]
        # a worker is named after its host, with a suffix
        named = {worker.rpartition("-")[0] for worker in leaving}
        for pod in pods:
            cost = _IDLE if pod.metadata.name in named else _BUSY
            if (pod.metadata.annotations or {}).get(COST) != cost:
                body = {"metadata": {"annotations": {COST: cost}}}
                with answers(missing_ok=True):
                    self._core.patch_namespaced_pod(pod.metadata.name, self._namespace, body, **_WRITES)

    def _repair_extractor(self, pool: str, extractor: _Extractor) -> str:
        """Bring a registered extractor's Deployment to its desired state. Returns a sentence for users if they should
        know."""
        extractor.follow(self._template("extractor-deployment.yaml"))
        found = self._deployment(pool)
        if found is None:
            with suppress(Exists), answers():  # not seen yet, or not gone yet: the watch will show which
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
        return f"pool {pool} was made from another template; its pods are replaced, a few at a time"

    def _repair(self, name: str) -> str:
        """Bring a training's Job closer to its desired state. Returns a sentence for users if they should know."""
        training = self._trainers[name]
        training.follow(self._template("trainer-job.yaml"), self._owner_of(training.job))
        job = self._job_of(name)
        if job is not None and job.metadata.deletion_timestamp is not None:
            return ""  # the next step comes when its pods are gone
        if job is None:
            if training.wanted:
                return self._create(name, training)
            del self._trainers[name]
            return ""
        if not training.wanted and _ended(job):
            self._released.add(job.metadata.uid)
            del self._trainers[name]
            return ""
        if not training.wanted or _differs(job, training.body) or job.metadata.uid in self._released:
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
        """Delete a Job that can never complete, so that it is created again. Returns a sentence if so."""
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
                self._batch.create_namespaced_job(
                    self._namespace, self._owned(training.body, training.owner), **_WRITES
                )
        except Exists:  # not seen yet, or not gone yet: the watch will show which
            training.hidden += 1
            there = f"there is a Job {training.body['metadata']['name']} that is not the master's; delete it"
            return there if training.hidden > _HIDDEN else ""
        training.hidden = 0
        gone, training.there, training.reported = training.there, False, ""
        return f"the Job of training {name} was gone and is made again" if gone else ""

    def _delete_unseen(self, name: str) -> None:
        """Delete a training's Job even if the watch has not shown it yet. One that has ended stays."""
        with answers():
            jobs = self._batch.list_namespaced_job(
                self._namespace, label_selector=self._ours(f"{TRAINING}={name}"), _request_timeout=TIMEOUT_S
            ).items
        for job in jobs:
            if _ended(job):
                self._released.add(job.metadata.uid)
            else:
                self._delete(job)

    def _delete(self, job: Any) -> None:
        """Delete a training's Job: exactly this one, and not a later one with the same name."""
        with answers(missing_ok=True):
            self._batch.delete_namespaced_job(
                job.metadata.name, self._namespace, body=_only(job, "Foreground"), _request_timeout=TIMEOUT_S
            )

    def _owned(self, body: Manifest, owner: Owner | None = None) -> Manifest:
        """Return the object with its owner: a VideoJob, else the release's ConfigMap."""
        if owner is not None:
            return owned(body, owner.reference)
        if not self._owner_name:
            return body
        if self._owner is None:  # within the caller's `answers`
            self._owner = self._core.read_namespaced_config_map(
                self._owner_name, self._namespace, _request_timeout=TIMEOUT_S
            )
        return owned(body, config_map(self._owner))

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
    """Whether the master created it, for a registered extractor."""
    return bool(deployment.metadata.labels.get(MANAGED_BY) == MASTER)


def _only(found: Any, propagation: str | None = None) -> client.V1DeleteOptions:
    """Deletion options that match exactly this object, and not another one with its name."""
    return client.V1DeleteOptions(
        preconditions=client.V1Preconditions(uid=found.metadata.uid), propagation_policy=propagation
    )


def _bounds(metadata: Any) -> tuple[int, int]:
    """Return the bounds in the chart's annotations; invalid ones count as missing."""
    found = [(metadata.annotations or {}).get(name, "") for name in (MIN_REPLICAS, MAX_REPLICAS)]
    low, high = (int(text) if text.isdigit() else default for text, default in zip(found, (1, 64), strict=True))
    return low, max(low, high)


def _conditions(job: Any) -> dict[str, str]:
    """Return the conditions that hold for a Job, each with its reason."""
    return {
        condition.type: f"{condition.reason or ''} {condition.message or ''}".strip()
        for condition in job.status.conditions or ()
        if condition.status == "True"
    }


def _half_done(job: Any) -> str:
    """Describe a Job in which some pods have ended for good while others run."""
    return (
        f"pods {job.status.completed_indexes} of Job {job.metadata.name} have ended as if the training were over, and "
        f"others run on without them; it is made again {_HALF_DONE_S:.0f} s after that, and resumes from its checkpoint"
    )


def _resources_of(pool: str) -> str:
    """Return the chart's value that sets the resources of its pods."""
    return "controlPlane.trainer.resources" if ids.is_training(pool) else "resources of the pool"


def _ended(job: Any) -> bool:
    return bool({"Complete", "Failed"} & _conditions(job).keys())


def _differs(found: Any, body: Manifest) -> bool:
    """Whether an object was built from something else than it should be."""
    made_of: str = body["metadata"]["annotations"][MADE_OF]
    return (found.metadata.annotations or {}).get(MADE_OF) != made_of


def _replacing(found: Any, body: Manifest) -> list[Manifest]:
    """Return a patch (RFC 6902) of what runs, not of the replicas, which belong to the autoscaler.

    The pod template is replaced, not merged: a merge would keep fields that the template no longer has.
    """
    annotations = {**(found.metadata.annotations or {}), **body["metadata"]["annotations"]}
    return [
        {"op": "replace", "path": "/spec/template", "value": body["spec"]["template"]},
        {"op": "add", "path": "/metadata/annotations", "value": annotations},
    ]
