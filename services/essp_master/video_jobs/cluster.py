"""The requests about VideoJobs to the API server."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from kubernetes import client

from essp_master.pools.informer import TIMEOUT_S, answers
from essp_master.pools.port import PlatformRefuses
from essp_master.video_jobs.resource import (
    API_VERSION,
    FINALIZER,
    GROUP,
    KIND,
    MASTER,
    PLURAL,
    VERSION,
    Body,
    VideoJob,
)
from essp_master.video_jobs.view import time_text

_WRITES: dict[str, Any] = {"_request_timeout": TIMEOUT_S, "field_manager": MASTER}
_MERGE = {"_content_type": "application/merge-patch+json"}
_LONGEST_MESSAGE = 1024
"""Longest message of an Event that the API allows, in characters."""


class VideoJobApi:
    """VideoJobs of one namespace. Raises the errors of `essp_master.pools.informer.answers`. Thread-safe."""

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self._custom: Any = client.CustomObjectsApi(api)
        self._core: Any = client.CoreV1Api(api)
        self.namespace = namespace
        self._where = (GROUP, VERSION, namespace, PLURAL)

    def list(self, **options: Any) -> Any:
        """All of them, or, with `watch`, the raw stream of their changes: for an `Informer`."""
        try:
            found = self._custom.list_namespaced_custom_object(*self._where, **options)
        except client.ApiException as error:
            if error.status == 404:
                crd = "kubectl apply --server-side --field-manager=helm --filename charts/essp/crds"
                raise PlatformRefuses(f"the cluster does not know VideoJobs; {crd}") from error
            raise
        if options.get("watch"):
            return found
        version = SimpleNamespace(resource_version=found["metadata"]["resourceVersion"])
        return SimpleNamespace(items=[VideoJob.from_dict(body) for body in found["items"]], metadata=version)

    def create(self, body: Body) -> VideoJob:
        """Create one."""
        with answers():
            return VideoJob.from_dict(self._custom.create_namespaced_custom_object(*self._where, body, **_WRITES))

    def delete(self, found: VideoJob) -> None:
        """Delete exactly this one."""
        options = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=found.metadata.uid))
        with answers(missing_ok=True):
            self._custom.delete_namespaced_custom_object(
                *self._where, found.metadata.name, body=options, _request_timeout=TIMEOUT_S
            )

    def hold(self, found: VideoJob) -> VideoJob:
        """Keep it from vanishing before its job has stopped."""
        return self._finalizers(found, [*found.metadata.finalizers, FINALIZER])

    def release(self, found: VideoJob) -> VideoJob | None:
        """Let it vanish. Returns None if it has."""
        left: VideoJob | None = None
        with answers(missing_ok=True):
            left = self._finalizers(found, [name for name in found.metadata.finalizers if name != FINALIZER])
        return left

    def write_spec(self, found: VideoJob, spec: Body) -> VideoJob:
        """Give it another specification, unless it has changed in the meantime."""
        return self._patch(found, {"spec": _difference(found.spec, spec)})

    def write_status(self, found: VideoJob, status: Body) -> VideoJob | None:
        """Replace its status. Returns None if it is gone."""
        written: VideoJob | None = None
        with answers(missing_ok=True):
            written = VideoJob.from_dict(
                self._custom.patch_namespaced_custom_object_status(
                    *self._where,
                    found.metadata.name,
                    {"status": _difference(found.status, status)},
                    **_MERGE,
                    **_WRITES,
                )
            )
        return written

    def tell(self, found: VideoJob, kind: str, reason: str, message: str) -> None:
        """Record an Event of it."""
        now = time_text(datetime.now(UTC))
        involved = {"apiVersion": API_VERSION, "kind": KIND, "name": found.metadata.name, "uid": found.metadata.uid}
        event = {
            "metadata": {"name": f"{found.metadata.name}.{uuid.uuid4().hex[:16]}", "namespace": self.namespace},
            "involvedObject": {**involved, "namespace": self.namespace},
            "reason": reason,
            "message": message[:_LONGEST_MESSAGE],
            "type": kind,
            "source": {"component": MASTER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        with answers():
            self._core.create_namespaced_event(self.namespace, event, **_WRITES)

    def _finalizers(self, found: VideoJob, names: Sequence[str]) -> VideoJob:
        return self._patch(found, {"metadata": {"finalizers": list(names)}})

    def _patch(self, found: VideoJob, change: Body) -> VideoJob:
        """Change exactly what was seen: a list in a merge patch replaces what others may have added."""
        version = {"resourceVersion": found.metadata.resource_version}
        body = {**change, "metadata": {**change.get("metadata", {}), **version}}
        with answers():
            return VideoJob.from_dict(
                self._custom.patch_namespaced_custom_object(
                    *self._where, found.metadata.name, body, **_MERGE, **_WRITES
                )
            )


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Body:
    """The merge patch (RFC 7396) that makes `after` of `before`: it keeps what it does not name, at every depth."""
    gone: Body = dict.fromkeys(before.keys() - after.keys())
    inner = {
        name: _difference(before[name], value)
        for name, value in after.items()
        if isinstance(value, Mapping) and isinstance(before.get(name), Mapping)
    }
    return {**gone, **after, **inner}
