"""One job on a cluster of two nodes while a broker, the leading master, the API server and a node are killed in turn.

    ESSP_TEST_KAFKA=DIR KUBECONFIG=FILE ESSP_IMAGES=nodes python -m tests.cluster.witness --address 192.0.2.2 \\
        --node worker2 --kill-node 'docker kill worker2' --start-node 'docker start worker2' \\
        --kill-api 'COMMAND' --start-api 'COMMAND' --out docs/witness.json

Three brokers of Apache Kafka, Redis and S3 run on this machine, where pods reach them at `--address`. Each service logs
in to Kafka as its own user, who has exactly the rights that `essp setup --acls` prints. The chart installs two masters
and two of each worker; a trainer has a rank on each node. The commands kill and start what only this cluster knows how
to; the node is one on which the brokers do not run.

The result has to be that of the same job in this process, bit for bit, with as many ranks; nothing may be left; and
`essp audit` must find all that ESSP promises. What was seen becomes a JSON file and a picture beside it, of the same
name. `--draw` draws the picture of a JSON file again, and runs nothing.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from essp.catalog.build import BuildOptions, build
from essp.embedded.composition import Embedded, EmbeddedOptions
from essp.servers.servers import FolderServer, RedisServer, free_port
from essp_aggregator.config import AggregatorSettings
from essp_aggregator.service import build as build_aggregator
from essp_common import topics
from essp_common.artifacts.fused_model import MANIFEST
from essp_common.bus.port import Record
from essp_common.errors import TransientError
from essp_common.job.spec import JobSpec, parse_spec
from essp_common.messages.control import ControlFeed
from essp_common.messages.parsing import BadMessage, parsed
from essp_common.pb.v1.messages_pb2 import Progress
from essp_common.runtime.config import Settings
from essp_common.runtime.process import worker_name
from essp_common.runtime.service import Service
from essp_common.wiring import Adapters, Stores, open_bus
from essp_trainer.config import TrainerConfig, TrainerSettings
from essp_trainer.service import build as build_trainer
from tests.chart.rendering import Helm, Object
from tests.cluster.release import Release, component, images
from tests.cluster.timeline import AWAY, LEADS, READY, Outage, Timeline, drawn
from tests.harness.apache_kafka import SECURED, ApacheCluster, ApacheKafka, admin_of
from tests.harness.command_line import essp
from tests.harness.embedded_jobs import complete
from tests.harness.journeys import make_videos, weights_of
from tests.harness.kubernetes_real import administrator
from tests.harness.training_jobs import ranks_in_process
from tests.kafka.deployment import secure
from tests.soak.deployment import S3_ENVIRONMENT

JOB = "witness"
BUCKET = "essp-witness"
NAMESPACE = "essp-witness"
RANKS = {"rgb": 2, "flow": 1}
"""Ranks of each trainer; the chart makes a pod for each, and spreads them over the nodes."""
REDIS_BYTES = 128 * 2**20
_JOB = """
name: {job}
output: {root}/runs/{job}
epochs: {epochs}
data: {{catalog: "{root}/catalog.parquet"}}
clip: {{frames: 6, resize: {{mode: crop, height: 64, width: 64}}}}
sampling: {{clips_per_epoch: 240, clips_per_video: 2, seed: 7}}
streams:
  rgb: {{feature: rgb}}
  flow: {{feature: flow, params: {{method: dis, length: 5}}}}
trainers:
  rgb: &trainer
    stream: rgb
    batch_size: 8
    threads: 1
    checkpoint: {{every: 80}}
    augment: {{crop: 56, flip: false}}
  flow: {{<<: *trainer, stream: flow}}
