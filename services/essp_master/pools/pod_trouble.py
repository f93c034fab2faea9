"""Why a pool has fewer workers than requested, according to Kubernetes' status of the pods and of their controllers.
Pure.

Some causes pass: a node or a quota may have room again, a cluster autoscaler makes some, a node answers again. Others
do not end by waiting: an image that does not exist, a Secret that is missing, or a process that ends at once or keeps
running out of memory.

The status of a pod or a Job does not say everything: why a volume cannot be mounted, or why a Job's pods are refused,
is only in Events. `untold` names the objects whose Events are worth a request; their texts are passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from essp_common.quantities import counted

_IMAGE = frozenset(
    {
        "ImagePullBackOff",
        "ErrImagePull",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_LOOP = "CrashLoopBackOff"
_NEVER = _IMAGE | {_LOOP, "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
"""Reasons for waiting that do not end by waiting."""

_LATELY = timedelta(minutes=30)
"""An end that is older than this says nothing about the present: Kubernetes waits at most ten minutes before it
retries."""
_LEFT = frozenset({0, 75, 76, 143})
"""Exit codes of processes that are not at fault: they were told to leave, or left because another rank had died."""
_NO_MEMORY = "OOMKilled"
_OVERDUE = timedelta(seconds=30)
"""A pod that is still there this long after its grace period is on a node that does not answer."""
_STARTS = timedelta(seconds=30)
"""How long a container may be created before its pod's Events are read."""
_LONGEST = 400
"""Longest message of the platform that is passed on, in characters."""


@dataclass(frozen=True, slots=True)
class _End:
    """How a container ended, according to Kubernetes."""

    pod: str
    at: datetime
    count: int
    """How often it has ended like this."""
    words: str
    no_memory: bool = False
    ran: bool = True
    """Whether there may be a log."""


def trouble_of(
    pods: Iterable[Any], now: datetime, resources: str, lacks: bool, told: Mapping[str, str] | None = None
) -> str:
    """Describe how many of these pods do not stay up, and why; empty if all do. `resources`: the chart's value that
    sets their memory. `lacks`: whether some of the requested pods are not up. `told`: uid -> what Events say about it.

    A container that ran out of memory will do so again, even if it is up at present. Any other end counts only while no
    other pod has replaced it, and if it is not the only one: a single end may be chance.
    """
    pods = [pod for pod in pods if pod.metadata.deletion_timestamp is None]
    ends = [end for pod in pods if (end := _end(pod)) is not None and now - end.at < _LATELY]
    last = max(ends, key=lambda end: end.at, default=None)
    count = sum(end.count for end in ends)
    if last is not None and (last.no_memory or (lacks and count > 1)):
        how = f"{len(ends)} pods have ended, the last one {last.words}"
        if len(ends) == 1:
            how = f"{last.pod} has ended {last.words}" + (f", {count} times" if count > 1 else "")
        remedy = f"raise {resources}" if last.no_memory else ""
        more = f"`kubectl logs {last.pod}` and `describe` say more" if last.ran else _describe(last.pod)
        return "; ".join(filter(None, (how, remedy, more)))
    found = [(pod.metadata.name, both) for pod in pods if (both := _why(pod) or _unstarted(pod, now, told or {}))]
    if not found:
        return ""
    name, (why, remedy) = found[0]
    return f"{counted(len(found), 'pod')} {'does' if len(found) == 1 else 'do'} not stay up, as {name}: {why}; {remedy}"


