"""Why a pod of a pool does not come up or stay up, as Kubernetes says it of its containers. Pure."""

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


def _why(pod: Any) -> str:
    for status in (pod.status and pod.status.container_statuses) or ():
        waiting = status.state and status.state.waiting
        if waiting and waiting.reason in _NEVER:
            last = status.last_state and status.last_state.terminated
            ended = f", exit code {last.exit_code} ({last.reason})" if last else ""
            return f"{waiting.reason}, restarted {status.restart_count} times{ended}"
    return ""
