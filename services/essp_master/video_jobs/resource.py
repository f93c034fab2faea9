"""One VideoJob, as the API server gives it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from essp_common.job.spec import JobSpec, spec_of

GROUP, VERSION, KIND, PLURAL, SHORT = "essp.io", "v1alpha1", "VideoJob", "videojobs", "vj"
"""Its names; `tools/video_job_crd.py` makes the definition."""
API_VERSION = f"{GROUP}/{VERSION}"
FINALIZER = f"{GROUP}/job"
"""On a VideoJob while its job is under way: it cannot vanish before the job has stopped."""
RELEASE = f"{GROUP}/release"
"""A label: the release that a VideoJob is for, where several in one namespace take them."""
MANAGED_BY, MASTER = "app.kubernetes.io/managed-by", "essp-master"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LONGEST = 54
"""Characters of a job's name in the name of a VideoJob, where it needs a digest."""

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Metadata:
    """What Kubernetes knows about each object."""

    name: str
    uid: str
    generation: int
    resource_version: str
    created: str
    deleted: bool
    """Whether it is being deleted."""
    finalizers: tuple[str, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True)
class VideoJob:
    """A VideoJob at one moment."""

    metadata: Metadata
    spec: Mapping[str, Any]
    status: Mapping[str, Any]

    @classmethod
    def from_dict(cls, body: Body) -> Self:
        """As the API server sends it. The client's watch calls this."""
        found = body["metadata"]
        metadata = Metadata(
            name=found["name"],
            uid=found.get("uid", ""),
            generation=found.get("generation", 1),
            resource_version=found.get("resourceVersion", "0"),
            created=found.get("creationTimestamp", ""),
            deleted="deletionTimestamp" in found,
            finalizers=tuple(found.get("finalizers") or ()),
            labels=found.get("labels") or {},
            annotations=found.get("annotations") or {},
        )
        return cls(metadata, body.get("spec") or {}, body.get("status") or {})

    @property
    def job(self) -> str:
        """The name of its job."""
        return str(self.spec.get("name") or self.metadata.name)

    @property
    def document(self) -> dict[str, Any]:
        """Its job, as in a job file."""
        return {**{name: value for name, value in self.spec.items() if name != "paused"}, "name": self.job}

    @cached_property
    def wanted(self) -> JobSpec:
        """Its job. Raises `ConfigError` if it is wrong."""
        return spec_of(self.document, f"VideoJob {self.metadata.name}")

    @property
    def paused(self) -> bool | None:
        """Whether the job should pause; None: the VideoJob does not say."""
        return self.spec.get("paused")

    @property
    def held(self) -> bool:
        """Whether it waits for its job before it vanishes."""
        return FINALIZER in self.metadata.finalizers

    @property
    def accepted(self) -> bool:
        """Whether the job is what this generation says."""
        return bool(self.status.get("acceptedGeneration") == self.metadata.generation)

    @property
    def began(self) -> bool:
        """Whether its job was ever started."""
        return bool(self.status.get("startTime"))

    @property
    def mirrored(self) -> bool:
        """Whether the master made it, for a job that was started by the REST API."""
        return self.metadata.labels.get(MANAGED_BY) == MASTER

    @property
    def claims(self) -> bool:
        """Whether it says what its job has to be, so that requests must not contradict it."""
        return not self.mirrored and not self.metadata.deleted and (self.held or self.began)


def mirror_of(spec: JobSpec, release: str = "") -> Body:
    """The VideoJob of a job that was started by the REST API. It says nothing about pausing."""
    labels = {MANAGED_BY: MASTER} | ({RELEASE: release} if release else {})
    metadata = {"name": name_for(spec.name), "labels": labels}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": mirrored_spec(spec)}


def mirrored_spec(spec: JobSpec) -> Body:
    """A job as the `spec` of its VideoJob: what differs from the defaults."""
    document = spec.model_dump(mode="json", exclude_defaults=True)
    return document if name_for(spec.name) != spec.name else {k: v for k, v in document.items() if k != "name"}


def name_for(job: str) -> str:
    """The name of a job's VideoJob: names in Kubernetes have no underscores."""
    if _NAME.fullmatch(job):
        return job
    return f"{job.replace('_', '-')[:_LONGEST]}-{hashlib.sha256(job.encode()).hexdigest()[:8]}"