def shortage_of(workload: Any, pods: Iterable[Any], now: datetime, told: Mapping[str, str] | None = None) -> str:
    """Describe what keeps pods of a Deployment or a Job from being created (a quota, a queue), scheduled (no node has
    room), or replaced (their node does not answer); empty if nothing is known. `told`: as in `trouble_of`."""
    pods = list(pods)
    words = [
        f"pods are not made: {_short(condition.message or condition.reason)}; {_tried_again(workload.metadata.name)}"
        for condition in (workload.status and workload.status.conditions) or ()
        if condition.type == "ReplicaFailure" and condition.status == "True"
    ]
    if _unmade(workload, pods) and (refused := (told or {}).get(workload.metadata.uid, "")):
        words.append(f"pods are not made: {_short(refused)}")
    if getattr(workload.spec, "suspend", False):
        words.append("its Job is suspended; the queue that it stands in has not let it in yet")
    unplaced = [(pod.metadata.name, why) for pod in pods if (why := _unplaced(pod))]
    if unplaced:
        name, why = unplaced[0]
        verb = "is" if len(unplaced) == 1 else "are"
        words.append(f"{counted(len(unplaced), 'pod')} {verb} not placed, as {name}: {why}")
    if lost := [pod for pod in pods if _overdue(pod, now) or _unreachable(pod)]:
        words.append(_lost(lost[0], overdue=_overdue(lost[0], now)))
    return "; ".join(words)


def untold(workload: Any, pods: Sequence[Any], now: datetime) -> list[str]:
    """Return the uids of the objects whose status does not say why they do not come up; their Events may."""
    found = [workload.metadata.uid] if _unmade(workload, pods) else []
    return found + [pod.metadata.uid for pod in pods if _is_unstarted(pod, now)][:1]


def _end(pod: Any) -> _End | None:
    """Return how the pod has ended if its process or its settings are at fault, or how its container ran out of memory
    before its restart."""
    status = pod.status
    if status is None:
        return None
    if status.phase == "Failed" and status.reason and not _ran(status):
        # Its node has taken it and then refused it, or has removed it: lack of a device, of disk, of memory.
        at = max((it.last_transition_time for it in status.conditions or () if it.last_transition_time), default=None)
        at = at or status.start_time
        words = f"{status.reason}: {_short(status.message or '')}".rstrip(": ")
        return None if at is None else _End(pod.metadata.name, at, 1, words, ran=False)
    if any(it.type == "DisruptionTarget" and it.status == "True" for it in status.conditions or ()):
        return None  # it was evicted
    for container in _containers(status):
        ended = container.state and container.state.terminated
        before = container.last_state and container.last_state.terminated
        if ended is None and before is not None and before.reason == _NO_MEMORY:
            ended = before
        if ended is not None and ended.exit_code not in _LEFT and ended.finished_at is not None:
            count = max(1, container.restart_count or 0)
            words, no_memory = _ended_words(ended, _limit(pod)), ended.reason == _NO_MEMORY
            return _End(pod.metadata.name, ended.finished_at, count, words, no_memory)
    return None


def _ended_words(ended: Any, limit: str) -> str:
    if ended.reason == _NO_MEMORY:
        return f"{_NO_MEMORY} (limit {limit})" if limit else _NO_MEMORY
    reason = f" ({ended.reason})" if ended.reason else ""
    log: list[str] = str(ended.message or "").strip().splitlines()  # the end of it
    last = log[-1] if log else ""
    said = f": {_short(last)}" if last else ""
    return f"with exit code {ended.exit_code}{reason}{said}"


def _ran(status: Any) -> bool:
    """Whether a container of the pod has ended by itself; those of an evicted pod are killed."""
    ends = [container.state.terminated for container in _containers(status) if container.state]
    return status.reason != "Evicted" and any(ends)


def _limit(pod: Any) -> str:
    """Return the memory limit of its first container."""
    for container in (pod.spec and pod.spec.containers) or ():
        return str(((container.resources and container.resources.limits) or {}).get("memory", ""))
    return ""


def _containers(status: Any) -> list[Any]:
    """Return the statuses of the pod's containers, in the order in which they start."""
    return [*(status.init_container_statuses or ()), *(status.container_statuses or ())]


def _why(pod: Any) -> tuple[str, str] | None:
    """Return why a container of the pod does not start, and what to do."""
    for container in _containers(pod.status) if pod.status else ():
        waiting = container.state and container.state.waiting
        if not waiting or waiting.reason not in _NEVER:
            continue
        name = pod.metadata.name
        if waiting.reason in _IMAGE:
            said = f": {_short(waiting.message)}" if waiting.message else ""
            return f"{waiting.reason} of {container.image}{said}", f"check the name and the tag, and {_describe(name)}"
        last = container.last_state and container.last_state.terminated
        if last or waiting.reason == _LOOP:
            ended = f", the last time {_ended_words(last, _limit(pod))}" if last else ""
            why = f"{waiting.reason}, restarted {counted(container.restart_count or 0, 'time')}{ended}"
            return why, f"`kubectl logs --previous {name}` and `describe` say more"
        said = f": {_short(waiting.message)}" if waiting.message else ""
        return f"{waiting.reason}{said}", _describe(name)
    return None