limits: {{budget: 8MiB}}
"""
_REQUEST_S = 3.0
_LOOK_S = 0.5
_STUCK_S = 900.0


def job_text(root: str, epochs: int) -> str:
    """The job on what lies below the URI `root`."""
    return _JOB.format(job=JOB, root=root, epochs=epochs)


# --- the same job in this process ---


def embedded(spec: JobSpec) -> None:
    """Run the job in this process, with as many ranks of each trainer as in the cluster."""

    def consumers(spec: JobSpec, adapters: Adapters, control: ControlFeed, settings: Settings) -> Sequence[Service]:
        worker = worker_name(settings)
        trainers: list[Service] = [
            build_trainer(
                TrainerConfig(
                    job=spec.name,
                    trainer=name,
                    worker=f"{worker}-rank{number}",
                    stays=True,
                    settings=TrainerSettings(),
                ),
                adapters,
                control,
                ranks,
            )
            for name, count in RANKS.items()
            for number, ranks in enumerate(ranks_in_process(count))
        ]
        return [*trainers, build_aggregator(adapters, AggregatorSettings(), worker)]

    with Embedded(spec, Settings(stores=("file:///",)), EmbeddedOptions(consumers=consumers)) as job:
        complete(job)


def result(stores: Stores, output: str) -> dict[str, Any]:
    """What has to be equal: the digest of each trainer's weights, and the fused model, but for where it lies."""
    manifest = stores.under(f"{output}/model").get(MANIFEST).decode()
    return {"weights": weights_of(stores, output), "model": manifest.replace(output, "OUTPUT")}


# --- servers ---


class Servers:
    """Kafka, Redis and S3, which pods reach at an address of this machine."""

    def __init__(self, folder: Path, address: str, password: str) -> None:
        from essp.servers.servers import Address

        there = Address(address, address)
        self.kafka = ApacheCluster(folder / "kafka", settings=SECURED, login_host=address)
        self.redis = RedisServer(folder, free_port(), maxmemory_bytes=REDIS_BYTES, address=there, password=password)
        self.s3 = FolderServer(folder, folder=folder / "objects", address=there)
        self.password = password

    def store(self) -> str:
        """The URL of the store."""
        return self.s3.store(BUCKET)

    def values(self) -> Object:
        """Of the chart."""
        return {
            "kafka": {
                "servers": self.kafka.logins,
                "sasl": "SCRAM-SHA-512",
                "user": "essp-nobody",  # each pool has its own
                "existingSecret": "essp-login",
            },
            "redis": {"server": f"{self.redis.address.name}:{self.redis.port}", "passwordSecret": "essp-login"},
            "s3": {"buckets": [BUCKET], "endpoint": self.s3.url, "region": "us-east-1", "existingSecret": "essp-s3"},
            "api": {"existingSecret": "essp-login"},
        }

    def denials(self) -> list[str]:
        """What the authorizer has refused, as brokers log it."""
        return [
            line
            for broker in self.kafka.brokers
            for line in broker.log_path.read_text("utf-8", "replace").splitlines()
            if "is Denied" in line
        ]

    @contextmanager
    def running(self, folder: Path) -> Iterator[str]:
        """Start them, with users, topics, and a labelled set; gives the URI of what holds the set."""
        with self.kafka, self.redis, self.s3:
            self.s3.create_bucket(BUCKET)
            secure(self.kafka, lambda _: self.password)
            root = f"s3://{BUCKET}"
            store = Stores((self.store(),)).under(root)
            for path in sorted(folder.rglob("*.*")):
                store.put_file(f"videos/{path.relative_to(folder)}", str(path))
            build(f"{root}/videos", f"{root}/catalog.parquet", (self.store(),), BuildOptions("folders"))
            yield root


# --- the release ---


