"""One job on a cluster of two nodes while a broker, the leading master, the API server and a node are killed in turn.

    ESSP_TEST_KAFKA=DIR KUBECONFIG=FILE ESSP_IMAGES=nodes python -m tests.cluster.witness --address 192.0.2.2 \\
        --node worker2 --kill-node 'docker kill worker2' --start-node 'docker start worker2' \\
        --kill-api COMMAND --start-api COMMAND --out docs/witness.json

Three brokers of Apache Kafka, Redis and S3 run on this machine, where pods reach them at `--address`. Each service logs
in to Kafka as its own user, with exactly the rights that `essp setup --acls` prints. The chart installs two masters and
two of each worker, and a trainer has a rank on each node. The commands do what only whoever runs the cluster knows.

The result has to be that of the same job in this process, with as many ranks, bit for bit; nothing may be left; and
`essp audit` must find all that ESSP promises. What was seen becomes a JSON file, and a picture beside it of the same
name. `--draw` draws the picture of a JSON file again, and runs nothing.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from essp.catalog.build import BuildOptions, build
from essp.embedded.composition import Embedded, EmbeddedOptions
from essp.servers.servers import Address, RedisServer, S3Server, free_port
from essp_aggregator.config import AggregatorSettings
from essp_aggregator.service import build as build_aggregator
from essp_common import topics
from essp_common.artifacts.fused_model import MANIFEST
from essp_common.job.spec import JobSpec, parse_spec
from essp_common.messages.control import ControlFeed
from essp_common.runtime.config import Settings
from essp_common.runtime.process import worker_name
from essp_common.runtime.service import Service
from essp_common.wiring import Adapters, Stores
from essp_trainer.config import TrainerConfig
from essp_trainer.service import build as build_trainer
from tests.chart.rendering import Helm, Object
from tests.cluster.observed import LOOK_S, STUCK_S, Cluster, Watch, until
from tests.cluster.outages import Commands, Faults, broker_lane
from tests.cluster.release import Release, images
from tests.cluster.timeline import READY, drawn
from tests.harness.apache_kafka import SECURED, ApacheCluster, admin_of
from tests.harness.command_line import essp
from tests.harness.embedded_jobs import complete
from tests.harness.journeys import make_videos
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
    optimizer: {{lr: 0.002}}
    checkpoint: {{every: 80}}
    augment: {{crop: 56, flip: false}}
  flow: {{<<: *trainer, stream: flow}}
limits: {{budget: 8MiB}}
"""
_REQUEST_S = 3.0


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
                TrainerConfig(job=spec.name, trainer=name, worker=f"{worker}-rank{number}", stays=True),
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
    """What has to be equal: the digest of each trainer's weights, and the fused model, but for where checkpoints lie,
    and the seal, which has that in it."""
    model = json.loads(stores.under(f"{output}/model").get(MANIFEST))
    weights = {member["trainer"]: member["sha256"] for member in model["members"]}
    del model["sha256"]
    for member in model["members"]:
        del member["checkpoint"]
    return {"weights": weights, "model": model}


# --- servers ---


