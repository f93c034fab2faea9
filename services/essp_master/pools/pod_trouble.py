"""Why a pool has fewer workers than were asked for, as Kubernetes says it of the pods and of who makes them. Pure.

Some of it passes: a node or a quota may have room again, or a cluster autoscaler makes some. The rest does not end by
waiting: an image that is not there, a process that ends at once.
"""

from __future__ import annotations

from collections.abc import Iterable
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


def trouble_of(pods: Iterable[Any]) -> str:
    """How many of these pods do not come up, and why the first of them does not; empty: none."""
    found = [(pod.metadata.name, why) for pod in pods if (why := _why(pod))]
    if not found:
        return ""
    name, why = found[0]
    return (
        f"{len(found)} pods do not stay up, as {name}: {why}; `kubectl logs --previous {name}` and `describe` say more"
    )


def shortage_of(workload: Any, pods: Iterable[Any]) -> str:
    """What keeps pods of a Deployment or a Job from being made (a quota, a queue) or placed (no node has room); empty:
    nothing does that is known."""
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


def _why(pod: Any) -> str:
    for status in (pod.status and pod.status.container_statuses) or ():
        waiting = status.state and status.state.waiting
        if waiting and waiting.reason in _NEVER:
            last = status.last_state and status.last_state.terminated
            ended = f", exit code {last.exit_code} ({last.reason})" if last else ""
            return f"{waiting.reason}, restarted {status.restart_count} times{ended}"
    return ""


def _unplaced(pod: Any) -> str:
    """What the scheduler says of a pod that it has not placed."""
    for condition in (pod.status and pod.status.conditions) or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"{condition.reason}: {condition.message}" if condition.message else str(condition.reason)
    return ""