def values(servers: Servers) -> Object:
    """Of the chart: two of each, and a trainer with a rank on each node."""
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    small = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}

    def pool(service: str, **more: Any) -> Object:
        return {"resources": small, "env": [{"name": "ESSP_BUS_USER", "value": f"essp-{service}"}], **more}

    return {
        "image": images(),
        **servers.values(),
        "controlPlane": {"leaderElection": True},
        "topics": {"job": {"enabled": False}},  # made by their own user
        "pools": {
            "master": pool("master", replicas=2),
            "decoder": pool("decoder", replicas=2, settings={"decoder_processes": 1}, shm="64Mi"),
            "extractor": pool("extractor", replicas=2),
            "aggregator": pool("aggregator"),
            "predictor": {"enabled": False},
        },
        "extraPools": {
            f"{JOB}-{name}": pool(
                "trainer",
                service="trainer",
                training={"job": JOB, "trainer": name, "nodes": count},
                topologySpreadConstraints=[spread],
                shm="64Mi",
            )
            for name, count in RANKS.items()
        },
    }


class Cluster:
    """The release in its namespace, and what is seen of it."""

    def __init__(self, release: Release, token: str, timeline: Timeline) -> None:
        self.release = release
        self.timeline = timeline
        self._token = token
        self._api: httpx.Client | None = None
        self._forwarding = ExitStack()

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Ask the master, for as long as it takes until one answers."""
        deadline = time.monotonic() + _STUCK_S
        while True:
            try:
                if self._api is None:
                    self._api = self._forwarding.enter_context(self.release.forwarded(self._token))
                answer = self._api.request(method, path, timeout=_REQUEST_S, **more)
                if answer.status_code != 503:  # no master leads
                    return answer
            except httpx.HTTPError:
                self.close()
            assert time.monotonic() < deadline, f"{path}: no master answers"
            time.sleep(_LOOK_S)

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
        found: Object = self.ask("GET", f"/v1/jobs/{JOB}").raise_for_status().json()
        return found

    def leader(self) -> str:
        """Address of the pod that holds the lease; empty if none does."""
        lease = self.release.api.get(
            f"/apis/coordination.k8s.io/v1/namespaces/{self.release.namespace}/leases/essp-master"
        )
        if lease.status_code == 404:
            return ""
        holder = lease.raise_for_status().json()["spec"].get("holderIdentity") or ""
        return holder.partition("//")[2].partition(":8080")[0]

    def pods(self) -> list[Object]:
        return [pod for pod in self.release.pods({"app.kubernetes.io/part-of": "essp"}) if "nodeName" in pod["spec"]]

    def look(self) -> None:
        """Note what is up, as the API server has it."""
        leader = self.leader()
        states: dict[str, int] = {lane: AWAY for lane in self.timeline.lanes if " on " in lane}
        for pod in self.pods():
            lane = lane_of(pod)
            state = READY if ready(pod) else AWAY
            if state == READY and pod["status"].get("podIP") == leader:
                state = LEADS
            states[lane] = max(state, states.get(lane, AWAY))
        for lane, state in states.items():
            self.timeline.note(lane, state)
        for node in self.release.api.get("/api/v1/nodes").raise_for_status().json()["items"]:
            self.timeline.note(f"node {node['metadata']['name']}", READY if ready(node) else AWAY)

    def is_whole(self) -> bool:
        """Whether all pods are ready, those of trainers that are not done included."""
        found: dict[str, bool] = {}
        for pod in self.pods():
            lane = lane_of(pod).partition(" on ")[0]
            found[lane] = found.get(lane, False) or ready(pod) or pod["status"]["phase"] == "Succeeded"
        trainers = {f"{name} rank {number}" for name, count in RANKS.items() for number in range(count)}
        return self.release.up() and all(found.get(name, False) for name in trainers)


def ready(thing: Object) -> bool:
    """Whether a pod or a node says that it is."""
    conditions = thing["status"].get("conditions", ())
    return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)


def lane_of(pod: Object) -> str:
    """What it is, and on which node."""
    labels = pod["metadata"]["labels"]
    name = labels["app.kubernetes.io/component"]
    if name == "trainer":
        rank = pod["metadata"]["annotations"].get("batch.kubernetes.io/job-completion-index", "0")
        name = f"{labels['essp.dev/pool'].removeprefix(f'{JOB}-')} rank {rank}"
    return f"{name} on {pod['spec']['nodeName']}"


# --- what is seen ---


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
                    for record in subscription.poll(1000, _LOOK_S):
                        self._add(record)
                self._cluster.timeline.count(len(self._done))

    def _add(self, record: Record) -> None:
        with suppress(BadMessage):
            progress = parsed(Progress, record)
            if progress.HasField("trained") and progress.trained.job == JOB:
                done = progress.trained
                self._done.update((done.consumer, done.purpose, done.epoch, index) for index in done.indices)

    def _look(self) -> None:
        while not self._over.wait(1.0):
            try:
                self._cluster.look()
                self._cluster.timeline.note("API server", READY)
            except httpx.HTTPError:
                self._cluster.timeline.note("API server", AWAY)


# --- faults ---


class Faults:
    """What is done to the cluster in the middle of the job, one after the other."""

    def __init__(self, servers: Servers, cluster: Cluster, watch: Watch, asked: argparse.Namespace) -> None:
        self._servers = servers
        self._cluster = cluster
        self._watch = watch
        self._asked = asked

    def all(self) -> None:
        """Each, once the job got on after the one before."""
        faults: dict[str, Callable[[], None]] = {
            "a broker": self._broker,
            "the leading master": self._master,
            "the API server": self._api_server,
            f"{self._asked.node}": self._node,
        }
        for what, fault in faults.items():
            self._gets_on()
            outage = Outage(what, round(self._cluster.timeline.now_s(), 1))
            self._cluster.timeline.outages.append(outage)
            say(f"{outage.begin_s:6.1f} s: {what} is killed at {self._watch.trained} clips")
            fault()
            outage.end_s = round(self._cluster.timeline.now_s(), 1)
            say(f"{outage.end_s:6.1f} s: all is up again, {self._watch.trained} clips")
        self._gets_on()

    def _gets_on(self) -> None:
        """Wait until more clips are trained than now."""
        wanted = self._watch.trained + self._asked.between
        self._until(lambda: self._watch.trained >= wanted, "the job stands still")
        if self._cluster.job()["state"] == "completed":
            raise SystemExit("the job was complete before all had been killed: more --epochs")

    def _broker(self) -> None:
        """The one that leads the reports of all workers."""
        lost = self._servers.kafka.leader(topics.PROGRESS)
        lane = broker_lane(self._servers.kafka, lost)
        lost.kill()
        self._cluster.timeline.note(lane, AWAY)
        time.sleep(self._asked.away)
        self._servers.kafka.start([lost])
        self._cluster.timeline.note(lane, READY)

    def _master(self) -> None:
        """SIGKILL to all of its container but process 1, which is tini."""
        (lost,) = [
            pod
            for pod in self._cluster.release.pods(component("master"))
            if pod["status"].get("podIP") == self._cluster.leader()
        ]
        command = ["exec", lost["metadata"]["name"], "--", "sh", "-c", "kill -9 -1"]
        subprocess.run(["kubectl", "--namespace", NAMESPACE, *command], capture_output=True, check=False)
        restarts = lost["status"]["containerStatuses"][0]["restartCount"]
        name = lost["metadata"]["name"]
        self._until(
            lambda: self._cluster.release.get("Pod", name)["status"]["containerStatuses"][0]["restartCount"] > restarts,
            "the master was not killed",
        )
        self._until(lambda: self._cluster.leader() not in ("", lost["status"]["podIP"]), "no other master leads")
        self._cluster.job()
        self._whole()

    def _api_server(self) -> None:
        command(self._asked.kill_api)
        time.sleep(self._asked.away)
        command(self._asked.start_api)
        self._until(lambda: self._cluster.release.api.get("/readyz").status_code == 200, "the API server is away")
        self._cluster.job()
        self._whole()

    def _node(self) -> None:
        path = f"/api/v1/nodes/{self._asked.node}"
        command(self._asked.kill_node)
        self._until(lambda: not ready(self._cluster.release.api.get(path).json()), "the node is still up")
        command(self._asked.start_node)
        self._until(lambda: ready(self._cluster.release.api.get(path).json()), "the node does not come back")
        self._cluster.job()
        self._whole()

    def _whole(self) -> None:
        self._until(self._cluster.is_whole, "not all pods are up again")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _STUCK_S
        while True:
            with suppress(httpx.HTTPError):
                if condition():
                    return
            assert time.monotonic() < deadline, what
            time.sleep(_LOOK_S)


def broker_lane(cluster: ApacheCluster, broker: ApacheKafka) -> str:
    return f"broker {cluster.brokers.index(broker) + 1}"


def command(text: str) -> None:
    """One of those that only this cluster knows."""
    subprocess.run(text, shell=True, check=True)


def say(text: str) -> None:
    print(text, flush=True)


# --- the run ---


def run(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The document of a run."""
    make_videos(folder / "videos", times=asked.times)
    local = f"file://{folder}"
    build(f"{local}/videos", f"{local}/catalog.parquet", ("file:///",), BuildOptions("folders"))
    spec = parse_spec(job_text(local, asked.epochs))
    say("the job in this process")
    embedded(spec)
    expected = result(Stores(("file:///",)), spec.output)

    password = secrets.token_hex(16)
    servers, timeline = Servers(folder, asked.address, password), Timeline()
    checks: list[dict[str, Any]] = []

    def check(what: str, found: object, wanted: object) -> None:
        checks.append({"what": what, "holds": found == wanted, "found": found})
        say(f"{'holds' if found == wanted else 'BROKEN'}: {what}: {found}")

    with administrator() as api, servers.running(folder / "videos") as root:
        api.timeout = httpx.Timeout(_REQUEST_S)
        release = Release(api, Helm.unpacked(folder / "helm"), NAMESPACE)
        with installed(release, servers), closing(Cluster(release, password, timeline)) as cluster:
            say("installed")
            until(lambda: cluster.release.up(), "pools are not up")
            cluster.ask("GET", "/readyz")
            timeline.began = time.monotonic()
            for broker in servers.kafka.brokers:
                timeline.note(broker_lane(servers.kafka, broker), READY)
            with Watch(servers.kafka.url, cluster) as watch:
                text = job_text(root, asked.epochs)
                headers = {"Content-Type": "application/yaml"}
                cluster.ask("POST", "/v1/jobs", content=text, headers=headers).raise_for_status()
                say("the job in the cluster")
                Faults(servers, cluster, watch, asked).all()
                until(lambda: cluster.job()["state"] in ("completed", "failed"), "the job does not end")
                until(lambda: trainings_are_done(release), "trainers do not end")
                time.sleep(2 * _LOOK_S)
                timeline.finish()
            job = cluster.job()
            check("state of the job", job["state"], "completed")
            check("clips that failed", job["counts"]["failed"], 0)
            check("clips done", job["progress"]["done"], job["progress"]["total"])
            stores = Stores((servers.store(),))
            found = result(stores, f"{root}/runs/{JOB}")
            check("weights, as embedded", found["weights"], expected["weights"])
            check("fused model, as embedded", found["model"] == expected["model"], True)
            ranks = {lane for lane in timeline.lanes if lane.startswith("rgb rank")}
            check("nodes with ranks of rgb", len({lane.partition(" on ")[2] for lane in ranks}), 2)
            check("essp audit", audited(cluster.url, password, servers.store()), {"holds": 7})
            check("requests that the brokers denied", servers.denials(), [])
            check("keys in Redis", int(servers.redis.execute("DBSIZE").strip()[1:]), 0)
            with admin_of(servers.kafka.url) as admin:
                until(lambda: not any(JOB in it["group_id"] for it in admin.list_groups()), "its groups stay")
                check("groups of the job", [it["group_id"] for it in admin.list_groups() if JOB in it["group_id"]], [])
        check("objects of Kubernetes that are left", sorted(release.left()), [])
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "asked": {"epochs": asked.epochs, "videos": 20 * asked.times, "away_s": asked.away, "node": asked.node},
        "checks": checks,
        **timeline.document(),
    }


