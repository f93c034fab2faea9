"""Faults of a cluster in the middle of a job: a broker, the leading master, the API server and a node die."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from essp_common import topics
from tests.chart.rendering import Object
from tests.cluster.observed import Cluster, Watch, until
from tests.cluster.release import component, ready
from tests.cluster.timeline import AWAY, READY, Outage
from tests.harness.apache_kafka import ApacheCluster, ApacheKafka


@dataclass(frozen=True)
class Commands:
    """What only whoever runs the cluster knows how to do."""

    node: str
    """The node that is killed."""
    kill_node: str
    start_node: str
    kill_api: str
    start_api: str


class Faults:
    """What is done to the cluster in the middle of the job, one after the other."""

    def __init__(
        self, kafka: ApacheCluster, cluster: Cluster, watch: Watch, commands: Commands, between: int, away_s: float
    ) -> None:
        """`between`: clips from the end of a fault to the next. `away_s`: how long a broker and the API server are
        dead; the node until Kubernetes notices, if that takes longer."""
        self._kafka = kafka
        self._cluster = cluster
        self._watch = watch
        self._commands = commands
        self._between = between
        self._away_s = away_s

    def all(self) -> None:
        """Each, once the job got on after the one before."""
        faults: dict[str, Callable[[], None]] = {
            "a broker": self._broker,
            "the leading master": self._master,
            "the API server": self._api_server,
            f"{self._commands.node}": self._node,
        }
        for what, fault in faults.items():
            self._gets_on()
            outage = Outage(what, round(self._cluster.timeline.now_s(), 1))
            self._cluster.timeline.outages.append(outage)
            print(f"{outage.begin_s:6.1f} s: {what} is killed at {self._watch.trained} clips", flush=True)
            fault()
            outage.end_s = round(self._cluster.timeline.now_s(), 1)
            print(f"{outage.end_s:6.1f} s: all is up again, {self._watch.trained} clips", flush=True)
        self._gets_on()

    def _gets_on(self) -> None:
        """Wait until more clips are trained than now, and all is up."""
        wanted = self._watch.trained + self._between
        until(lambda: self._watch.trained >= wanted, "the job stands still")
        self._whole()
        if self._cluster.job()["state"] == "completed":
            raise SystemExit("the job was complete before all had been killed: more --epochs")

    def _broker(self) -> None:
        """The one that leads the reports of all workers."""
        lost = self._kafka.leader(topics.PROGRESS)
        lane = broker_lane(self._kafka, lost)
        lost.kill()
        self._cluster.timeline.note(lane, AWAY)
        time.sleep(self._away_s)
        self._kafka.start([lost])
        self._cluster.timeline.note(lane, READY)

    def _master(self) -> None:
        """SIGKILL to all of its container but process 1, which is tini."""
        (lost,) = [
            pod
            for pod in self._cluster.release.pods(component("master"))
            if pod["status"].get("podIP") == self._cluster.leader()
        ]
        command = ["exec", lost["metadata"]["name"], "--", "sh", "-c", "kill -9 -1"]
        namespace = self._cluster.release.namespace
        subprocess.run(["kubectl", "--namespace", namespace, *command], capture_output=True, check=False)
        name = lost["metadata"]["name"]
        until(lambda: restarts(self._cluster.release.get("Pod", name)) > restarts(lost), "the master was not killed")
        until(lambda: self._cluster.leader() not in ("", lost["status"]["podIP"]), "no other master leads")
        self._cluster.job()
        self._whole()

    def _api_server(self) -> None:
        _run(self._commands.kill_api)
        time.sleep(self._away_s)
        _run(self._commands.start_api)
        until(lambda: self._cluster.release.api.get("/readyz").status_code == 200, "the API server is away")
        self._cluster.job()
        self._whole()

    def _node(self) -> None:
        _run(self._commands.kill_node)
        time.sleep(self._away_s)
        until(lambda: not self._node_is_ready(), "the node is still up")
        _run(self._commands.start_node)
        until(self._node_is_ready, "the node does not come back")
        self._cluster.job()
        self._whole()

    def _node_is_ready(self) -> bool:
        found = self._cluster.release.api.get(f"/api/v1/nodes/{self._commands.node}")
        return ready(found.raise_for_status().json())

    def _whole(self) -> None:
        until(self._cluster.is_whole, "not all pods are up again")


def restarts(pod: Object) -> int:
    """Of its container."""
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def broker_lane(cluster: ApacheCluster, broker: ApacheKafka) -> str:
    """Its name in the timeline."""
    return f"broker {cluster.brokers.index(broker) + 1}"


def _run(command: str) -> None:
    subprocess.run(command, shell=True, check=True)
