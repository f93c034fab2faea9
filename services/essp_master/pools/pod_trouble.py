"""Why a pool has fewer workers than requested, according to Kubernetes' status of the pods and of their controllers.
Pure.

Some causes pass: a node or a quota may have room again, or a cluster autoscaler makes some. Others do not end by
waiting: an image that does not exist, or a process that ends at once or keeps running out of memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

_NEVER = frozenset(
    {
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
"""Reasons for waiting that do not end by waiting."""


_LATELY = timedelta(minutes=30)
"""An end that is older than this says nothing about the present: Kubernetes waits at most ten minutes before it
retries."""
_LEFT = frozenset({0, 75, 76, 143})
"""Exit codes of processes that are not at fault: they were told to leave, or left because another rank had died."""
_NO_MEMORY = "OOMKilled"


@dataclass(frozen=True, slots=True)
class _End:
    """How a container ended, according to Kubernetes."""

    pod: str
    at: datetime
    code: int
    reason: str
    count: int
    """How often it has ended like this."""
    limit: str
    """Its memory limit; empty if it has none."""

    @property
    def words(self) -> str:
        if self.reason == _NO_MEMORY:
            return f"{_NO_MEMORY} (limit {self.limit})" if self.limit else _NO_MEMORY
        return f"with exit code {self.code} ({self.reason})" if self.reason else f"with exit code {self.code}"


def trouble_of(pods: Iterable[Any], now: datetime, resources: str, lacks: bool) -> str:
    """Describe how many of these pods do not stay up, and why; empty if all do. `resources`: the chart's value that
    sets their memory. `lacks`: whether some of the requested pods are not up.

    A container that ran out of memory will do so again, even if it is up at present. Any other end counts only while no
    other pod has replaced it, and if it is not the only one: a single end may be chance.
    """
    pods = list(pods)
    ends = [end for pod in pods if (end := _end(pod)) is not None and now - end.at < _LATELY]
    last = max(ends, key=lambda end: end.at, default=None)
    count = sum(end.count for end in ends)
    if last is not None and (last.reason == _NO_MEMORY or (lacks and count > 1)):
        how = f"{len(ends)} pods have ended, the last one {last.words}"
        if len(ends) == 1:
            how = f"{last.pod} has ended {last.words}" + (f", {count} times" if count > 1 else "")
        remedy = f"raise {resources}" if last.reason == _NO_MEMORY else ""
        return "; ".join(filter(None, (how, remedy, f"`kubectl logs {last.pod}` and `describe` say more")))
    found = [(pod.metadata.name, why) for pod in pods if (why := _why(pod))]
    if not found:
        return ""
    name, why = found[0]
    return (
        f"{len(found)} pods do not stay up, as {name}: {why}; `kubectl logs --previous {name}` and `describe` say more"
    )


def shortage_of(workload: Any, pods: Iterable[Any]) -> str:
    """Describe what keeps pods of a Deployment or a Job from being created (a quota, a queue) or scheduled (no node has
    room); empty if nothing is known."""
    unmade = [
        f"pods are not made: {condition.message or condition.reason}"
        for condition in (workload.status and workload.status.conditions) or ()
        if condition.type == "ReplicaFailure" and condition.status == "True"
    ]
    if getattr(workload.spec, "suspend", False):
        unmade.append("its Job is suspended; the queue that it stands in has not let it in yet")
    unplaced = [(pod.metadata.name, why) for pod in pods if (why := _unplaced(pod))]
    if unplaced:
        name, why = unplaced[0]
        unmade.append(f"{len(unplaced)} pods are not placed, as {name}: {why}")
    return "; ".join(unmade)


def _end(pod: Any) -> _End | None:
    """Return how the pod has ended if its process is at fault, or how its container ran out of memory before its
    restart."""
    conditions = (pod.status and pod.status.conditions) or ()
    if any(it.type == "DisruptionTarget" and it.status == "True" for it in conditions):
        return None  # it was evicted
    for status in (pod.status and pod.status.container_statuses) or ():
        ended = status.state and status.state.terminated
        before = status.last_state and status.last_state.terminated
        if ended is None and before is not None and before.reason == _NO_MEMORY:
            ended = before
        if ended is not None and ended.exit_code not in _LEFT and ended.finished_at is not None:
            count = max(1, status.restart_count or 0)
            return _End(pod.metadata.name, ended.finished_at, ended.exit_code, ended.reason or "", count, _limit(pod))
    return None


def _limit(pod: Any) -> str:
    """Return the memory limit of its first container."""
    for container in (pod.spec and pod.spec.containers) or ():
        return str(((container.resources and container.resources.limits) or {}).get("memory", ""))
    return ""


def _why(pod: Any) -> str:
    for status in (pod.status and pod.status.container_statuses) or ():
        waiting = status.state and status.state.waiting
        if waiting and waiting.reason in _NEVER:
            last = status.last_state and status.last_state.terminated
            ended = f", exit code {last.exit_code} ({last.reason})" if last else ""
            return f"{waiting.reason}, restarted {status.restart_count} times{ended}"
    return ""


def _unplaced(pod: Any) -> str:
    """Return the scheduler's reason for not scheduling a pod."""
    for condition in (pod.status and pod.status.conditions) or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"{condition.reason}: {condition.message}" if condition.message else str(condition.reason)
    return ""