def until(condition: Callable[[], bool], what: str) -> None:
    """Return once this holds. While a request fails, it does not."""
    deadline = time.monotonic() + _STUCK_S
    while True:
        with suppress(httpx.HTTPError):
            if condition():
                return
        assert time.monotonic() < deadline, what
        time.sleep(_LOOK_S)


@contextmanager
def installed(release: Release, servers: Servers) -> Iterator[None]:
    """The release, with its secrets, in a namespace of its own; afterwards uninstalled, and waited for."""
    api = release.api
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE, "labels": labels}}).raise_for_status()
    try:
        secret(release, "essp-login", password=servers.password, token=servers.password)
        secret(release, "essp-s3", **{name: S3_ENVIRONMENT[name] for name in S3_KEYS})
        release.install(values(servers), case=None)
        yield
        release.uninstall()
        for name in ("essp-login", "essp-s3"):
            api.delete(release.path("Secret", name)).raise_for_status()
        until(lambda: not release.left(), f"something is left: {release.left()}")
    finally:
        api.delete(f"/api/v1/namespaces/{NAMESPACE}")


S3_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def secret(release: Release, name: str, **data: str) -> None:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    release.create("Secret", {"metadata": {"name": name}, "data": encoded})


def trainings_are_done(release: Release) -> bool:
    """Whether the Jobs of all trainers are complete."""
    found = release.api.get(release.path("Job")).raise_for_status().json()["items"]
    return len(found) == len(RANKS) and all(
        job["status"].get("succeeded", 0) == job["spec"]["completions"] for job in found
    )


