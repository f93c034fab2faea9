"""What is seen of a release while a job runs in it: by its API, by the API server, and by the brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from essp_common import topics
from essp_common.bus.port import Record
from essp_common.errors import TransientError
from essp_common.messages.parsing import BadMessage, parsed
from essp_common.pb.v1.messages_pb2 import Progress
from essp_common.wiring import open_bus
from tests.chart.rendering import Object
from tests.cluster.release import Release, ready
from tests.cluster.timeline import AWAY, LEADS, READY, UNKNOWN, Timeline

STUCK_S = 900.0
LOOK_S = 0.5
_REQUEST_S = 5.0
_RENEWED = timedelta(seconds=8)
"""A leader renews its lease every two seconds."""


def until(condition: Callable[[], bool], what: str) -> None:
    """Return once this holds. While a request fails, it does not."""
    deadline = time.monotonic() + STUCK_S
    while True:
        with suppress(httpx.HTTPError):
            if condition():
                return
        assert time.monotonic() < deadline, what
        time.sleep(LOOK_S)


class Cluster:
    """The release in its namespace, and what is seen of it."""

    def __init__(self, release: Release, job: str, ranks: Mapping[str, int], token: str) -> None:
        """`job`: that it is for, whose trainers have pools `JOB-TRAINER` and these ranks. `token`: of the API."""
        self.release = release
        self.timeline = Timeline()
        self.name = job
        self._ranks = ranks
        self._token = token
        self._api: httpx.Client | None = None
        self._forwarding = ExitStack()

    def ask(self, method: str, path: str, timeout_s: float = _REQUEST_S, **more: Any) -> httpx.Response:
        """Ask the master, again and again until one answers within that time."""
        deadline = time.monotonic() + STUCK_S
        while True:
            try:
                if self._api is None:
                    self._api = self._forwarding.enter_context(self.release.forwarded(self._token))
                answer = self._api.request(method, path, timeout=timeout_s, **more)
                if answer.status_code != 503:  # no master leads
                    return answer
            except httpx.HTTPError:
                self.close()
            assert time.monotonic() < deadline, f"{path}: no master answers"
            time.sleep(LOOK_S)

    @property
    def url(self) -> str:
        """Where the API is, while it was last seen."""
        assert self._api is not None
        return str(self._api.base_url)

    def close(self) -> None:
        """Forward no longer."""
        self._api = None
        self._forwarding.close()

    def job(self) -> Object:
        """The job as it stands."""
        found: Object = self.ask("GET", f"/v1/jobs/{self.name}").raise_for_status().json()
        return found

    def leader(self) -> str:
        """Address of the pod that holds the lease, and has renewed it lately; empty if none does."""
        lease = self.release.api.get(
            f"/apis/coordination.k8s.io/v1/namespaces/{self.release.namespace}/leases/essp-master"
        )
        if lease.status_code == 404:
            return ""
        spec = lease.raise_for_status().json()["spec"]
        holder = spec.get("holderIdentity") or ""
        if not holder or datetime.now(UTC) - datetime.fromisoformat(spec["renewTime"]) > _RENEWED:
            return ""  # it died, and its pod, which is there again, has the same address
        return holder.partition("//")[2].partition(":8080")[0]

    def pods(self) -> list[Object]:
        """Those that have a node."""
        return [pod for pod in self.release.pods({"app.kubernetes.io/name": "essp"}) if "nodeName" in pod["spec"]]

    def nodes(self) -> list[Object]:
        """Those of the cluster."""
        found: list[Object] = self.release.api.get("/api/v1/nodes").raise_for_status().json()["items"]
        return found

    def look(self) -> None:
        """Note what is up, as the API server has it."""
        states = {lane: AWAY for lane in self.timeline.lanes if " on " in lane}
        for node in self.nodes():
            states[node["metadata"]["name"]] = READY if ready(node) else AWAY
        leader = self.leader()
        for pod in sorted(self.pods(), key=lane_of):
            lane = lane_of(pod)
            state = READY if ready(pod) else AWAY
            if state == READY and pod["status"].get("podIP") == leader:
                state = LEADS
            states[lane] = max(state, states.get(lane, AWAY))
        for lane, state in {"API server": READY, **states}.items():
            self.timeline.note(lane, state)

    def look_in_vain(self) -> None:
        """Note that the API server does not answer."""
        self.timeline.note("API server", AWAY)
        for lane in [lane for lane in self.timeline.lanes if " on " in lane]:
            self.timeline.note(lane, UNKNOWN)

    def is_whole(self) -> bool:
        """Whether all nodes and pods are ready, those of trainers that are not done included."""
        if not all(map(ready, self.nodes())):
            return False
        found: dict[str, bool] = {}
        for pod in self.pods():
            lane = lane_of(pod).partition(" on ")[0]
            found[lane] = found.get(lane, False) or ready(pod) or pod["status"]["phase"] == "Succeeded"
        trainers = {f"{name} rank {number}" for name, count in self._ranks.items() for number in range(count)}
        return self.release.up() and all(found.get(name, False) for name in trainers)


def lane_of(pod: Object) -> str:
    """What it is, and on which node."""
    labels = pod["metadata"]["labels"]
    name = labels["app.kubernetes.io/component"]
    if name == "trainer":
        rank = pod["metadata"]["annotations"].get("batch.kubernetes.io/job-completion-index", "0")
        name = f"{labels['essp.dev/pool'].partition('-')[2]} rank {rank}"
    return f"{name} on {pod['spec']['nodeName']}"


class Watch:
    """Two threads: clips that are trained, as the brokers have it, and pods, as the API server has it."""

    def __init__(self, bus_url: str, cluster: Cluster) -> None:
        self._bus_url = bus_url
        self._cluster = cluster
        self._over = threading.Event()
        self._done: set[tuple[str, int, int, int]] = set()
        self._threads = [
            threading.Thread(target=target, name=f"witness-{target.__name__}", daemon=True)
            for target in (self._count, self._look)
        ]

    @property
    def trained(self) -> int:
        """Clips that trainers have reported as trained, each once a trainer."""
        return len(self._done)

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _count(self) -> None:
        with closing(open_bus(self._bus_url)) as bus, closing(bus.subscribe([topics.PROGRESS], None)) as subscription:
            while not self._over.is_set():
                with suppress(TransientError):
                    for record in subscription.poll(1000, LOOK_S):
                        self._add(record)
                self._cluster.timeline.count(len(self._done))

    def _add(self, record: Record) -> None:
        with suppress(BadMessage):
            progress = parsed(Progress, record)
            if progress.HasField("trained") and progress.trained.job == self._cluster.name:
                done = progress.trained
                self._done.update((done.consumer, done.purpose, done.epoch, index) for index in done.indices)

    def _look(self) -> None:
        while not self._over.wait(1.0):
            try:
                self._cluster.look()
            except httpx.HTTPError:
                self._cluster.look_in_vain()
