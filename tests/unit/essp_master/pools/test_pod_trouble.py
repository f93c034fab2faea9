"""What Kubernetes says about pods, in words that lead to a remedy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubernetes import client

from essp_master.pools.pod_trouble import shortage_of, trouble_of, untold

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
IMAGE = "registry.example/essp-video:9"


def _ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


def _read(kind: str, body: dict[str, Any]) -> Any:
    """As the client reads it."""
    return getattr(client, kind).from_dict(body)


def _pod(phase: str = "Pending", *, node: str = "node2", gone: str | None = None, **status: Any) -> Any:
    body = {
        "metadata": {"name": "p-0", "uid": "of-the-pod", "deletionTimestamp": gone},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": {"memory": "1Gi"}}}]},
        "status": {"phase": phase, **status},
    }
    return _read("V1Pod", body)


def _container(state: dict[str, Any], last: dict[str, Any] | None = None, restarts: int = 0) -> dict[str, Any]:
    shared = {"name": "c", "image": IMAGE, "imageID": "", "ready": False, "restartCount": restarts, "state": state}
    return shared | ({"lastState": {"terminated": last}} if last else {})


def _waits(reason: str, message: str = "") -> dict[str, Any]:
    return _container({"waiting": {"reason": reason, "message": message}})


def _ended(code: int, reason: str, **more: Any) -> dict[str, Any]:
    return {"exitCode": code, "reason": reason, "finishedAt": _ago(60), **more}


PLACED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _ago(90)}
NO_SECRET = 'secret "essp-s3" not found'
NO_LOG = "kubectl logs"


@pytest.mark.parametrize(
    ("pod", "words", "but"),
    [
        (
            _pod(containerStatuses=[_waits("ErrImagePull", "manifest for essp-video:9\n  not found")]),
            f"ErrImagePull of {IMAGE}: manifest for essp-video:9 not found; check the name and the tag, and `kubectl "
            "describe pod p-0`",
            NO_LOG,
        ),
        (
            _pod(initContainerStatuses=[_waits("ImagePullBackOff")], containerStatuses=[_waits("PodInitializing")]),
            f"ImagePullBackOff of {IMAGE}; check",
            NO_LOG,
        ),
        (
            _pod(containerStatuses=[_waits("CreateContainerConfigError", NO_SECRET)]),
            f"CreateContainerConfigError: {NO_SECRET}; `kubectl describe pod p-0`",
            NO_LOG,
        ),
        (
            _pod(
                "Running",
                containerStatuses=[
                    _container(
                        {"waiting": {"reason": "CrashLoopBackOff"}},
                        _ended(2, "Error", message="loading\nessp: ESSP_BUS: use kafka://host\n"),
                        4,
                    )
                ],
            ),
            "CrashLoopBackOff, restarted 4 times, the last time with exit code 2 (Error): essp: ESSP_BUS: use "
            "kafka://host; `kubectl logs --previous p-0`",
            "loading",
        ),
    ],
    ids=["no image", "no image of an init container", "no secret", "a loop"],
)
def test_containers_that_do_not_start_say_why(pod: Any, words: str, but: str) -> None:
    found = trouble_of([pod], NOW, "resources", lacks=True)
    assert f"1 pod does not stay up, as p-0: {words}" in found
    assert but not in found
    assert "restarted 0" not in found


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to no healthy devices present; cannot allocate nvidia.com/gpu",
        ),
        ("OutOfcpu", "Node didn't have enough resource: cpu"),
        ("Evicted", 'Usage of EmptyDir volume "tmp" exceeds the limit "1Gi".'),
    ],
)
def test_pods_that_their_node_refuses_or_removes_say_why(reason: str, message: str) -> None:
    """One alone may be chance; their logs, if there were any, are gone."""
    evicted = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": _ago(5)}
    killed = [_container({"terminated": _ended(137, "Error")})] if reason == "Evicted" else []
    pods = [
        _pod(
            "Failed", reason=reason, message=message, startTime=_ago(9), conditions=[evicted], containerStatuses=killed
        )
        for _ in range(2)
    ]
    assert trouble_of(pods[:1], NOW, "resources", lacks=True) == ""
    found = trouble_of(pods, NOW, "resources", lacks=True)
    assert f"2 pods have ended, the last one {reason}: {message}; `kubectl describe pod" in found
    assert NO_LOG not in found
    assert trouble_of(pods, NOW, "resources", lacks=False) == ""


def test_a_node_that_stops_in_an_orderly_way_is_no_fault_of_its_pods() -> None:
    left = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": _ago(5)}
    ended = [_container({"terminated": _ended(137, "Error")})]
    pods = [
        _pod("Failed", reason="Terminated", message="node shutdown", conditions=[left], containerStatuses=ended)
    ] * 3
    assert trouble_of(pods, NOW, "resources", lacks=True) == ""


def test_what_only_events_say_is_asked_for_after_a_while() -> None:
    """A Secret that is to be mounted and is not there: the pod says that its container is being created."""
    deployment = _read(
        "V1Deployment", {"metadata": {"uid": "of-all"}, "spec": {"replicas": 1, "selector": {}, "template": {}}}
    )
    pod = _pod(conditions=[PLACED], containerStatuses=[_waits("ContainerCreating")])
    begins = _pod(
        conditions=[PLACED | {"lastTransitionTime": _ago(1)}], containerStatuses=[_waits("ContainerCreating")]
    )
    assert untold(deployment, [begins], NOW) == []
    assert untold(deployment, [pod], NOW) == ["of-the-pod"]
    assert trouble_of([pod], NOW, "resources", lacks=True) == "", "no Event says anything"
    told = {"of-the-pod": 'FailedMount: secret "kafka-ca" not found'}
    assert 'as p-0: FailedMount: secret "kafka-ca" not found; `kubectl describe' in trouble_of(
        [pod], NOW, "resources", lacks=True, told=told
    )


def test_pods_of_a_job_that_were_not_made_are_missed() -> None:
    job = _read("V1Job", {"metadata": {"uid": "of-the-job"}, "spec": {"parallelism": 2, "template": {}}, "status": {}})
    assert untold(job, [_pod("Running"), _pod("Failed")], NOW) == ["of-the-job"]
    assert untold(job, [_pod("Running"), _pod("Pending")], NOW) == []
    told = {"of-the-job": "FailedCreate: exceeded quota"}
    assert shortage_of(job, [], NOW, told) == "pods are not made: FailedCreate: exceeded quota"
    job.spec.suspend = True
    assert untold(job, [], NOW) == []


def test_a_node_that_does_not_answer_is_named() -> None:
    """First the cluster marks the pod, minutes later it removes it, and it stays until somebody removes the node."""
    job = _read("V1Job", {"metadata": {"uid": "j"}, "spec": {"parallelism": 1, "template": {}}, "status": {}})

    def holds(ready: str, containers: str) -> list[dict[str, Any]]:
        return [{"type": "Ready", "status": ready}, {"type": "ContainersReady", "status": containers}]

    silent = _pod("Running", conditions=holds("False", "True"))
    assert "p-0 is on node node2, which does not answer; Kubernetes waits" in shortage_of(job, [silent], NOW)
    starts = _pod("Running", conditions=holds("False", "False"))
    assert shortage_of(job, [starts], NOW) == ""
    leaves = _pod("Running", gone=_ago(5))
    assert shortage_of(job, [leaves], NOW) == ""
    stuck = _pod("Running", gone=_ago(60))
    assert "should have been gone at 11:59:00 UTC" in shortage_of(job, [stuck], NOW)
    assert "`kubectl delete node node2`" in shortage_of(job, [stuck], NOW)
    assert trouble_of([stuck], NOW, "resources", lacks=True) == ""
    ended, unplaced = _pod("Succeeded", gone=_ago(60)), _pod("Pending", node="", gone=_ago(60))
    assert shortage_of(job, [ended, unplaced], NOW) == "", "a finalizer holds them, and no node is to blame"


def test_what_the_platform_says_is_bounded() -> None:
    pod = _pod(containerStatuses=[_waits("ErrImagePull", "word " * 5000)])
    assert len(trouble_of([pod], NOW, "resources", lacks=True)) < 1000