def audited(url: str, token: str, store: str) -> dict[str, int]:
    """Invariants that hold, are broken, or were not checked, by what `essp audit` says."""
    os.environ |= {"ESSP_STORES": json.dumps([store]), "ESSP_API_TOKEN": token}
    findings = json.loads(essp("audit", JOB, "--server", url, "--json").stdout)["findings"]
    words = {True: "holds", False: "broken", None: "not checked"}
    counted: dict[str, int] = {}
    for finding in findings:
        say(f"audit: {finding['invariant']}: {words[finding['holds']]}: {finding['checked']} {finding['violations']}")
        counted[words[finding["holds"]]] = counted.get(words[finding["holds"]], 0) + 1
    return counted


def main() -> int:
    """Exit code 1: something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", help="of this machine, as pods reach it")
    parser.add_argument("--node", help="the node that is killed")
    for name in ("kill-node", "start-node", "kill-api", "start-api"):
        parser.add_argument(f"--{name}", metavar="COMMAND")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--times", type=int, default=6, help="20 videos, so many times")
    parser.add_argument("--between", type=int, default=100, help="clips from one fault to the next")
    parser.add_argument("--away", type=float, default=20.0, help="seconds that a broker and the API server are dead")
    parser.add_argument("--out", type=Path, required=True, help="JSON file; the picture gets its name, with .svg")
    parser.add_argument("--draw", action="store_true", help="draw the picture of --out again")
    asked = parser.parse_args()
    if not asked.draw:
        os.environ |= S3_ENVIRONMENT
        with tempfile.TemporaryDirectory(prefix="essp-witness-") as name:
            document = run(asked, Path(name))
        asked.out.write_text(json.dumps(document, indent=1) + "\n")
    document = json.loads(asked.out.read_text())
    drawn(document, asked.out.with_suffix(".svg"))
    for outage in document["outages"]:
        say(f"{outage['what']}: {outage['end_s'] - outage['begin_s']:.0f} s until all was up again, "
            f"{outage['still_s']:.0f} s at most without a trained clip")  # fmt: skip
    return int(not all(check["holds"] for check in document["checks"]))


if __name__ == "__main__":
    sys.exit(main())