class Servers:
    """Kafka, Redis and S3, which pods reach at an address of this machine."""

    def __init__(self, folder: Path, address: str) -> None:
        there = Address(address, address)
        self.password = secrets.token_hex(16)
        """Of Redis; also the token of the API."""
        self.passwords = {service: secrets.token_hex(16) for service in (*topics.SERVICES, "setup")}
        """In Kafka."""
        self.kafka = ApacheCluster(folder / "kafka", settings=SECURED, login_host=address)
        self.redis = RedisServer(
            folder, free_port(), maxmemory_bytes=REDIS_BYTES, address=there, password=self.password
        )
        self.s3 = S3Server(folder, folder=folder / "objects", address=there)

    def store(self) -> str:
        """The URL of the store."""
        return self.s3.store(BUCKET)

    def values(self) -> Object:
        """Of the chart."""
        return {
            "kafka": {
                "servers": self.kafka.logins,
                "sasl": "SCRAM-SHA-512",
                "user": "essp-{service}",
                "existingSecret": "essp-kafka",
                "secretKey": "{service}",
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
            secure(self.kafka, {f"essp-{service}": password for service, password in self.passwords.items()})
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

    return {
        "image": images(),
        **servers.values(),
        "controlPlane": {"leaderElection": True},
        "pools": {
            "master": {"replicas": 2, "resources": small},
            "decoder": {"replicas": 2, "settings": {"decoder_processes": 1}, "resources": small, "shm": "64Mi"},
            "extractor": {"replicas": 2, "resources": small},
            "aggregator": {"resources": small},
            "predictor": {"enabled": False},
        },
        "extraPools": {
            f"{JOB}-{name}": {
                "service": "trainer",
                "training": {"job": JOB, "trainer": name, "nodes": count},
                "topologySpreadConstraints": [spread],
                "resources": small,
                "shm": "64Mi",
            }
            for name, count in RANKS.items()
        },
    }


# --- the run ---


def run(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The document of a run."""
    make_videos(folder / "videos", times=asked.times)
    local = f"file://{folder}"
    build(f"{local}/videos", f"{local}/catalog.parquet", ("file:///",), BuildOptions("folders"))
    spec = parse_spec(job_text(local, asked.epochs))
    print("the job in this process", flush=True)
    embedded(spec)
    expected = result(Stores(("file:///",)), spec.output)

    servers = Servers(folder, asked.address)
    checks: list[dict[str, Any]] = []

    def check(what: str, found: object, wanted: object) -> None:
        checks.append({"what": what, "holds": found == wanted, "found": found})
        print(f"{'holds' if found == wanted else 'BROKEN'}: {what}: {found}", flush=True)

    with administrator() as api, servers.running(folder / "videos") as root:
        api.timeout = httpx.Timeout(_REQUEST_S)
        release = Release(api, Helm.unpacked(folder / "helm"), NAMESPACE)
        with (
            installed(release, servers, folder / "logs"),
            closing(Cluster(release, JOB, RANKS, servers.password)) as cluster,
        ):
            print("installed", flush=True)
            until(release.up, "pools are not up")
            cluster.ask("GET", "/readyz")
            timeline = cluster.timeline
            timeline.began = time.monotonic()
            for broker in servers.kafka.brokers:
                timeline.note(broker_lane(servers.kafka, broker), READY)
            with Watch(servers.kafka.url, cluster) as watch:
                text = job_text(root, asked.epochs)
                headers = {"Content-Type": "application/yaml"}
                cluster.ask("POST", "/v1/jobs", STUCK_S, content=text, headers=headers).raise_for_status()
                print("the job in the cluster", flush=True)
                commands = Commands(asked.node, asked.kill_node, asked.start_node, asked.kill_api, asked.start_api)
                Faults(servers.kafka, cluster, watch, commands, asked.between, asked.away).all()
                until(lambda: cluster.job()["state"] in ("completed", "failed"), "the job does not end")
                until(lambda: trainings_are_done(release), "trainers do not end")
                time.sleep(2 * LOOK_S)
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
            check("essp audit", audited(cluster.url, servers.password, servers.store()), {"holds": 7})
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


@contextmanager
def installed(release: Release, servers: Servers, logs: Path) -> Iterator[None]:
    """The release, with its secrets, in a namespace of its own; afterwards uninstalled, and waited for. `logs`: a
    folder for those of its pods, after an error."""
    api = release.api
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE, "labels": labels}}).raise_for_status()
    try:
        secret(release, "essp-login", password=servers.password, token=servers.password)
        secret(release, "essp-kafka", **servers.passwords)
        secret(release, "essp-s3", AWS_ACCESS_KEY_ID="any", AWS_SECRET_ACCESS_KEY="any")
        release.install(values(servers), case=None)
        yield
        release.uninstall()
        for name in ("essp-login", "essp-kafka", "essp-s3"):
            api.delete(release.path("Secret", name)).raise_for_status()
        until(lambda: not release.left(), "something is left")
    except BaseException:
        save_logs(release, logs)
        raise
    finally:
        api.delete(f"/api/v1/namespaces/{NAMESPACE}")


def save_logs(release: Release, folder: Path) -> None:
    """Those of all pods, and of the containers before."""
    folder.mkdir()
    for pod in release.pods({"app.kubernetes.io/name": "essp"}):
        name = pod["metadata"]["name"]
        for previous in (False, True):
            answer = release.api.get(release.path("Pod", name, "log"), params={"previous": previous})
            if answer.is_success:
                (folder / f"{name}{'-previous' * previous}.log").write_text(answer.text)


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
        print(
            f"audit: {finding['invariant']}: {words[finding['holds']]}: {finding['checked']} {finding['violations']}",
            flush=True,
        )
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
    parser.add_argument("--away", type=float, default=20.0, help="seconds that each is dead, at least")
    parser.add_argument("--out", type=Path, required=True, help="JSON file; the picture gets its name, with .svg")
    parser.add_argument("--folder", type=Path, help="for the files and logs of servers; it stays")
    parser.add_argument("--draw", action="store_true", help="draw the picture of --out again")
    asked = parser.parse_args()
    if not asked.draw:
        os.environ |= S3_ENVIRONMENT
        with tempfile.TemporaryDirectory(prefix="essp-witness-") as name:
            folder = asked.folder or Path(name)
            folder.mkdir(exist_ok=True)
            document = run(asked, folder)
        asked.out.write_text(json.dumps(document, indent=1) + "\n")
    document = json.loads(asked.out.read_text())
    drawn(document, asked.out.with_suffix(".svg"))
    for outage in document["outages"]:
        print(f"{outage['what']}: {outage['end_s'] - outage['begin_s']:.0f} s until all was up again, "
            f"{outage['still_s']:.0f} s at most without a trained clip")  # fmt: skip
    return int(not all(check["holds"] for check in document["checks"]))


if __name__ == "__main__":
    sys.exit(main())