def _unstarted(pod: Any, now: datetime, told: Mapping[str, str]) -> tuple[str, str] | None:
    """Return what Events say about a pod whose containers are not created."""
    if not _is_unstarted(pod, now) or not (words := told.get(pod.metadata.uid, "")):
        return None
    return _short(words), _describe(pod.metadata.name)


def _is_unstarted(pod: Any, now: datetime) -> bool:
    """Whether the pod has a node, and its containers have been created for longer than that takes."""
    status = pod.status
    if status is None or status.phase != "Pending" or pod.metadata.deletion_timestamp is not None:
        return False
    placed = [it for it in status.conditions or () if it.type == "PodScheduled" and it.status == "True"]
    since = placed[0].last_transition_time if placed else None
    waits = [it.state and it.state.waiting for it in _containers(status)]
    creating = any(it and it.reason in ("ContainerCreating", "PodInitializing") for it in waits)
    return bool(since is not None and now - since > _STARTS and creating)


def _unmade(workload: Any, pods: Iterable[Any]) -> bool:
    """Whether a Job has fewer pods than it should have at once. (A Deployment says in its conditions why.)"""
    wanted = getattr(workload.spec, "parallelism", None)
    if wanted is None or getattr(workload.spec, "suspend", False):
        return False
    return bool(sum(pod.status is None or pod.status.phase not in ("Failed", "Succeeded") for pod in pods) < wanted)


def _tried_again(deployment: str) -> str:
    """Return when Kubernetes tries again to create pods of a Deployment: the queue of its controllers backs off from 5
    ms to 1000 s, and any change of the object ends the wait. (For a Job, it waits for a minute at most.)"""
    return (
        "Kubernetes tries again after ever longer pauses of up to 17 minutes, and at once after `kubectl annotate "
        f"deployment {deployment} essp.dev/retried=$(date +%s) --overwrite`"
    )


def _unplaced(pod: Any) -> str:
    """Return the scheduler's reason for not scheduling a pod."""
    for condition in (pod.status and pod.status.conditions) or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            said = f"{condition.reason}: {condition.message}" if condition.message else str(condition.reason)
            return _short(said)
    return ""


def _overdue(pod: Any, now: datetime) -> bool:
    """Whether the pod should have been gone for a while, and only its node can say that it has ended. (One that has
    ended, or never had a node, may wait for a finalizer.)"""
    gone = pod.metadata.deletion_timestamp
    runs = pod.spec and pod.spec.node_name and pod.status and pod.status.phase not in ("Failed", "Succeeded")
    return bool(runs and gone is not None and now - gone > _OVERDUE)


def _unreachable(pod: Any) -> bool:
    """Whether the cluster has marked the pod because its node does not answer. It takes away `Ready` alone: a node that
    answers reports that containers are not ready either."""
    holds = {it.type: it.status for it in (pod.status and pod.status.conditions) or ()}
    gated = bool(pod.spec and pod.spec.readiness_gates)
    return not gated and holds.get("Ready") == "False" and holds.get("ContainersReady") == "True"


def _lost(pod: Any, overdue: bool) -> str:
    node = (pod.spec and pod.spec.node_name) or ""
    words = f"{pod.metadata.name} is on node {node}, which does not answer"
    if not overdue:
        return f"{words}; Kubernetes waits some minutes for it before it moves the pod"
    since = pod.metadata.deletion_timestamp
    return (
        f"{words}: the pod should have been gone at {since:%H:%M:%S} UTC, and Kubernetes creates no other one before "
        f"that is certain; if the node is lost for good, `kubectl delete node {node}`"
    )


def _describe(pod: str) -> str:
    return f"`kubectl describe pod {pod}` says more"


def _short(message: str) -> str:
    """Return a message of the platform in one line of bounded length."""
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
